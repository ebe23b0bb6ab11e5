"""The options of every command that starts a run and may stay with it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

_OPTIONS = (
    click.option("-d", "--detach", is_flag=True,
                 help="Return when all tasks run; stdout is the run's id."),
    click.option("--json", "as_json", is_flag=True, help="Events to stdout, lines to stderr."),
    click.option("--collapse", is_flag=True, help="Show equal lines of several tasks once."),
    click.option("--warm", is_flag=True,
                 help="Keep what is imported for the next run (runtime.warm_s)."),
    click.option("--no-gather", is_flag=True, help="Gather no checkpoints."),
)  # fmt: skip


def watch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds them; `command` gets one argument `watch`, fields of `launching.Options`."""

    @functools.wraps(command)
    def with_watch(
        *args: Any,
        detach: bool,
        as_json: bool,
        collapse: bool,
        warm: bool,
        no_gather: bool,
        **others: Any,
    ) -> Any:
        watch = {"detach": detach, "as_json": as_json, "collapse": collapse, "warm": warm}
        return command(*args, watch={**watch, "gathers": not no_gather}, **others)

    return functools.reduce(lambda made, option: option(made), reversed(_OPTIONS), with_watch)
