"""Secrets are recognised by name, left out of the stored spec, masked in events and errors."""

from __future__ import annotations

import pytest

from tfcluster.errors import SetupError, UsageError
from tfcluster.plans.environment import Layer, resolve
from tfcluster.plans.secrets import holds_secrets, is_secret, redact, redact_error, redact_spec
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status


@pytest.mark.parametrize(
    "name",
    [
        "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "DB_PASSWORD",
        "MYSQL_PWD_PASSWD", "apikey", "Client_Secret", "MLFLOW_TRACKING_PASSWORD", "TOKEN_2",
        "SSH_KEY_PASSPHRASE", "GITHUB_PAT", "BASIC_AUTH", "API_KEYS", "PASSWORDS",
    ],
)  # fmt: skip
def test_a_variable_with_the_name_of_a_secret_is_secret_by_default(name: str) -> None:
    assert is_secret(name, named=(), shown=())
    assert not is_secret(name, named=(), shown=(name,))
    assert is_secret(name, named=(name,), shown=(name,)), "job.secrets takes precedence"


@pytest.mark.parametrize(
    "name",
    [
        "SEED", "MAX_TOKENS", "TOKENIZERS_PARALLELISM", "KEYBOARD", "TF_COMPAT", "XPAT", "MONKEY",
        "PATH", "PYTHONPATH",
        "GOOGLE_APPLICATION_CREDENTIALS", "SSH_AUTH_SOCK", "AUTHOR", "TF_CPP_MIN_LOG_LEVEL",
    ],
)  # fmt: skip
def test_a_variable_with_an_ordinary_name_is_secret_only_if_listed(name: str) -> None:
    assert not is_secret(name, named=(), shown=())
    assert is_secret(name, named=(name,), shown=())


def test_a_variable_with_a_secret_name_is_hidden_in_any_layer() -> None:
    layers = [Layer("job.env", {"API_KEY": "a", "PAD_TOKEN": "b", "SEED": "1"})]
    found = resolve(layers, launcher={}, secrets=(), not_secret=("PAD_TOKEN",))
    assert {name: var.shown for name, var in found.items()} == {
        "API_KEY": "********", "PAD_TOKEN": "b", "SEED": "1",
    }  # fmt: skip


def test_secret_values_are_null_in_the_stored_spec() -> None:
    spec = {
        "cluster": {"worker": [{"address": "a:1", "env": {"HF_TOKEN": "x", "SEED": "1"}}, "b:1"]},
        "job": {"script": "a.py", "env": {"API_KEY": "x", "PAD_TOKEN": "y"}, "args": ["env"]},
        "runtime": {"hosts": {"*": {"env": {"DB_PASSWORD": "x"}, "python": "p"}}},
    }
    assert redact_spec(spec, shown=["PAD_TOKEN"]) == {
        "cluster": {"worker": [{"address": "a:1", "env": {"HF_TOKEN": None, "SEED": "1"}}, "b:1"]},
        "job": {"script": "a.py", "env": {"API_KEY": None, "PAD_TOKEN": "y"}, "args": ["env"]},
        "runtime": {"hosts": {"*": {"env": {"DB_PASSWORD": None}, "python": "p"}}},
    }
    assert holds_secrets(spec, shown=())
    assert not holds_secrets({"job": {"env": {"API_KEY": None, "SEED": "1"}}}, shown=())


def test_a_missing_secret_is_reported_with_its_export_command() -> None:
    with pytest.raises(UsageError, match="takes API_KEY from your environment") as caught:
        resolve([Layer("job.env", {"API_KEY": None})], launcher={}, secrets=())
    assert caught.value.fix == "export API_KEY=…"


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
