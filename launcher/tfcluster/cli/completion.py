"""The shells' completion: click's own for zsh and fish, a script of ours for bash, and the words.

click's script for bash breaks words at a colon (``worker:1``), and needs bash 4.4 (macOS has 3.2).
Where a command has nothing to complete, the shell completes file names: a spec, a script, a RUN
given by its spec file. Completers never raise: a shell would print the error into the prompt.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Final

import click
from click.shell_completion import (
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    split_arg_string,
)

from tfcluster import kinds
from tfcluster.agent import foreign_json
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RUN_ID, RunPaths, home
from tfcluster.spec import JOBS
from tfcluster.spec.source import read_source
from tfcluster.ui import pages
from tfcluster.ui.terminal import Terminal

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

VARIABLE: Final = "_TFCLUSTER_COMPLETE"
"""Set by a shell's script to ``bash_complete`` and the like."""
_INSTALL_PATHS: Final = {
    "bash": "~/.local/share/bash-completion/completions/tfcluster",
    "zsh": '"${fpath[1]}/_tfcluster"',
    "fish": "~/.config/fish/completions/tfcluster.fish",
}
_MOST_RUNS: Final = 40
_CURSOR: Final = "\1"
_BASH: Final = """\
_tfcluster_completion() {
    local word
    COMPREPLY=()
    while IFS= read -r word; do
        COMPREPLY+=("$word")
    done < <(%(complete_var)s=bash_complete _TFCLUSTER_LINE="${COMP_LINE:0:COMP_POINT}" \\
        _TFCLUSTER_BREAKS="$COMP_WORDBREAKS" "${1/#\\~/$HOME}" 2>/dev/null)
}
complete -o default -o nosort -F _tfcluster_completion tfcluster 2>/dev/null ||
    complete -o default -F _tfcluster_completion tfcluster
"""


class _WithFiles(ShellComplete):
    """Completes file names where nothing else fits, and keeps the option of ``--task=wor``."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        items = super().get_completions(args, incomplete)
        option, sign, _ = incomplete.partition("=")
        if sign and option.startswith("--"):
            for item in items:
                item.value = f"{option}={item.value}"
        return items or [CompletionItem(incomplete, type="file")]


class _Bash(_WithFiles):
    """bash, which replaces only what stands behind the last character of `_TFCLUSTER_BREAKS`."""

    name: ClassVar[str] = "bash"
    source_template: ClassVar[str] = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        # The mark shows whether the last word has ended: it may have quotes, or a backslash.
        words = split_arg_string(os.environ["_TFCLUSTER_LINE"] + _CURSOR)
        return words[1:-1], words[-1].removesuffix(_CURSOR)

    def complete(self) -> str:
        args, incomplete = self.get_completion_args()
        breaks = set(os.environ.get("_TFCLUSTER_BREAKS", "")) & {":", "="}
        start = max((incomplete.rfind(character) for character in breaks), default=-1) + 1
        items = self.get_completions(args, incomplete)
        return "\n".join(item.value[start:] for item in items if item.type == "plain")


class _Zsh(_WithFiles, ZshComplete):
    pass


class _Fish(_WithFiles, FishComplete):
    pass


SHELLS: Final[dict[str, type[ShellComplete]]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


def answer(cli: click.Command, instruction: str) -> int:
    """Print what completes the command line, or nothing; return the exit code.

    `instruction`: ``bash_complete``, or ``bash_source`` for the script, as click has them.
    """
    shell, _, wish = instruction.partition("_")
    with contextlib.suppress(Exception):  # it would be shown in the middle of the user's prompt
        completion = SHELLS[shell](cli, {}, "tfcluster", VARIABLE)
        if text := completion.source() if wish == "source" else completion.complete():
            click.echo(text)
        return 0
    return 1


def completer(find: Callable[[click.Context], Iterable[str]]) -> Completer:
    """Return a `shell_complete` callback for the words that `find` yields."""

    @wraps(find)
    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            words = dict.fromkeys(find(context))
        except Exception:  # a damaged run, a broken spec
            return []
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]

    return complete


@completer
def run_names(context: click.Context) -> Iterator[str]:
    """Yield the names and the ids of runs, the newest first."""
    folders = _newest_runs()
    yield from (match["name"] for path in folders if (match := RUN_ID.fullmatch(path.name)))
    yield from (path.name for path in folders)


@completer
def live_runs(context: click.Context) -> Iterator[str]:
    """Yield the names and the ids of live runs."""
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
    params = context.params
    # Before an option without its value, click leaves the arguments unparsed.
    given = params.get("run") or params.get("spec") or next(iter(context.args), None)
    takes_spec = any(parameter.name == "spec" for parameter in context.command.params)
    if takes_spec and (given is None or os.path.isfile(given)):
        yield from _tasks_of_spec(given)
    else:
        yield from _tasks_of_run(given)


@completer
def backend_names(context: click.Context) -> Iterable[str]:
    """Return the values of ``runtime.backend``."""
    return (kinds.AUTO, *kinds.names())


@completer
def profile_names(context: click.Context) -> Iterable[str]:
    """Return the profiles of the user's defaults."""
    from tfcluster.spec import user_defaults

    return user_defaults.profile_names()


@completer
def page_names(context: click.Context) -> Iterable[str]:
    """Return the pages of the documentation."""
    return pages.titles()


def _newest_runs() -> list[Path]:
    """Return the folders of the newest runs, without reading what is in them."""
    runs = [(match["time"], path) for path in (home() / "runs").iterdir()
            if (match := RUN_ID.fullmatch(path.name))]  # fmt: skip
    return [path for _, path in sorted(runs, reverse=True)[:_MOST_RUNS]]


def _tasks_of_spec(spec: str | None) -> Iterator[str]:
    if spec == "-":
        return
    cluster = read_source(spec).document().value["cluster"]
    for job in JOBS:
        tasks = cluster.get(job) or 0
        yield from (f"{job}:{n}" for n in range(tasks if isinstance(tasks, int) else len(tasks)))


def _tasks_of_run(run: str | None) -> Iterable[str]:
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

    It completes commands, options, runs, tasks, templates, backends, profiles, and file names
    elsewhere. For the current session: eval "$(tfcluster completion bash)", or `tfcluster
    completion fish | source`.
    """
    cli, terminal = click.get_current_context().find_root().command, Terminal()
    terminal.out(SHELLS[shell](cli, {}, "tfcluster", VARIABLE).source())
    if terminal.stdout.is_tty:
        terminal.say(f"to install it: tfcluster completion {shell} > {_INSTALL_PATHS[shell]}")
