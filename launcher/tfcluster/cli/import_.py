"""`tfcluster import`: turn the manifest of another tool's job into a spec."""

from __future__ import annotations

import json
import shlex

import click

_TITLES = {
    "needed": "needed before a start",
    "missing": "without counterpart",
    "changed": "mapped with another meaning",
}


@click.command("import")
@click.argument("manifest")
@click.option("-o", "--output", "target", metavar="FILE", default="-",
              help="The spec to write (default: -, stdout).")  # fmt: skip
def command(manifest: str, target: str) -> None:
    """Turn MANIFEST, a Kubeflow TFJob in YAML or JSON (-: stdin), into a spec.

    The spec has the backend kubernetes. What it cannot say, what it says otherwise and what is
    still needed is listed on stderr, each with its place in the manifest.
    """
    from tfcluster.cli.report import write_page
    from tfcluster.spec.source import read_stdin, read_text
    from tfcluster.tfjob.conversion import convert
    from tfcluster.ui.terminal import Terminal

    is_stdin = manifest == "-"
    text = read_stdin("manifest") if is_stdin else read_text(manifest, "manifest", "check the path")
    spec, notes = convert(text, "stdin" if is_stdin else manifest)
    write_page(json.dumps(spec, indent=2, ensure_ascii=False) + "\n", target, example="FILE.json")
    terminal = Terminal()
    for kind, title in _TITLES.items():
        if found := [str(note) for note in notes if note.kind == kind]:
            terminal.say("\n".join([f"{title} ({len(found)}):", *(f"  {line}" for line in found)]))
    if target != "-":
        terminal.say(f"next: tfcluster plan {shlex.quote(target)}")
