"""Secret variables are recognised by name, and left out of the stored spec."""

from __future__ import annotations

import pytest

from tfcluster.errors import UsageError
from tfcluster.plans.environment import Layer, resolve
from tfcluster.plans.secrets import holds_secrets, is_secret, redact_spec


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
