"""Options that several commands share: hosts, how a run is shown, and the job's arguments."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import click

from tfcluster.cli.completion import backend_names
from tfcluster.spec import HostChoice, LaunchOptions

_HOST_OPTIONS = (
    click.option("-H", "--hosts", metavar="HOSTS",
                 help="Run the workers on these hosts: gpu1,anna@gpu2:2 (2 slots), or a hostfile."),
    click.option("--hostfile", metavar="FILE",
                 help="File of hosts for the workers, one per line: user@host slots=2."),
    click.option("--include", multiple=True, metavar="HOST[:TASK]", help="Use only these tasks."),
    click.option("--exclude", multiple=True, metavar="HOST[:TASK]", help="Leave out these tasks."),
)  # fmt: skip
_WATCH_OPTIONS = (
    click.option("-d", "--detach", is_flag=True,
                 help="Return when all tasks run, or a scheduler has the run; print its id."),
    click.option("--json", "as_json", is_flag=True,
                 help="Write events to stdout, task output to stderr."),
    click.option("--collapse", is_flag=True,
                 help="Show identical lines of several tasks once."),
    click.option("--native-logs", is_flag=True,
                 help="Show TensorFlow's native start lines on a screen too."),
    click.option("--warm", is_flag=True,
                 help="Keep TensorFlow imported for the next run (runtime.warm_s)."),
    click.option("--tensorboard", is_flag=True,
                 help="Serve the run's curves in TensorBoard while it lives."),
    click.option("--no-gather", is_flag=True, help="Do not gather checkpoints."),
)  # fmt: skip
backend_option = click.option(
    "--backend",
    metavar="NAME",
    shell_complete=backend_names,
    help="Where tasks run (runtime.backend).",
)
_KEY = "tfcluster.job_args"
_REMOVED = {
    "--coordinator": "The coordinator of a run at Kubernetes is always a pod: leave the option out."
}
"""Option of earlier versions → what to do instead."""


@dataclass(frozen=True, slots=True)
class Display:
    """The user's choices of how a run is shown."""

    as_json: bool = False
    collapse: bool = False
    native: bool = False


def host_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the host options to `command`, which gets them as `hosts`, one HostChoice."""

    @functools.wraps(command)
    def with_choice(
        *args: Any,
        hosts: str | None,
        hostfile: str | None,
        include: tuple[str, ...],
        exclude: tuple[str, ...],
        **others: Any,
    ) -> Any:
        return command(*args, hosts=HostChoice(hosts, hostfile, include, exclude), **others)

    return functools.reduce(lambda made, option: option(made), reversed(_HOST_OPTIONS), with_choice)


def watch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a launch to `command`.

    It gets them as `options`, the LaunchOptions, and `display`.
    """

    @functools.wraps(command)
    def with_watch(
        *args: Any,
        detach: bool,
        as_json: bool,
        collapse: bool,
        native_logs: bool,
        warm: bool,
        tensorboard: bool,
        no_gather: bool,
        **others: Any,
    ) -> Any:
        options = LaunchOptions(
            detach=detach, gathers=not no_gather, warm=warm, tensorboard=tensorboard
        )
        display = Display(as_json, collapse, native_logs)
        return command(*args, options=options, display=display, **others)

    return functools.reduce(lambda made, option: option(made), reversed(_WATCH_OPTIONS), with_watch)


def chaos_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--chaos``; to be used below `watch_options`: it becomes part of its `options`."""

    @functools.wraps(command)
    def with_faults(
        *args: Any, chaos: tuple[str, ...], options: LaunchOptions, **others: Any
    ) -> Any:
        return command(*args, options=replace(options, chaos=chaos), **others)

    return click.option(
        "--chaos",
        multiple=True,
        metavar="FAULT",
        help="Inject a fault: 'kill worker:1 at step 50'; see `tfcluster help chaos`.",
    )(with_faults)


def skip_options(checked: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add options that skip the checks of what is `checked`, and the prepare step.

    To be used below `watch_options`: they become part of its `options`.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_skips(
            *args: Any, no_preflight: bool, no_prepare: bool, options: LaunchOptions, **others: Any
        ) -> Any:
            options = replace(options, runs_preflight=not no_preflight, prepares=not no_prepare)
            return command(*args, options=options, **others)

        preflight = click.option(
            "--no-preflight", is_flag=True, help=f"Skip the checks of {checked}."
        )
        return preflight(
            click.option("--no-prepare", is_flag=True, help="Skip job.prepare.")(with_skips)
        )

    return add


class WithJobArgs(click.Command):
    """A command whose line may end in ``-- ARGS…``, which `job_args` returns.

    click itself would read the first of them as SPEC.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[_KEY] = tuple(args[place + 1 :])
        try:
            return super().parse_args(ctx, args[:place])
        except click.NoSuchOption as error:
            message = f"{error.format_message()} The job's own arguments come after `--`."
            if removed := _REMOVED.get(error.option_name):
                message = f"{error.message} {removed}"
            elif scripts := [word for word in args[:place] if word.endswith(".py")]:
                start = args.index(scripts[0])
                line = shlex.join(["tfcluster", "run", *args[start:]])
                message = f"{error.message} To run a script: {line}"
            raise click.UsageError(message, ctx) from None

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGS...]"]


def job_args() -> tuple[str, ...]:
    """Return the arguments after ``--`` of the running command."""
    found: tuple[str, ...] = click.get_current_context().meta[_KEY]
    return found
