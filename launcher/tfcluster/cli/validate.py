"""`tfcluster validate`: whether a spec is right, and what it names is there."""

from __future__ import annotations

import click

from tfcluster.cli.completion import files


@click.command("validate")
@click.argument("spec", required=False, shell_complete=files)
@click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Override a field.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, problems included.")
def command(spec: str | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Check SPEC (./tfcluster.json; - = standard input): all mistakes, each with its cure.

    Files and folders that it names must be there. Exits with 0 when the spec is right, with 2 when
    it is not. Whether this machine can run it, `tfcluster doctor SPEC` tells.
    """
    from tfcluster.discovery import planning
    from tfcluster.errors import SpecError
    from tfcluster.spec.load import load_file
    from tfcluster.ui.terminal import Terminal

    terminal = Terminal()
    try:
        loaded = load_file(spec, sets=sets)
        planning.require_paths(loaded)
    except SpecError as error:
        if not as_json:
            raise
        problems = [
            {"place": one.place, "message": one.message, "cure": one.fix} for one in error.problems
        ]
        terminal.emit_json({"valid": False, "problems": problems})
        raise click.exceptions.Exit(error.exit_code) from None
    if as_json:
        name = str(loaded.path) if loaded.path else None
        tasks = loaded.spec.task_count
        terminal.emit_json(
            {"valid": True, "spec": name, "name": loaded.spec.name, "tasks": tasks, "problems": []}
        )
        return
    shown = spec or (loaded.path.name if loaded.path else "-")
    terminal.say(f"{shown}: right; {loaded.spec.name}, {loaded.spec.task_count} tasks")
