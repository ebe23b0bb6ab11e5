"""Environment variables have a precedence and a source, and gRPC bypasses proxies."""

from __future__ import annotations

import pytest

from tfcluster.errors import SpecError, UsageError
from tfcluster.plans.environment import (
    Layer,
    parse_env_file,
    proxy_guards,
    resolve,
)
from tfcluster.plans.plan import EnvVar


def test_a_later_layer_takes_precedence_and_is_the_source() -> None:
    layers = [Layer("job.env", {"A": "1", "B": "1"}), Layer("task", {"B": "2"})]
    found = resolve(layers, launcher={}, secrets=())
    assert found == {"A": EnvVar("A", "1", "job.env"), "B": EnvVar("B", "2", "task")}


def test_null_means_the_value_of_the_launchers_environment() -> None:
    found = resolve([Layer("job.env", {"A": None})], launcher={"A": "x"}, secrets=())
    assert found["A"] == EnvVar("A", "x", "job.env, the launcher's value", from_launcher=True)


def test_null_for_an_unset_variable_is_refused() -> None:
    with pytest.raises(UsageError, match=r"job\.env takes A .* not set there") as caught:
        resolve([Layer("job.env", {"A": None})], launcher={}, secrets=())
    assert caught.value.exit_code == 2
    assert caught.value.fix == "export A=…, or -e A=… on the command line"


def test_the_value_of_a_secret_is_not_shown() -> None:
    found = resolve([Layer("job.secrets", {"KEY": None})], launcher={"KEY": "s3"}, secrets={"KEY"})
    assert found["KEY"].secret
    assert "s3" not in found["KEY"].shown


def test_an_env_file_may_have_comments_quotes_and_export() -> None:
    text = "# comment\n\nexport A=1\nB = 'two words'\nC=\"x=y\"\nD=\n"
    assert parse_env_file(text, name="e") == (
        ("A", "1"),
        ("B", "two words"),
        ("C", "x=y"),
        ("D", ""),
    )


def test_every_malformed_line_of_an_env_file_is_reported() -> None:
    with pytest.raises(SpecError) as caught:
        parse_env_file("A=1\nwhat\n2B=3\n", name="my.env")
    assert [p.place for p in caught.value.problems] == ["my.env:2", "my.env:3"]


def test_no_variables_are_set_without_a_proxy() -> None:
    assert proxy_guards({}, {"no_proxy": "x"}, ["10.0.0.1"]) == {}


def test_grpc_bypasses_a_proxy() -> None:
    inherited = {"https_proxy": "http://p:3128", "no_proxy": "corp, 10.0.0.1"}
    assert proxy_guards({}, inherited, ["10.0.0.2", "10.0.0.1"]) == {
        "no_proxy": "corp,10.0.0.1,10.0.0.2",
        "no_grpc_proxy": "corp,10.0.0.1,10.0.0.2",
        "TF_GRPC_DEFAULT_OPTIONS": "grpc.enable_http_proxy=0",
    }


def test_other_grpc_options_of_the_user_are_kept() -> None:
    found = {
        "grpc_proxy": EnvVar("grpc_proxy", "p:1", "job.env"),
        "TF_GRPC_DEFAULT_OPTIONS": EnvVar(
            "TF_GRPC_DEFAULT_OPTIONS",
            "grpc.keepalive_time_ms=30000,grpc.enable_http_proxy=1",
            "job.env",
        ),
    }
    guards = proxy_guards(found, {}, ["h"])
    assert guards["TF_GRPC_DEFAULT_OPTIONS"] == (
        "grpc.keepalive_time_ms=30000,grpc.enable_http_proxy=0"
    )
