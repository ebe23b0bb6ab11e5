"""A setting of the spec that no task reads is said, with the call that reads it."""

from __future__ import annotations

from typing import Any

from tfcluster.supervision.member import SettingsRead


def read(name: str) -> dict[str, Any]:
    return {"type": "setting_read", "name": name}


def test_what_some_task_has_read_is_no_matter() -> None:
    settings = SettingsRead({"communication": "RING"})
    settings.note(read("communication"))
    settings.note(read("communication"))
    assert settings.warning() is None


def test_all_that_nobody_read_is_one_line_with_each_cure_once() -> None:
    settings = SettingsRead(
        {"communication": "RING", "bytes_per_pack": 1024, "precision": "mixed_bfloat16"}
    )
    settings.note({"type": "progress", "step": 1})
    settings.note(read("bytes_per_pack"))
    assert settings.warning() == (
        "no task has read strategy.communication = RING, keras.precision = mixed_bfloat16: it had "
        "no effect. The script must call tfcluster_workers.strategy.make() for its strategy and "
        "tfcluster_workers.keras_choice.apply_precision(keras)"
    )


def test_a_setting_of_a_newer_plan_is_named_as_it_is() -> None:
    warning = SettingsRead({"jit": True}).warning()
    assert warning == "no task has read jit = True: it had no effect"
