"""A notebook with a real kernel, in an environment of its own."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from .commandline import CommandLine


@dataclass
class Output:
    """The result of one cell."""

    text: str
    """The standard output, then what the cell displays in its last state."""
    html: str
    error: str
    """The name of the exception; empty if the cell succeeded."""
    shown: str
    """The error as the notebook shows it."""


@dataclass
class Notebook:
    """A running kernel."""

    client: NotebookClient
    line: CommandLine

    @property
    def folder(self) -> Path:
        return self.line.cwd

    def run(self, source: str) -> Output:
        """Run a cell, which may raise an exception."""
        cell = nbformat.v4.new_code_cell(source)
        self.client.nb.cells.append(cell)
        self.client.execute_cell(cell, len(self.client.nb.cells) - 1)
        return _output(cell.outputs)


def _output(outputs: list[Any]) -> Output:
    text, html, error, shown = "", "", "", ""
    for output in outputs:
        if output.output_type == "stream":
            text += output.text
        elif output.output_type == "error":
            error, shown = output.ename, "\n".join(output.traceback)
        else:
            text += output.data["text/plain"] + "\n"
            html += output.data.get("text/html", "")
    return Output(text, html, error, shown)


@contextlib.contextmanager
def a_notebook() -> Iterator[Notebook]:
    """Start a kernel in an empty folder; fails if a process is left after its end."""
    root = Path(tempfile.mkdtemp(prefix="tfc-", dir="/tmp"))
    line = CommandLine(root)
    folders = {f"{name}_DIR": str(root / name) for name in ("JUPYTER_CONFIG", "JUPYTER_DATA")}
    folders |= {"JUPYTER_RUNTIME_DIR": str(root / "runtime"), "IPYTHONDIR": str(root / "ipython")}
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**line.env, **folders}.items():
                patch.setenv(name, value)
            place = {"metadata": {"path": str(line.cwd)}}
            empty = nbformat.v4.new_notebook()
            client = NotebookClient(empty, timeout=280, allow_errors=True, resources=place)
            with client.setup_kernel():
                yield Notebook(client, line)
        line.clean_up()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def as_notebook(*cells: str) -> str:
    """Return the file of a notebook with these code cells, each with a magic above it."""
    made = [nbformat.v4.new_code_cell(f"%matplotlib inline\n{cell}") for cell in cells]
    return str(nbformat.writes(nbformat.v4.new_notebook(cells=made)))


def cells_of(page: Path) -> list[str]:
    """Return the code cells of a page in Markdown."""
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
