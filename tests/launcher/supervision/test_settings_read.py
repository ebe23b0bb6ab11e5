"""A setting of the spec that no task reads leads to a warning; it names the call to add."""

from __future__ import annotations

from dataclasses import replace

from tests.launcher.conftest import plan_of

from tfcluster.supervision.gang import Gang


def warning(settings: dict[str, object], *read: str) -> str | None:
    """Return the warning of a run whose task has trained and has read the settings `read`."""
    gang = Gang(replace(plan_of("worker:0"), settings=settings))
    gang.note_report(gang["worker:0"], {"type": "progress", "step": 1}, 0.0)
    for name in read:
        gang.note_report(gang["worker:0"], {"type": "setting_read", "name": name}, 0.0)
    return gang.unread_settings()


def test_settings_that_a_task_has_read_are_not_warned_about() -> None:
    assert warning({"communication": "RING"}, "communication", "communication") is None


def test_unread_settings_share_one_warning_that_names_each_fix_once() -> None:
    settings: dict[str, object] = {
        "communication": "RING",
        "bytes_per_pack": 1024,
        "precision": "mixed_bfloat16",
    }
    assert warning(settings, "bytes_per_pack") == (
        "no task has read strategy.communication = RING, keras.precision = mixed_bfloat16: it had "
        "no effect. The script must call tfcluster_workers.strategy.make() for its strategy and "
        "tfcluster_workers.keras_choice.apply_precision(keras)"
    )


def test_an_unknown_setting_is_named_as_is() -> None:
    assert warning({"jit": True}) == "no task has read jit = True: it had no effect"
