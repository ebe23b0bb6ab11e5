"""Options that several commands share: hosts, how a run is shown, the file that gets the output.

Also the job's arguments, ages such as ``30d``, and moments such as ``14:30``.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from datetime import time as clock_time
from pathlib import Path
from typing import Any

import click

from tfcluster.agent.error_text import reason_of
from tfcluster.cli.completion import backend_names, profile_names
from tfcluster.cli.other_options import OTHER_OPTIONS, misplaced
from tfcluster.errors import UsageError
from tfcluster.spec import NO_CHOICE, PYTHON_ENDINGS, HostChoice, LaunchOptions, PlanOptions
from tfcluster.ui.terminal import Terminal

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_KEY = "tfcluster.job_args"
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True, slots=True)
class Display:
    """The user's choices of how a run is shown."""

    as_json: bool = False
    collapse: bool = False
    native_logs: bool = False


def bundled(options: Sequence[Decorator], /, **makers: Callable[..., Any]) -> Decorator:
    """Return a decorator that adds `options` to a command, which gets a few values made of them.

    `makers`: a parameter of the command → the function that returns its value. That function takes
    the options, and the earlier values, that have the names of its parameters.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_bundles(**given: Any) -> Any:
            for name, make in makers.items():
                wanted = [key for key in inspect.signature(make).parameters if key in given]
                given[name] = make(**{key: given.pop(key) for key in wanted})
            return command(**given)

        decorated: Callable[..., Any] = with_bundles
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return add


def _off_switch(flag: str, parameter: str, help_text: str) -> Decorator:
    """Return an option that makes `parameter` False, which is True without it.

    Click 8.3.0 to 8.3.2 make it False either way for an option with ``flag_value=False``.
    """
    return click.option(
        flag, parameter, is_flag=True, callback=lambda ctx, option, on: not on, help=help_text
    )


def _absolute(context: object, option: object, path: str | None) -> str | None:
    return None if path is None else os.path.abspath(os.path.expanduser(path))


set_option = click.option(
    "--set", "sets", multiple=True, metavar="A.B=C", help="Set a field of the spec."
)
profile_option = click.option(
    "--profile",
    metavar="NAME",
    shell_complete=profile_names,
    help="Profile of your defaults (~/.config/tfcluster/config.yaml).",
)
python_option = click.option("--python", metavar="PATH", help="Python that runs the tasks.")
ENV_OPTIONS = (
    click.option("-e", "--env", "variables", multiple=True, metavar="NAME[=VALUE]",
                 help="Set a variable of all tasks; without =VALUE, to the value it has here."),
    click.option("--env-file", metavar="FILE", callback=_absolute,
                 help="Take variables from a file of NAME=VALUE lines (job.env_file)."),
)  # fmt: skip
on_end_option = click.option(
    "--on-end", metavar="CMD|URL",
    help="Run CMD, or POST to an https URL, when the run has ended (supervision.on_end).",
)  # fmt: skip
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show the plan, as `plan` does, and start nothing."
)
backend_option = click.option(
    "--backend",
    metavar="NAME",
    shell_complete=backend_names,
    help="Where tasks run (runtime.backend).",
)
chaos_option = click.option(
    "--chaos", multiple=True, metavar="FAULT",
    help="Inject a fault: 'kill worker:1 at step 50'; see `tfcluster help chaos`.",
)  # fmt: skip
HOST_OPTIONS = (
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
                 help="Show TensorFlow's native start lines too."),
    click.option("--warm", is_flag=True,
                 help="Keep TensorFlow imported for the next run (runtime.warm_s)."),
    click.option("--tensorboard", is_flag=True,
                 help="Serve the run's curves in TensorBoard while it lives."),
    click.option("--metrics-file", metavar="FILE.prom", callback=_absolute,
                 help="Keep the run's state in FILE for Prometheus (node_exporter)."),
    _off_switch("--no-gather", "gathers", "Do not gather checkpoints."),
)  # fmt: skip


def _plan_options(
    sets: tuple[str, ...],
    python: str | None,
    profile: str | None,
    hosts: HostChoice = NO_CHOICE,
    backend: str | None = None,
    name: str | None = None,
    variables: tuple[str, ...] = (),
    env_file: str | None = None,
    on_end: str | None = None,
) -> PlanOptions:
    fields = {
        "--name": ("name", name),
        "--backend": ("runtime.backend", backend),
        "--env-file": ("job.env_file", env_file),
        "--on-end": ("supervision.on_end", on_end),
    }
    env = _read_variables(variables)
    return PlanOptions(sets, fields, hosts, python, job_args(), env, profile)


def _read_variables(variables: Sequence[str]) -> dict[str, str | None]:
    """Return the variables of ``-e``.

    A run folder never holds the value of a secret one: where the run is planned again, in a job of
    a scheduler, the value comes from the environment, as if it had been exported.
    """
    from tfcluster.plans.secrets import is_secret

    split = (text.partition("=") for text in variables)
    env = {name: value if equals else None for name, equals, value in split}
    for name, value in env.items():
        if value is not None and is_secret(name, named=(), shown=()):
            os.environ[name] = value
    return env


def plan_options(*more: Decorator) -> Decorator:
    """Return the decorator of a command that plans a spec; `more`: its options besides the least.

    The command gets them and the job's arguments as `changes`, the PlanOptions.
    """
    makers: dict[str, Callable[..., Any]] = {"changes": _plan_options}
    if HOST_OPTIONS[0] in more:
        makers = {"hosts": HostChoice, **makers}
    return bundled((set_option, profile_option, *more, python_option), **makers)


def launch_options(*more: Decorator) -> Decorator:
    """Return the decorator of a command that launches a run; `more`: its further options.

    The command gets them as `options`, the LaunchOptions, and `display`.
    """
    return bundled((*_WATCH_OPTIONS, *more), options=LaunchOptions, display=Display)


def skip_options(checked: str) -> tuple[Decorator, Decorator]:
    """Return options that skip the checks of what is `checked`, and the prepare step."""
    return (
        _off_switch("--no-preflight", "runs_preflight", f"Skip the checks of {checked}."),
        _off_switch("--no-prepare", "prepares", "Skip job.prepare."),
    )


class WithJobArgs(click.Command):
    """A command whose line may end in ``-- ARGS…``, which `job_args` returns.

    click itself would read the first of them as SPEC.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[_KEY] = tuple(args[end + 1 :])
        try:
            return super().parse_args(ctx, args[:end])
        except click.NoSuchOption as error:
            scripts = [word for word in args[:end] if word.endswith(PYTHON_ENDINGS)]
            if error.option_name in OTHER_OPTIONS and not scripts:
                raise
            message = f"{error.format_message()} The job's own arguments come after `--`."
            if scripts:
                start, root = args.index(scripts[0]), ctx.find_root().command
                run = root.get_command(ctx, "run") if isinstance(root, click.Group) else None
                ours, rest = misplaced(args[start + 1 :], run or self, code="")
                line = shlex.join(["tfcluster", "run", *ours, scripts[0], *rest])
                message = f"{error.message} To run a script: {line}"
            raise click.UsageError(message, ctx) from None

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGS...]"]


