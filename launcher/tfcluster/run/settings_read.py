"""Keeps the contract's promise that a setting is never silently unused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_STRATEGY: Final = "tfcluster_workers.strategy.make() for its strategy"
_FIELDS: Final = {
    "strategy": ("strategy.name", _STRATEGY),
    "communication": ("strategy.communication", _STRATEGY),
    "bytes_per_pack": ("strategy.bytes_per_pack", _STRATEGY),
    "collective_timeout_s": ("strategy.collective_timeout_s", _STRATEGY),
    "precision": ("keras.precision", "tfcluster_workers.keras_choice.apply_precision(keras)"),
    "steps_per_execution": (
        "keras.steps_per_execution",
        "compile(steps_per_execution=tfcluster_workers.keras_choice.steps_per_execution())",
    ),
}
"""Setting → its field of the spec, and what a script calls to follow it."""


class SettingsRead:
    """What the tasks said they have read of `settings`, the plan's."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._unread = dict(settings)

    def note(self, report: Mapping[str, Any]) -> None:
        """A task's own report; only ``setting_read`` matters here."""
        if report.get("type") == "setting_read":
            self._unread.pop(str(report.get("name")), None)

    def warning(self) -> str | None:
        """One line about all that no task has read, and how a script reads it."""
        if not self._unread:
            return None
        known = {name: _FIELDS.get(name, (name, "")) for name in self._unread}
        fields = ", ".join(f"{known[name][0]} = {value}" for name, value in self._unread.items())
        calls = " and ".join(dict.fromkeys(call for _, call in known.values() if call))
        cure = f". The script must call {calls}" if calls else ""
        return f"no task has read {fields}: it had no effect{cure}"
