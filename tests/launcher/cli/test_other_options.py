"""Options of other tools, and options in the wrong place, get the line that works."""

from __future__ import annotations

import shlex

import click
import pytest

from tfcluster.cli.other_options import OTHER_OPTIONS, misplaced, options_of, rewrite
from tfcluster.cli.starting import run, up
from tfcluster.spec import overrides


@pytest.mark.parametrize("command", [up, run], ids=["up", "run"])
@pytest.mark.parametrize("option", OTHER_OPTIONS)
def test_the_proposed_line_is_one_that_the_command_reads(
    command: click.Command, option: str
) -> None:
    assert command.name is not None
    value = "A=1" if "-e" in option else "2"
    line = rewrite([command.name, option, value], command)
    if line is None:
        assert option in options_of(command)
        return
    _, name, *words = shlex.split(line)
    for text in command.make_context(name, words).params["sets"]:
        assert overrides.parse(text)
    assert option not in words


@pytest.mark.parametrize(
    ("args", "command", "line"),
    [
        (["up", "-n", "3", "s.json"], up, "tfcluster up --set cluster.worker=3 s.json"),
        (["up", "--gpus=1"], up, "tfcluster up --set resources.gpus=1"),
        (["up", "s.json", "--workers"], up, "tfcluster up s.json --set cluster.worker=VALUE"),
        (["up", "-f", "my spec.json", "-d"], up, "tfcluster up 'my spec.json' -d"),
        (["run", "--nproc-per-node=4", "a.py"], run, "tfcluster run -n 4 a.py"),
        (["run", "a.py", "--gpus", "1"], run, None),
        (["up", "--", "--gpus", "1"], up, None),
        (["up", "--verbose"], up, None),
    ],
)
def test_an_option_of_another_tool_is_written_as_here(
    args: list[str], command: click.Command, line: str | None
) -> None:
    assert rewrite(args, command) == line


@pytest.mark.parametrize(
    ("args", "code", "ours"),
    [
        (["-n", "4", "--epochs", "3", "-d"], "add_argument('--epochs')", ["-n", "4", "-d"]),
        (["-n", "4"], 'parser.add_argument("-n", "--number")', []),
        (["--python=3", "x"], "", ["--python=3"]),
        (["--hosts", "a"], "def main(hosts):", []),
        (["--dry-run"], "flags.DEFINE_bool('dry_run', False, '')", []),
        (["--help", "--lr", "1"], "", []),
        (["-n"], "", ["-n"]),
    ],
)
def test_options_after_the_script_are_ours_if_it_does_not_mention_them(
    args: list[str], code: str, ours: list[str]
) -> None:
    rest = [word for word in args if word not in ours]
    assert misplaced(args, run, code) == (ours, rest)