def job_args() -> tuple[str, ...]:
    """Return the arguments after ``--`` of the running command."""
    args: tuple[str, ...] = click.get_current_context().meta.get(_KEY, ())
    return args


def write_output(
    page: str,
    target: str,
    *,
    example: str = "FILE.html",
    announce: Callable[[str], object] | None = None,
) -> None:
    """Write a page to the file `target` and print its path; to stdout if `target` is ``-``.

    `example`: another file, for the message of a file that cannot be written; `announce` gets the
    path instead of stdout.
    """
    terminal, data = Terminal(), page.encode(errors="replace")  # JSON may hold lone surrogates
    if target == "-":
        terminal.out_lines(data)
        return
    try:
        Path(target).write_bytes(data)
    except OSError as error:
        fix = f"name another file: -o {example}"
        raise UsageError(f"{target} cannot be written: {reason_of(error)}", fix=fix) from error
    (announce or terminal.out)(target)


def read_age(text: str) -> float | None:
    """Return an age in seconds (``30d`` → 2592000.0), or None if `text` is not an age."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    return float(match[1]) * _UNITS_S[match[2]] if match else None


def parse_moment(text: str, now: float | None = None) -> float:
    """Return the Unix time of ``5m`` (ago), ``14:30`` (the latest), ``2026-09-14 14:30``.

    Raises UsageError if `text` is none of these.
    """
    moment = datetime.now() if now is None else datetime.fromtimestamp(now)
    if (age_s := read_age(text)) is not None:
        return moment.timestamp() - age_s
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):  # no date, or one before the years that a clock knows
        pass
    try:
        clock = clock_time.fromisoformat(text.strip())
        today = moment if clock.tzinfo is None else moment.astimezone(clock.tzinfo)
        latest = datetime.combine(today, clock)
    except ValueError as error:
        raise UsageError(
            f"--since: {text!r} is no time",
            fix="write how long ago (90s, 5m, 2h, 1d), a time (14:30), or both date and time"
            " ('2026-09-14 14:30')",
        ) from error
    return (latest if latest <= today else latest - timedelta(days=1)).timestamp()
