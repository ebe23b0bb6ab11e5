"""`tfcluster completion`: the shells' scripts, and what commands complete: runs, tasks, templates.

Where a command has nothing to complete, the shell completes file names: a spec, a script, a RUN
given by its spec file. Completers never raise: a shell would print the error into the prompt.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

_INSTALL_PATHS: Final = {
    "bash": "~/.local/share/bash-completion/completions/tfcluster",
    "zsh": '"${fpath[1]}/_tfcluster"',
    "fish": "~/.config/fish/completions/tfcluster.fish",
}
_MOST_RUNS: Final = 40


def completer(find: Callable[[click.Context], Iterable[str]]) -> Completer:
    """Return a `shell_complete` callback for the words that `find` yields."""

    @wraps(find)
    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # slow; a command that runs needs none

        try:
            words = dict.fromkeys(find(context))
        except Exception:  # a damaged run, a broken spec
            return []
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]

    return complete


@completer
def files(context: click.Context) -> Iterable[str]:
    """Complete nothing, so that the shell completes file names."""
    return ()


@completer
def run_names(context: click.Context) -> Iterator[str]:
    """Yield the names and the ids of runs, the newest first."""
    from tfcluster.rundir.paths import RUN_ID

    folders = _newest_runs()
    yield from (match["name"] for path in folders if (match := RUN_ID.fullmatch(path.name)))
    yield from (path.name for path in folders)


@completer
def live_runs(context: click.Context) -> Iterator[str]:
    """Yield the names and the ids of live runs."""
    from tfcluster.rundir import registry
    from tfcluster.rundir.paths import RunPaths

    live = []
    for path in _newest_runs():
        try:
            state = registry.load(RunPaths(path))
        except registry.DamagedRunError:
            continue
        if registry.is_open(state):
            live.append(state)
    yield from (state.name for state in live)
    yield from (state.run for state in live)


@completer
def task_names(context: click.Context) -> Iterator[str]:
    """Yield the tasks of the run or the spec that the command line names, or of its default."""
    params, words = context.params, [*(context.obj or ())]
    if words and words[-1].startswith("-"):  # click drops all arguments if the last has no value
        rest = words[words.index(context.info_name) + 1 : -1]
        params = context.command.make_context("", rest, resilient_parsing=True).params
    given = params.get("run") or params.get("spec")
    takes_spec = any(parameter.name == "spec" for parameter in context.command.params)
    if takes_spec and (given is None or os.path.isfile(given)):
        yield from _tasks_of_spec(given)
    else:
        yield from _tasks_of_run(given)


@completer
def backend_names(context: click.Context) -> Iterable[str]:
    """Return the values of ``runtime.backend``."""
    from tfcluster import kinds

    return (kinds.AUTO, *kinds.REGISTRY)


@completer
def page_names(context: click.Context) -> Iterable[str]:
    """Return the pages of the documentation."""
    from tfcluster.ui import pages

    return pages.titles()


def _newest_runs() -> list[Path]:
    """Return the folders of the newest runs, without reading what is in them."""
    from tfcluster.rundir.paths import RUN_ID, home

    found = [(match["time"], path) for path in (home() / "runs").iterdir()
             if (match := RUN_ID.fullmatch(path.name))]  # fmt: skip
    return [path for _, path in sorted(found, reverse=True)[:_MOST_RUNS]]


def _tasks_of_spec(spec: str | None) -> Iterator[str]:
    from tfcluster.spec import JOBS
    from tfcluster.spec.source import read_source

    if spec == "-":
        return
    cluster = read_source(spec).document().value["cluster"]
    for job in JOBS:
        tasks = cluster.get(job) or 0
        yield from (f"{job}:{n}" for n in range(tasks if isinstance(tasks, int) else len(tasks)))


def _tasks_of_run(run: str | None) -> Iterable[str]:
    from tfcluster.agent import foreign_json
    from tfcluster.rundir.paths import RUN_ID, RunPaths

    for path in _newest_runs():
        match = RUN_ID.fullmatch(path.name)
        if run in (None, path.name, path.name[-4:], match and match["name"]):
            state: dict[str, Any] = foreign_json.read_json_object(RunPaths(path).state)
            return [task["task"] for task in state["tasks"]]
    return ()


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_INSTALL_PATHS)))
def command(shell: str) -> None:
    """Print the completion script of SHELL.

    It completes commands, options, runs, tasks, templates, backends, and file names elsewhere. For
    the current session: eval "$(tfcluster completion bash)", or `tfcluster completion fish |
    source`.
    """
    from tfcluster.cli.shells import SHELLS
    from tfcluster.ui.terminal import Terminal

    terminal = Terminal()
    terminal.out(SHELLS[shell].source_template)
    if terminal.stdout.is_tty:
        terminal.say(f"to install it: tfcluster completion {shell} > {_INSTALL_PATHS[shell]}")
