"""The package `plans` is pure: its modules cannot use a disk, a clock or a network."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tfcluster.plans

MODULES = sorted(Path(tfcluster.plans.__file__).parent.glob("*.py"))
ALLOWED = {
    "__future__", "ast", "collections", "dataclasses", "functools", "hashlib", "ipaddress",
    "itertools", "json", "posixpath", "re", "shlex", "tfcluster", "types", "typing",
}  # fmt: skip
EFFECTS = {"open", "print", "input", "exec", "eval", "__import__"}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_a_plan_module_imports_and_calls_nothing_that_does_io(module: Path) -> None:
    tree = ast.parse(module.read_text())
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert imported <= ALLOWED
    assert not called & EFFECTS
