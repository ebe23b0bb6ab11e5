"""The analysis of a job's Python files: modules imported for certain, variables set, searches.

It is the evidence of what a job needs: TensorFlow, a KerasTuner search.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tfcluster.agent.foreign_json import parse_json_object
from tfcluster.spec import NOTEBOOK

PARTS: Final = frozenset({"keras", "estimator"})
"""Parts of TensorFlow that it loads on first use."""
UNKNOWN: Final = "?"
"""The entry of `Code.sets` for a variable whose name is computed."""
_TUNERS: Final = frozenset({"keras_tuner", "kerastuner"})
_REGEX: Final = ("re", "regex")
_COMPILERS: Final = frozenset(f"{module}.compile" for module in _REGEX)
_SEARCH_OPTIONS: Final = frozenset({
    "x", "y", "epochs", "batch_size", "steps_per_epoch", "callbacks", "validation_data",
    "validation_split",
})  # fmt: skip
"""Arguments of ``Model.fit``, which a tuner's ``search`` passes on."""
_MAGIC: Final = re.compile(r"^([ \t]*)[%!].*$", re.MULTILINE)
_SETTERS: Final = frozenset({"setdefault", "update", "putenv", "unsetenv", "pop", "clear"})


@dataclass(frozen=True, slots=True)
class Code:
    """The facts that can be read from the files of a job."""

    imports: frozenset[str] = frozenset()
    """Dotted names of modules imported for certain, at the top level or in functions; an import in
    ``try`` or ``if`` may be optional. A relative import keeps its leading dots."""
    parts: frozenset[str] = frozenset()
    """The `PARTS` that are used."""
    sets: frozenset[str] = frozenset()
    """Environment variables that are set or removed, anywhere."""
    has_tuner: bool = False
    """True if KerasTuner is imported, anywhere."""
    calls_search: bool = False
    """True if a method ``search`` is called with a tuner's arguments, and not on a regex."""
    keras_backend: str = ""
    """The constant that KERAS_BACKEND is set to."""
    default_keras_backend: str = ""
    """The constant that KERAS_BACKEND is set to if the environment does not have it."""
    has_dtensor: bool = False
    """True if DTensor's clients are joined to a cluster."""
    has_orbax: bool = False
    """True if Orbax is imported, or Keras's callback that saves with it is used, anywhere."""

    @property
    def searches(self) -> bool:
        """True if the job runs a KerasTuner search, rather than only importing KerasTuner."""
        return self.has_tuner and self.calls_search

    @classmethod
    def of_file(cls, name: str, text: str) -> Code:
        """Analyse the file `name`: Python, or a notebook."""
        if not name.endswith(NOTEBOOK):
            return cls.read(text)
        code = cls()
        for cell in Notebook.read(text).cells:
            # A cell with magics is not Python. Which of its lines run, the task decides (`boot`).
            code |= cls.read(cell) | cls.read(_MAGIC.sub(r"\1pass", cell))
        return code

    @classmethod
    def read(cls, source: str) -> Code:
        """Analyse Python; a text that is none gives an empty result."""
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # see ast.parse's docs
            return cls()
        nodes = list(ast.walk(tree))
        attributes, packages = {*_attribute_names(nodes)}, {*_packages(nodes)}
        return cls(
            frozenset(_certain_imports(tree.body)),
            PARTS & attributes,
            frozenset(name for node in nodes for name in _variables_set(node)),
            bool(_TUNERS & packages),
            any(_is_tuner_search(nodes)),
            *_keras_backends(nodes),
            "initialize_accelerator_system" in attributes,
            "orbax" in packages or "OrbaxCheckpoint" in attributes,
        )

    def __or__(self, other: Code) -> Code:
        return Code(
            self.imports | other.imports,
            self.parts | other.parts,
            self.sets | other.sets,
            self.has_tuner or other.has_tuner,
            self.calls_search or other.calls_search,
            self.keras_backend or other.keras_backend,
            self.default_keras_backend or other.default_keras_backend,
            self.has_dtensor or other.has_dtensor,
            self.has_orbax or other.has_orbax,
        )


