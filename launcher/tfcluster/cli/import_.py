"""`tfcluster import`: turn the manifest of another tool's job into a spec."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import click

from tfcluster.agent.error_text import reason_of
from tfcluster.cli.completion import files
from tfcluster.errors import UsageError

_TITLES = {
    "needed": "needed before a start",
    "missing": "without counterpart",
    "changed": "mapped with another meaning",
}


@click.command("import")
@click.argument("manifest", shell_complete=files)
@click.option("-o", "--output", "target", metavar="FILE", shell_complete=files, default="-",
              help="The spec to write (default: -, stdout).")  # fmt: skip
def command(manifest: str, target: str) -> None:
    """Turn MANIFEST, a Kubeflow TFJob in YAML or JSON (-: stdin), into a spec.

    The spec has the backend kubernetes. What it cannot say, what it says otherwise and what is
    still needed is listed on stderr, each with its place in the manifest.
    """
    from tfcluster.cli.report import write_page
    from tfcluster.tfjob.conversion import convert
    from tfcluster.ui.terminal import Terminal

    text, name = _read(manifest)
    spec, notes = convert(text, name)
    write_page(json.dumps(spec, indent=2, ensure_ascii=False) + "\n", target, example="FILE.json")
    terminal = Terminal()
    for kind, title in _TITLES.items():
        if found := [str(note) for note in notes if note.kind == kind]:
            terminal.say("\n".join([f"{title} ({len(found)}):", *(f"  {line}" for line in found)]))
    if target != "-":
        terminal.say(f"next: tfcluster plan {shlex.quote(target)}")


def _read(manifest: str) -> tuple[str, str]:
    """Return the text of the manifest and its name; raises UsageError if it cannot be read."""
    try:
        if manifest == "-":
            return sys.stdin.buffer.read().decode("utf-8"), "stdin"
        return Path(manifest).expanduser().read_text(encoding="utf-8"), manifest
    except UnicodeDecodeError:
        raise UsageError(f"{manifest} is not text in UTF-8", fix="name a TFJob in YAML") from None
    except OSError as error:
        fix = "check the path"
        raise UsageError(f"{manifest} cannot be read: {reason_of(error)}", fix=fix) from None
