"""Secrets in events and errors are masked before they are stored."""

from __future__ import annotations

from tfcluster.errors import SetupError
from tfcluster.plans.secrets import redact, redact_error
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status

SECRETS = ("s3cr3t-s3cr3t", "s3cr3t")


def test_secrets_are_masked_in_every_field_of_an_event() -> None:
    event = ev.TaskError(
        task="worker:0",
        attempt=1,
        exception="ValueError",
        message="no such key: s3cr3t-s3cr3t",
        file="train.py",
        line=3,
        traceback="raise ValueError('s3cr3t')",
    )
    redacted = redact(event, SECRETS)
    assert redacted.message == "no such key: ********"
    assert redacted.traceback == "raise ValueError('********')"
    assert (redacted.file, redacted.line) == ("train.py", 3)


def test_a_secret_that_is_the_name_of_a_field_is_masked_in_its_value() -> None:
    redacted = redact(ev.Warned(message="the message is lost"), ("message",))
    assert redacted == ev.Warned(message="the ******** is lost")
    assert vars(redacted).keys() == {"message"}


def test_an_event_without_secrets_is_unchanged() -> None:
    event = ev.RunFinished(status=Status.FAILED, exit_code=1)
    assert redact(event, SECRETS) is event
    assert redact(event, ()) is event


def test_secrets_are_masked_in_nested_values() -> None:
    value = {"a": ["s3cr3t", ("x", {"s3cr3t": 1})], "b": None}
    assert redact(value, SECRETS) == {"a": ["********", ("x", {"********": 1})], "b": None}


def test_secrets_are_masked_in_an_error() -> None:
    error = SetupError("its last line: s3cr3t", fix="look at s3cr3t")
    redact_error(error, SECRETS)
    assert str(error) == "its last line: ********\n  → look at ********"