@dataclass(frozen=True, slots=True)
class Notebook:
    """The code cells of a notebook, or why it cannot run."""

    cells: tuple[str, ...] = ()
    problem: str = ""
    """The end of a sentence about the file; empty for a notebook of Python."""

    @classmethod
    def read(cls, text: str) -> Notebook:
        """Read the text of an ``.ipynb`` file."""
        try:
            notebook = parse_json_object(text)
            code = (cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code")
            cells = tuple(map("".join, code))
            kernel = notebook.get("metadata", {}).get("kernelspec", {})
            language = str(kernel.get("language", "python"))
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls(problem="is not a notebook as Jupyter saves it (nbformat 4)")
        if language.lower() != "python":
            return cls(problem=f"is a notebook in {language}, not in Python")
        return cls(cells) if any(map(str.strip, cells)) else cls(problem="has no code cell")


_ALWAYS_RUN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.With)


def _certain_imports(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        yield from _imported([node])
        is_main_guard = isinstance(node, ast.If) and "__main__" in ast.dump(node.test)
        if isinstance(node, _ALWAYS_RUN) or is_main_guard:
            yield from _certain_imports(node.body)  # type: ignore[attr-defined]


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def _packages(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the top-level packages that are imported, anywhere."""
    yield from (name.partition(".")[0] for name in _imported(nodes))


def _is_tuner_search(nodes: Sequence[ast.AST]) -> Iterator[bool]:
    """Yield for each call of a method ``search`` whether its arguments may be a tuner's."""
    patterns = frozenset(_regex_names(nodes))
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="search", value=receiver)):
                is_pattern = _dotted(receiver) in patterns or _is_compile_call(receiver)
                options = (keyword.arg in _SEARCH_OPTIONS for keyword in node.keywords)
                yield not is_pattern and (len(node.args) > 1 or any(options))


def _regex_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names of regular expressions, and of the modules that make them."""
    yield from _REGEX
    for node in nodes:
        match node:
            case ast.Assign(targets=targets, value=value) if _is_compile_call(value):
                yield from map(_dotted, targets)
            case (
                ast.AnnAssign(target=target, value=value)
                | ast.NamedExpr(target=target, value=value)
            ) if _is_compile_call(value):
                yield _dotted(target)


def _is_compile_call(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Call) and _dotted(node.func) in _COMPILERS


def _dotted(node: ast.expr) -> str:
    """Return a dotted name such as ``self.pattern``, or "" if the node is not a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def _keras_backends(nodes: Iterable[ast.AST]) -> tuple[str, str]:
    """Return the constants that KERAS_BACKEND is set to by an assignment and by ``setdefault``."""
    assigned = default = ""
    for node in nodes:
        match node:
            case ast.Assign(
                targets=[ast.Subscript(value=owner, slice=ast.Constant("KERAS_BACKEND"))],
                value=ast.Constant(str(value)),
            ) if _is_environ(owner):
                assigned = assigned or value
            case ast.Call(
                func=ast.Attribute(value=owner, attr="setdefault"),
                args=[ast.Constant("KERAS_BACKEND"), ast.Constant(str(value))],
            ) if _is_environ(owner):
                default = default or value
    return assigned, default


def _attribute_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield from node.name.split(".")


def _variables_set(node: ast.AST) -> Iterator[str]:
    """Yield the variables that a statement sets or removes; `UNKNOWN` for a computed name."""
    if isinstance(node, ast.Assign | ast.Delete):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_environ(target.value):
                yield from _string_constants([target.slice])
    elif isinstance(node, ast.AugAssign) and _is_environ(node.target):
        yield from _string_constants([node.value])
    elif isinstance(node, ast.Call) and _sets_environ(node.func):
        yield from _string_constants(node.args[:1])
        yield from (keyword.arg or UNKNOWN for keyword in node.keywords)


def _sets_environ(func: ast.expr) -> bool:
    if not isinstance(func, ast.Attribute) or func.attr not in _SETTERS:
        return False
    return func.attr in ("putenv", "unsetenv") or _is_environ(func.value)


def _is_environ(node: ast.expr) -> bool:
    return getattr(node, "attr", getattr(node, "id", "")) == "environ"


def _string_constants(nodes: Iterable[ast.expr | None]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Dict):
            yield from _string_constants(node.keys)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict":
            yield from (keyword.arg or UNKNOWN for keyword in node.keywords)
        else:
            yield UNKNOWN
