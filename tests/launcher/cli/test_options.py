"""Options mean the same with each release of Click that tfcluster may be installed with."""

from __future__ import annotations

import click
import pytest

from tfcluster.cli.main import COMMANDS, cli
from tfcluster.cli.starting import up


@pytest.mark.parametrize(
    ("options", "off"),
    [
        ([], set()),
        (["--no-gather"], {"gathers"}),
        (["--no-preflight", "--no-prepare"], {"runs_preflight", "prepares"}),
    ],
)
def test_a_run_gathers_checks_and_prepares_unless_that_is_switched_off(
    options: list[str], off: set[str]
) -> None:
    given = up.make_context("up", [*options, "spec.json"]).params
    switches = {"gathers", "runs_preflight", "prepares"}
    assert {name for name in switches if given[name] is False} == off
    assert {name for name in switches if given[name] is True} == switches - off


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_needs_the_flag_value_false(name: str) -> None:
    """Click 8.3.0 to 8.3.2 give such an option this value although it is not on the line."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    flags = [each for each in command.params if isinstance(each, click.Option) and each.is_flag]
    assert [flag.name for flag in flags if flag.flag_value is False] == []
