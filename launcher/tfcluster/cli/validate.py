"""`tfcluster validate`: check a spec, and that the files and folders it names exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tfcluster.errors import TfclusterError


@click.command("validate")
@click.argument("spec", required=False)
@click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Override a field.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with all problems.")
def command(spec: str | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Check SPEC (./tfcluster.json; - = standard input); report every problem with a fix.

    Files, folders and variables that SPEC names must exist. Exit codes, those of `plan`: 0 the spec
    is OK, 2 it is not, 3 the tasks' Python does not work. `tfcluster doctor SPEC` checks that this
    machine and the hosts can run it.
    """
    from tfcluster.discovery import planning
    from tfcluster.errors import TfclusterError
    from tfcluster.ui.formats import plural
    from tfcluster.ui.terminal import Terminal

    terminal = Terminal()
    try:
        loaded = planning.load_spec(spec, sets=sets)
        planning.plan_spec(loaded)
    except TfclusterError as error:
        if not as_json:
            raise
        terminal.emit_json({"valid": False, "problems": _problems_of(error, spec or ".")})
        raise click.exceptions.Exit(error.exit_code) from None
    if as_json:
        name = str(loaded.path) if loaded.path else None
        tasks = loaded.spec.task_count
        terminal.emit_json(
            {"valid": True, "spec": name, "name": loaded.spec.name, "tasks": tasks, "problems": []}
        )
        return
    shown = spec or (loaded.path.name if loaded.path else "-")
    size = plural(loaded.spec.task_count, "task")
    terminal.say(f"{shown}: OK; {loaded.spec.name}, {size}")


def _problems_of(error: TfclusterError, place: str) -> list[dict[str, str]]:
    """Return the problems for JSON; an error that is about no line of the spec is at `place`."""
    from tfcluster.errors import Problem, SpecError

    alone = [Problem(place, error.message, error.fix)]
    problems = error.problems if isinstance(error, SpecError) else alone
    return [{"place": one.place, "message": one.message, "cure": one.fix} for one in problems]
