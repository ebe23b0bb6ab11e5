"""The options that say which hosts a spec's tasks run on, for every command that plans one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from tfcluster.cli.completion import files
from tfcluster.spec.host_choice import HostChoice

_OPTIONS = (
    click.option("-H", "--hosts", metavar="HOSTS", shell_complete=files,
                 help="Workers on these: gpu1,anna@gpu2:2 (slots), or a file of hosts."),
    click.option("--hostfile", metavar="FILE", shell_complete=files,
                 help="The same, a file: a host a line, user@host slots=2."),
    click.option("--include", multiple=True, metavar="HOST[:TASK]", help="Only these tasks."),
    click.option("--exclude", multiple=True, metavar="HOST[:TASK]", help="Without these tasks."),
)  # fmt: skip


def host_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds them; `command` gets one argument `at`, a HostChoice."""

    @functools.wraps(command)
    def with_choice(
        *args: Any,
        hosts: str | None,
        hostfile: str | None,
        include: tuple[str, ...],
        exclude: tuple[str, ...],
        **others: Any,
    ) -> Any:
        return command(*args, at=HostChoice(hosts, hostfile, include, exclude), **others)

    return functools.reduce(lambda made, option: option(made), reversed(_OPTIONS), with_choice)
