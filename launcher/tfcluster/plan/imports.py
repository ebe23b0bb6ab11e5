"""What a script imports for certain: the evidence whether a job needs TensorFlow at all."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tfcluster.plan import estimator_use
from tfcluster.plan.estimator_use import EstimatorUse

PARTS: Final = frozenset({"keras", "estimator"})
"""Of TensorFlow, which loads them when they are asked for."""
UNKNOWN: Final = "?"
"""Among `Code.sets`: a variable whose name is not written there."""
_TUNERS: Final = frozenset({"keras_tuner", "kerastuner"})
_REGEX: Final = ("re", "regex")
_COMPILERS: Final = frozenset(f"{module}.compile" for module in _REGEX)
_SEARCH_OPTIONS: Final = frozenset(
    [
        "x",
        "y",
        "epochs",
        "batch_size",
        "steps_per_epoch",
        "callbacks",
        "validation_data",
        "validation_split",
    ]
)
"""Of ``Model.fit``, which a tuner's ``search`` hands on."""
_SETTERS: Final = frozenset({"setdefault", "update", "putenv", "unsetenv", "pop", "clear"})


@dataclass(frozen=True, slots=True)
class Code:
    """What the files of a job say, as far as reading them tells."""

    imports: frozenset[str] = frozenset()
    """Dotted names of modules that are imported for certain, at the top level or in functions: one
    inside ``try`` or ``if`` may be optional. A relative import keeps its dots in front."""
    parts: frozenset[str] = frozenset()
    """Of `PARTS`, those that are named."""
    sets: frozenset[str] = frozenset()
    """Variables of the environment that are given a value, anywhere."""
    has_tuner: bool = False
    """KerasTuner is imported, anywhere."""
    calls_search: bool = False
    """A method ``search`` is called as a tuner's is, and not of a regular expression."""
    estimator: EstimatorUse = field(default_factory=EstimatorUse)

    @property
    def searches(self) -> bool:
        """Whether the job is a KerasTuner search, and does not only import it."""
        return self.has_tuner and self.calls_search

    @classmethod
    def read(cls, source: str, *, file: str = "", is_start: bool = True) -> Code:
        """Of one file; nothing where the text is no Python. `is_start`: it is the script itself."""
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # too deep: ast.parse's docs
            return cls()
        nodes = list(ast.walk(tree))
        return cls(
            frozenset(_names(tree.body)),
            frozenset(_named(nodes)) & PARTS,
            frozenset(name for node in nodes for name in _set_by(node)),
            any(name.partition(".")[0] in _TUNERS for name in _imported(nodes)),
            any(_searches(nodes)),
            estimator_use.read(tree, file=file, is_start=is_start),
        )

    def __or__(self, other: Code) -> Code:
        return Code(
            self.imports | other.imports,
            self.parts | other.parts,
            self.sets | other.sets,
            self.has_tuner or other.has_tuner,
            self.calls_search or other.calls_search,
            self.estimator | other.estimator,
        )


_ALWAYS_RUN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.With)


def _names(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        yield from _imported([node])
        if isinstance(node, _ALWAYS_RUN) or _is_main_guard(node):
            yield from _names(node.body)  # type: ignore[attr-defined]


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def _searches(nodes: Sequence[ast.AST]) -> Iterator[bool]:
    """For each call of a method ``search``, whether it may be a tuner's by its arguments."""
    patterns = frozenset(_patterns(nodes))
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="search", value=receiver)):
                is_pattern = _dotted(receiver) in patterns or _compiles(receiver)
                given = (keyword.arg in _SEARCH_OPTIONS for keyword in node.keywords)
                yield not is_pattern and (len(node.args) > 1 or any(given))


def _patterns(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names of regular expressions, and of the modules that make them."""
    yield from _REGEX
    for node in nodes:
        match node:
            case ast.Assign(targets=targets, value=value) if _compiles(value):
                yield from map(_dotted, targets)
            case (
                ast.AnnAssign(target=target, value=value)
                | ast.NamedExpr(target=target, value=value)
            ) if _compiles(value):
                yield _dotted(target)


def _compiles(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Call) and _dotted(node.func) in _COMPILERS


def _dotted(node: ast.expr) -> str:
    """``self.pattern``; "" for anything that is no name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__main__" in ast.dump(node.test)


def _named(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield from node.name.split(".")


def _set_by(node: ast.AST) -> Iterator[str]:
    """Names that a statement gives a value in ``os.environ``, or takes it from; `UNKNOWN` for one
    that is not written there."""
    if isinstance(node, ast.Assign | ast.Delete):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_environ(target.value):
                yield from _texts([target.slice])
    elif isinstance(node, ast.AugAssign) and _is_environ(node.target):
        yield from _texts([node.value])
    elif isinstance(node, ast.Call) and _sets_environ(node.func):
        yield from _texts(node.args[:1])
        yield from (keyword.arg or UNKNOWN for keyword in node.keywords)


def _sets_environ(func: ast.expr) -> bool:
    if not isinstance(func, ast.Attribute) or func.attr not in _SETTERS:
        return False
    return func.attr in ("putenv", "unsetenv") or _is_environ(func.value)


def _is_environ(node: ast.expr) -> bool:
    return getattr(node, "attr", getattr(node, "id", "")) == "environ"


def _texts(nodes: Iterable[ast.expr | None]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Dict):
            yield from _texts(node.keys)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict":
            yield from (keyword.arg or UNKNOWN for keyword in node.keywords)
        else:
            yield UNKNOWN
