"""`tfcluster init`: write a first spec, and beside it the schema for editors."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tfcluster.agent.error_text import reason_of
from tfcluster.cli.completion import completer
from tfcluster.errors import UsageError, join_first, similar_file
from tfcluster.plans.script_analysis import Code
from tfcluster.spec import (
    NOTEBOOK,
    PYTHON_ENDINGS,
    SPEC_NAMES,
    published_schema,
    run_name,
    yaml_text,
)
from tfcluster.spec.templates import templates
from tfcluster.ui.formats import plural
from tfcluster.ui.terminal import Terminal

SCHEMA_FOLDER = ".tfcluster"
FIRST_TEMPLATE = "localhost-2w"
_SCHEMA = f"{SCHEMA_FOLDER}/{published_schema.SCHEMA_FILE}"
_MAX_FILES = 200
"""Limit of the Python files that are read to find the scripts among them."""
_TRAINS = {"tensorflow", "keras", "tf_keras", "keras_tuner"}


@click.command("init")
@click.argument("file", required=False)
@click.option("--script", metavar="SCRIPT",
              help="Write a spec that runs SCRIPT, or a notebook.")  # fmt: skip
@click.option("--template", metavar="NAME", shell_complete=completer(lambda _: templates()),
              help=f"Start from a template (if no script is found: {FIRST_TEMPLATE}).")  # fmt: skip
@click.option("--list", "list_only", is_flag=True, help="List the templates.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print a JSON array.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
def command(
    file: str | None,
    script: str | None,
    template: str | None,
    list_only: bool,
    as_json: bool,
    force: bool,
) -> None:
    """Write FILE (default: tfcluster.json) for a training script, ready to be edited.

    FILE may end in .json, .jsonc, .yaml or .yml. Without --script and --template, the
    training script in the current folder is used; on a terminal, init asks first. A folder without
    one gets an example to start from.

    The schema is written to .tfcluster/spec-v1.schema.json beside FILE, so that editors complete
    and explain the fields without a network.
    """
    terminal = Terminal()
    if list_only:
        known = [{"name": name, "about": about(path)} for name, path in templates().items()]
        width = max(len(template["name"]) for template in known)
        if as_json:
            terminal.emit_json(known)
        else:
            terminal.out("\n".join(f"{each['name']:{width}}  {each['about']}" for each in known))
        return
    path = _target(file, force=force)
    if script is not None and template is not None:
        raise UsageError("--script and --template exclude each other", fix="leave one of them out")
    if script is None and template is None:
        script = _choose_script(terminal)
    runs = ""
    if script is not None:
        spec = _spec_of(_existing(script), path)
        text = format_spec(spec, path.suffix)
        tasks = [plural(count, job) for job, count in spec["cluster"].items()]
        runs = f", which runs {script} as {', '.join(tasks)}"
    else:
        text = adapt(find(template or FIRST_TEMPLATE).read_text(encoding="utf-8"))
        if path.suffix not in (".json", ".jsonc"):
            text = format_spec(json.loads(text), path.suffix)
    write(path, text, force=force)
    shown = "" if file is None else f" {shlex.quote(file)}"
    terminal.say(f"wrote {path}{runs}; next: tfcluster up{shown}")


def _target(file: str | None, *, force: bool) -> Path:
    """Return the path of FILE; raises UsageError for one that is not a spec's."""
    if file is None:
        present = [name for name in SPEC_NAMES if os.path.exists(name)]
        if present and not force:
            fix = "name another FILE, or overwrite it with --force"
            raise UsageError(f"{present[0]} already exists", fix=fix)
        return Path(present[0] if present else SPEC_NAMES[0])
    path = Path(os.path.expanduser(file))
    if path.suffix in PYTHON_ENDINGS:
        fix = f"tfcluster init --script {shlex.quote(file)}"
        raise UsageError(f"FILE: {file!r} is a program, not the spec to write", fix=fix)
    endings = [Path(name).suffix for name in SPEC_NAMES]
    if path.suffix not in endings:
        message = f"FILE: {file!r} must end in {join_first(endings)}"
        raise UsageError(message, fix=f"write {path.stem}.json")
    return path


def _existing(script: str) -> Path:
    path = Path(os.path.expanduser(script))
    if path.is_file():
        return path
    near = similar_file(path.name, _python_files(path.parent))
    fix = f"did you mean {path.parent / near}?" if near else "check the path"
    raise UsageError(f"there is no script {script}", fix=fix)


def _choose_script(terminal: Terminal) -> str | None:
    """Return the script to write a spec for, or None for the template.

    On a terminal the user chooses. Raises UsageError without one, if there are several.
    """
    names = training_scripts(Path())
    if not names or not terminal.can_ask:
        if len(names) > 1:
            fix = f"name one: tfcluster init --script {shlex.quote(names[0])}"
            fix += f"\n  → or start from an example: tfcluster init --template {FIRST_TEMPLATE}"
            raise UsageError(f"this folder has several scripts: {join_first(names)}", fix=fix)
        return names[0] if names else None
    if len(names) == 1:
        ask = f"Write a spec for {names[0]}? (n: an example instead)"
        return names[0] if click.confirm(ask, default=True, err=True) else None
    rows = [*names, f"none of them: an example ({FIRST_TEMPLATE})"]
    terminal.say("\n".join(f"  {number}  {row}" for number, row in enumerate(rows, 1)))
    numbers = click.IntRange(1, len(rows))
    number = click.prompt("Write a spec for", type=numbers, default=1, err=True)
    return names[number - 1] if number <= len(names) else None


