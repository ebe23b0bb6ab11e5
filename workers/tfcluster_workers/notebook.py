"""Reads the code cells of a notebook, which `boot` runs one after the other.

What only IPython understands becomes a comment, so that every line keeps its number: magics
(``%…``), shell lines (``!…``), help (``name?``). ``%time`` and the magics in `_RUN_THE_CELL` are
removed alone, because what follows them is Python; a cell with another ``%%…`` is left out.
"""

from __future__ import annotations

import io
import json
import os
import re
import tokenize
from typing import Any, Final

from tfcluster_workers.function import add_sources

KERNEL_NAMES: Final = {"display": print, "get_ipython": lambda: None}
"""The names that IPython adds to the built-in ones, as outside of a kernel."""
_RUN_THE_CELL: Final = frozenset({"capture", "prun", "tfcluster", "time"})
_CELL_MAGIC: Final = re.compile(r"\s*%%(\w*)")
_ASSIGNS: Final = r"(?:[\w.,*\[\] ]+=)?"
_TIMED: Final = re.compile(rf"(\s*{_ASSIGNS}\s*)%time\s+(?=\S)")
_FOR_IPYTHON: Final = re.compile(rf"\s*{_ASSIGNS}\s*[%!]|\s*\?{{1,2}}\S|\s*[\w.*]+\?{{1,2}}\s*$")


def read(path: str) -> dict[str, str]:
    """Return name → Python of the code cells; tracebacks show the lines by these names.

    The third cell is called ``train.ipynb cell 3``. Empty cells do not count, as in a kernel that
    runs all cells. Raises OSError; the launcher has checked that the file is a notebook.
    """
    with open(path, encoding="utf-8") as file:
        notebook = json.load(file)
    sources = [_source(cell) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    shown = filter(str.strip, sources)
    name = os.path.basename(path)
    cells = {f"{name} cell {number}": to_python(text) for number, text in enumerate(shown, 1)}
    add_sources(cells)
    # A plot must not open a window and wait until somebody closes it.
    os.environ.setdefault("MPLBACKEND", "agg")
    return cells


def _source(cell: dict[str, Any]) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def to_python(cell: str) -> str:
    """Return the Python of a cell, with as many lines."""
    magic = _CELL_MAGIC.match(cell)
    drops_all = magic is not None and magic[1] not in _RUN_THE_CELL
    done, continues = list[str](), False
    for line in cell.split("\n"):
        if drops_all or continues or (magic is not None and line.strip()):
            magic, continues = None, continues and line.endswith("\\")
            line = f"# {line}"
        elif _TIMED.match(line) and not _is_open(done):
            line = _TIMED.sub(r"\1", line)
        elif _FOR_IPYTHON.match(line) and not _is_open(done):
            continues = line.endswith("\\")
            text = line.lstrip()
            # A block may consist of such lines: `if IN_COLAB:` with a `!pip` below it.
            line = f"{line[: len(line) - len(text)]}pass  # {text}"
        done.append(line)
    return "\n".join(done) + "\n"


def _is_open(lines: list[str]) -> bool:
    """Return whether the last one of `lines` is within a statement: a string, or brackets."""
    try:
        for _ in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
            pass
    except tokenize.TokenError:
        return True
    except SyntaxError:
        return False
    return False
