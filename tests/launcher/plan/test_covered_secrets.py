"""Whatever a task reports of itself, its secrets are not written down."""

from __future__ import annotations

from tfcluster.errors import SurroundingsError
from tfcluster.plan.secrets import cover_in_error, veiled
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status

SECRETS = ("s3cr3t-s3cr3t", "s3cr3t")


def test_texts_are_covered_wherever_they_stand_in_an_event() -> None:
    event = ev.TaskError(
        task="worker:0",
        attempt=1,
        exception="ValueError",
        message="no such key: s3cr3t-s3cr3t",
        file="train.py",
        line=3,
        traceback="raise ValueError('s3cr3t')",
    )
    covered = veiled(event, SECRETS)
    assert covered.message == "no such key: ********"
    assert covered.traceback == "raise ValueError('********')"
    assert (covered.file, covered.line) == ("train.py", 3)


def test_an_event_without_them_is_the_same() -> None:
    event = ev.RunFinished(status=Status.FAILED, exit_code=1)
    assert veiled(event, SECRETS) is event
    assert veiled(event, ()) is event


def test_values_in_values_are_reached() -> None:
    told = {"a": ["s3cr3t", ("x", {"s3cr3t": 1})], "b": None}
    assert veiled(told, SECRETS) == {"a": ["********", ("x", {"********": 1})], "b": None}


def test_the_error_at_the_end_has_none() -> None:
    error = SurroundingsError("its last line: s3cr3t", fix="look at s3cr3t")
    cover_in_error(error, SECRETS)
    assert str(error) == "its last line: ********\n  → look at ********"
