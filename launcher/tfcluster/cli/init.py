"""`tfcluster init`: write a first spec, and beside it the schema for editors."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import click

from tfcluster.agent.error_text import reason_of
from tfcluster.cli.completion import files
from tfcluster.errors import UsageError
from tfcluster.spec import published_schema
from tfcluster.ui.terminal import Terminal

SCHEMA_FOLDER = ".tfcluster"
FIRST_TEMPLATE = "localhost-2w"


@click.command("init")
@click.argument("file", required=False, default="tfcluster.json", shell_complete=files)
@click.option("--template", metavar="NAME", default=FIRST_TEMPLATE, show_default=True,
              help="The template to start from.")  # fmt: skip
@click.option("--list", "list_only", is_flag=True, help="List the templates.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print a JSON array.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
def command(file: str, template: str, list_only: bool, as_json: bool, force: bool) -> None:
    """Write FILE (default: tfcluster.json) from a template, ready to be edited.

    The schema is written to .tfcluster/spec-v1.schema.json beside it, so that editors complete
    and explain the fields without a network.
    """
    terminal = Terminal()
    if list_only:
        found = [(name, about(path)) for name, path in templates().items()]
        if as_json:
            terminal.emit_json([{"name": name, "about": about} for name, about in found])
        else:
            width = max(len(name) for name, _ in found)
            terminal.out("\n".join(f"{name:{width}}  {about}" for name, about in found))
        return
    path = Path(os.path.expanduser(file))
    if path.suffix not in (".json", ".jsonc"):
        fix = f"write {path.stem}.json"
        raise UsageError(f"FILE: {file!r} must end in .json or .jsonc", fix=fix)
    write(path, find(template), force=force)
    shown = "" if path == Path("tfcluster.json") else f" {file}"
    terminal.say(f"wrote {file}; next: tfcluster up{shown}")


def templates() -> dict[str, Path]:
    """Return name → file of the templates, in the wheel or else in the source tree.

    Raises UsageError for a broken installation.
    """
    package = Path(__file__).parents[1]
    for folder in (package / "templates", package.parents[1] / "cluster_specs"):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.json"))}
    fix = "reinstall it: pip install --force-reinstall tfcluster"
    raise UsageError("the templates are missing from this installation", fix=fix)


def about(template: Path) -> str:
    """Return a template's one-line description, from its key ``x-about``."""
    return str(json.loads(template.read_text(encoding="utf-8")).get("x-about", ""))


def find(name: str) -> Path:
    """Return the template called `name`; raises UsageError, with all names, for an unknown one."""
    known = templates()
    if found := known.get(name.removesuffix(".json")):
        return found
    raise UsageError(f"there is no template {name!r}", fix=f"use one of {', '.join(known)}")


def write(path: Path, template: Path, *, force: bool) -> None:
    """Write the spec and its schema; raise UsageError if a file exists or cannot be written."""
    schema = path.parent / SCHEMA_FOLDER / published_schema.SCHEMA_FILE
    try:
        schema.parent.mkdir(parents=True, exist_ok=True)
        schema.write_text(published_schema.text(), encoding="utf-8")
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(adapt(template.read_text(encoding="utf-8")))
    except FileExistsError as error:
        if error.filename != str(path):
            raise UsageError(f"{error.filename} is not a folder") from None
        fix = "name another FILE, or overwrite it with --force"
        raise UsageError(f"{path} already exists", fix=fix) from None
    except OSError as error:
        reason = reason_of(error)
        raise UsageError(f"cannot write {error.filename or path}: {reason}") from None


def adapt(text: str) -> str:
    """Return a template's text for a new spec.

    Adds the reference to the schema, and removes the template's name, its description and a Python
    given relative to the template's folder.
    """
    template_only_fields = (
        r'"(?:\$schema|name|x-about)": "[^"\n]*"|"runtime": {"python": "\.\.[^"\n]*"[^}\n]*}'
    )
    kept = re.sub(rf"^  (?:{template_only_fields}),\n", "", text, flags=re.MULTILINE)
    return kept.replace(
        "{\n", f'{{\n  "$schema": "{SCHEMA_FOLDER}/{published_schema.SCHEMA_FILE}",\n', 1
    )
