"""What a script imports for certain: the evidence whether a job needs TensorFlow at all."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_ALWAYS_RUN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.With)


def certain_imports(source: str) -> frozenset[str]:
    """Dotted names of modules that `source` imports at its top level or in its functions.

    An import inside ``try`` or ``if`` may be optional and is left out, and so is everything
    where the text is no Python; a relative import keeps its dots in front.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return frozenset()
    return frozenset(_names(tree.body))


def _names(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")
        elif isinstance(node, _ALWAYS_RUN) or _is_main_guard(node):
            yield from _names(node.body)  # type: ignore[attr-defined]


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__main__" in ast.dump(node.test)
