"""The pages of the commands are up to date, and every command and option has a help text."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from tools.generated import command_page, man_page

ROOT = Path(__file__).parents[3]
COMMANDS = dict(command_page.commands())


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs/reference/commands.md").read_text()
    assert page == command_page.render(), "run: make generated"


def test_the_man_page_is_up_to_date_and_has_only_requests_of_man() -> None:
    page = (ROOT / "launcher/man/tfcluster.1").read_text()
    assert page == man_page.render(), "run: make generated"
    assert page.isascii(), "roff reads other characters only through preconv"
    requests = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
    assert requests == {'.\\"', ".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".I", ".RB", ".RI"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_a_help_text(name: str) -> None:
    command = COMMANDS[name]
    silent = [p.opts for p in command.params if isinstance(p, click.Option) and not p.help]
    assert command.help
    assert not silent
