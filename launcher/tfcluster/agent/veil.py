"""Covers secret values in what a task writes, before it is on any disk or on its way."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COVER = b"********"


class Veil:
    """Of one stream. A value that is cut by the end of a piece is held back until more comes."""

    def __init__(self, values: list[bytes]) -> None:
        self._values = sorted(values, key=len, reverse=True)
        self._held = b""

    def cover(self, data: bytes) -> bytes:
        data = self._held + data
        for value in self._values:
            data = data.replace(value, COVER)
        end = len(data) - max(_begun(value, data) for value in self._values)
        self._held = data[end:]
        return data[:end]

    def rest(self) -> bytes:
        """What was held back: no more comes."""
        rest, self._held = self._held, b""
        return rest


def _begun(value: bytes, data: bytes) -> int:
    """How much of `value` stands at the end of `data`."""
    longest = min(len(value) - 1, len(data))
    return next((n for n in range(longest, 0, -1) if data.endswith(value[:n])), 0)


def veil_of(spec: dict[str, Any]) -> Veil | None:
    """For a task to be started: `secrets` names those of its variables that nobody may see."""
    env = spec.get("env", {})
    values = [env[name].encode("utf-8", "surrogateescape") for name in spec.get("secrets", ())]
    return Veil(values) if values else None