def training_scripts(folder: Path) -> list[str]:
    """Return the names of the Python files in `folder` that train: those called train first.

    They import TensorFlow or Keras, or are called ``train…``. Tests and modules that another file
    imports are left out, and so are notebooks where there is a script.
    """
    trains, imported = list[str](), set[str]()
    for name in _python_files(folder)[:_MAX_FILES]:
        try:
            code = Code.of_file(name, (folder / name).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
        imported |= code.imports
        packages = {module.partition(".")[0] for module in code.imports}
        if packages & _TRAINS or name.startswith("train"):
            trains.append(name)
    scripts = [name for name in trains if not name.endswith(NOTEBOOK)] or trains
    programs = [name for name in scripts if name.removesuffix(".py") not in imported]
    return sorted(programs or scripts, key=lambda name: (not name.startswith("train"), name))


def _python_files(folder: Path) -> list[str]:
    ignored = re.compile(r"test_.*|.*_test|conftest|setup|__.*__")
    try:
        names = sorted(path.name for path in folder.iterdir() if path.suffix in PYTHON_ENDINGS)
    except OSError:
        return []
    return [name for name in names if not ignored.fullmatch(name.removesuffix(".py"))]


def _spec_of(script: Path, spec: Path) -> dict[str, Any]:
    """Return a spec in the file `spec` that runs `script`, with two workers.

    The workdir is the current folder, as for `tfcluster run`, or the folder of a script outside it.
    """
    workdir, start = Path.cwd(), script.resolve()
    if not start.is_relative_to(workdir.resolve()):
        workdir = start.parent
    below = os.path.relpath(workdir, spec.absolute().parent)
    cluster, kind = _cluster_for(script)
    job = {**kind, "script": os.path.relpath(start, workdir.resolve()), "args": []}
    return {
        "$schema": _SCHEMA,
        "version": 1,
        "name": run_name(script.stem),
        "cluster": cluster,
        "job": job if below == "." else {"workdir": below, **job},
    }


def _cluster_for(script: Path) -> tuple[dict[str, int], dict[str, str]]:
    """Return the cluster that a script needs, and its ``job.kind`` if it is not the default."""
    text = script.read_text(encoding="utf-8", errors="replace")
    if Code.of_file(script.name, text).searches:
        return {"chief": 1, "worker": 2}, {"kind": "tuner"}
    if "ParameterServerStrategy" in text:
        return {"chief": 1, "worker": 2, "ps": 1}, {}
    return {"worker": 2}, {}


def format_spec(spec: Mapping[str, Any], ending: str) -> str:
    """Return the text of a spec file; YAML names the schema in a comment."""
    if ending in (".json", ".jsonc"):
        lines = (
            f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
            for key, value in spec.items()
        )
        return "{\n" + ",\n".join(lines) + "\n}\n"
    fields = {key: value for key, value in spec.items() if key != "$schema"}

    return f"# yaml-language-server: $schema={_SCHEMA}\n{yaml_text.write(fields)}"


def about(template: Path) -> str:
    """Return a template's one-line description, from its key ``x-about``."""
    return str(json.loads(template.read_text(encoding="utf-8")).get("x-about", ""))


def find(name: str) -> Path:
    """Return the template called `name`; raises UsageError, with all names, for an unknown one."""
    known = templates()
    if template := known.get(name.removesuffix(".json")):
        return template
    raise UsageError(f"there is no template {name!r}", fix=f"use one of {', '.join(known)}")


def write(path: Path, text: str, *, force: bool) -> None:
    """Write the spec and its schema; raise UsageError if a file exists or cannot be written."""
    schema = path.parent / SCHEMA_FOLDER / published_schema.SCHEMA_FILE
    try:
        schema.parent.mkdir(parents=True, exist_ok=True)
        schema.write_text(published_schema.text(), encoding="utf-8")
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        if error.filename != str(path):
            raise UsageError(f"{error.filename} is not a folder") from None
        fix = "name another FILE, or overwrite it with --force"
        raise UsageError(f"{path} already exists", fix=fix) from None
    except OSError as error:
        message = f"cannot write {error.filename or path}: {reason_of(error)}"
        raise UsageError(message) from None


def adapt(text: str) -> str:
    """Return a template's text for a new spec.

    Adds the reference to the schema, and removes the template's name, its description and a Python
    given relative to the template's folder.
    """
    template_only_fields = (
        r'"(?:\$schema|name|x-about)": "[^"\n]*"|"runtime": {"python": "\.\.[^"\n]*"[^}\n]*}'
    )
    kept = re.sub(rf"^  (?:{template_only_fields}),\n", "", text, flags=re.MULTILINE)
    return kept.replace("{\n", f'{{\n  "$schema": "{_SCHEMA}",\n', 1)
