"""Put the functions of `replacements.py` into a copy of Keras; print a diff.

    python docs/upstream/apply.py FOLDER

FOLDER is a copy of the package `keras`, as pip installs it or as its repository
has it. The trainer is found by the functions it defines, since a release may
rename its class or move its file. Standard library only.
"""

from __future__ import annotations

import ast
import difflib
import sys
import textwrap
from pathlib import Path

REPLACEMENTS = Path(__file__).with_name("replacements.py")
TEST = Path(__file__).with_name("multi_worker_test.py")
BEGUN = "reduce_per_replica"
"""The function that keeps its body and gets new first lines."""


def main(arguments: list[str]) -> int:
    """Change the copy that the arguments name; return the exit code."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python apply.py FOLDER\n")
        return 2
    folder = Path(arguments[0])
    trainer = find_trainer(folder)
    source = trainer.read_text()
    write(trainer, changed(source, REPLACEMENTS.read_text()), folder)
    write(trainer.with_name(TEST.name), TEST.read_text(), folder)
    return 0


def find_trainer(folder: Path) -> Path:
    """Return the file below `folder` that defines what is to be changed."""
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text()
        if f"def {BEGUN}(" in source and "def _maybe_symbolic_build(" in source:
            return path
    sys.exit(f"no file in {folder} has {BEGUN} and _maybe_symbolic_build")


def write(path: Path, text: str, folder: Path) -> None:
    """Write a file of the copy in `folder` and print what changes in it."""
    old = path.read_text() if path.exists() else ""
    path.write_text(text)
    name = path.relative_to(folder)
    sys.stdout.writelines(
        difflib.unified_diff(
            old.splitlines(keepends=True),
            text.splitlines(keepends=True),
            f"a/{name}",
            f"b/{name}",
        )
    )


def changed(source: str, replacements: str) -> str:
    """Return the trainer's `source` with the functions of `replacements`."""
    theirs = {function.name: function for function in functions(source)}
    lines, added = source.splitlines(), []
    edits: list[tuple[int, int, list[str]]] = []
    """The first line, the line after the last one, and what replaces them."""
    for ours in functions(replacements):
        text = ast.get_source_segment(replacements, ours) or ""
        found = theirs.get(ours.name)
        if found is None:
            added += [*text.splitlines(), "", ""]
        elif ours.name == BEGUN:
            begin = found.body[1].lineno  # after the docstring
            edits.append((begin, begin, [*text.splitlines()[1:], ""]))
            branch = unreachable_branch(found)
            edits.append((branch.lineno, end_of(branch), []))
        else:
            text = textwrap.indent(text, " " * found.col_offset)
            edits.append((found.lineno, end_of(found), text.splitlines()))
    edits.append((theirs[BEGUN].lineno, theirs[BEGUN].lineno, added))
    for first, end, instead in sorted(edits, reverse=True):
        lines[first - 1 : end - 1] = instead
    return "\n".join(lines) + "\n"


def functions(source: str) -> list[ast.FunctionDef]:
    """Return the functions and methods that `source` defines."""
    nodes = ast.walk(ast.parse(source))
    return [node for node in nodes if isinstance(node, ast.FunctionDef)]


def end_of(node: ast.stmt) -> int:
    """Return the number of the line after a statement."""
    return (node.end_lineno or node.lineno) + 1


def unreachable_branch(function: ast.FunctionDef) -> ast.If:
    """Return the innermost branch of `function` that reduces to a MEAN.

    The lines that are put before it return in this case.
    """
    branches = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.If)
        and not node.orelse
        and "'MEAN'" in ast.unparse(node)
    ]
    if not branches:
        sys.exit(f"{function.name} reduces to no MEAN: was Keras fixed?")
    return max(branches, key=lambda node: node.lineno)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
