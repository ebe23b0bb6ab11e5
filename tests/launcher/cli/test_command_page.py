"""The page of the commands is up to date, and every command and option has a help text."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from tools.generated import command_page

ROOT = Path(__file__).parents[3]
COMMANDS = dict(command_page.commands())


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs/reference/commands.md").read_text()
    assert page == command_page.render(), "run: make generated"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_a_help_text(name: str) -> None:
    command = COMMANDS[name]
    silent = [p.opts for p in command.params if isinstance(p, click.Option) and not p.help]
    assert command.help
    assert not silent
