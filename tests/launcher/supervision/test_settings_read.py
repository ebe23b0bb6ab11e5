"""A setting of the spec that no task reads leads to a warning; it names the call to add."""

from __future__ import annotations

from tfcluster.agent.catalogue import Progress, SettingRead
from tfcluster.supervision.member import SettingsRead


def read(name: str) -> SettingRead:
    return SettingRead(name=name)


def test_settings_that_a_task_has_read_are_not_warned_about() -> None:
    settings = SettingsRead({"communication": "RING"})
    settings.note(read("communication"))
    settings.note(read("communication"))
    assert settings.warning() is None


def test_unread_settings_share_one_warning_that_names_each_fix_once() -> None:
    settings = SettingsRead(
        {"communication": "RING", "bytes_per_pack": 1024, "precision": "mixed_bfloat16"}
    )
    settings.note(Progress(step=1))
    settings.note(read("bytes_per_pack"))
    assert settings.warning() == (
        "no task has read strategy.communication = RING, keras.precision = mixed_bfloat16: it had "
        "no effect. The script must call tfcluster_workers.strategy.make() for its strategy and "
        "tfcluster_workers.keras_choice.apply_precision(keras)"
    )


def test_an_unknown_setting_is_named_as_is() -> None:
    warning = SettingsRead({"jit": True}).warning()
    assert warning == "no task has read jit = True: it had no effect"
