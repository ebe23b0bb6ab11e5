"""The analysis of `tf.estimator` in a job's files: uses that run for certain, and possible ones.

TensorFlow 2.15 was the last with `tf.estimator`. A use is certain only if running the script always
reaches it. Code that depends on a condition, an error or an object (``if``, ``try``, loops,
methods, functions passed as arguments, names with two meanings) may be for an older TensorFlow.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

TOP: Final = ""
"""The name of a file's top-level scope."""
_LEAVES: Final = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_EXITS: Final = frozenset({"exit", "_exit", "quit", "abort"})
_DOUBTFUL: Final = (
    *(ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar, ast.Match),
    *(ast.With, ast.AsyncWith, ast.IfExp, ast.BoolOp, ast.Lambda, ast.AnnAssign),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
"""Nodes whose children may never run."""
_IS_MAIN: Final = "__name__ == '__main__'"
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Target = tuple[str | None, str]
"""A module (None: the same file) and a function in it, or `TOP`."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A function, or the top level of a file, and what it always does when it runs."""

    file: str
    name: str
    uses: tuple[str, ...]
    """The places of uses: ``train.py:12``."""
    runs: frozenset[Target]
    """The functions it calls and the modules it imports."""
    is_start: bool
    """True if it is the top level of the script itself."""

    def is_in(self, module: str | None, caller: str) -> bool:
        """Return whether the scope is in `module`, as named in the file `caller`."""
        if module is None:
            return self.file == caller
        path = self.file.removesuffix(".py").removesuffix("/__init__")
        return f"/{path}".endswith("/" + module.replace(".", "/"))


@dataclass(frozen=True, slots=True)
class EstimatorUse:
    """The uses of `tf.estimator` in one or several files."""

    scopes: tuple[Scope, ...] = ()
    places: tuple[str, ...] = ()
    """The places of all uses, certain or not."""

    def __or__(self, other: EstimatorUse) -> EstimatorUse:
        return EstimatorUse(self.scopes + other.scopes, self.places + other.places)

    def sure(self) -> tuple[str, ...]:
        """Return the places of uses that the job reaches for certain."""
        by_name: dict[str, list[Scope]] = {}
        for scope in self.scopes:
            by_name.setdefault(scope.name, []).append(scope)
        found: list[str] = []
        waiting = [scope for scope in self.scopes if scope.is_start]
        reached = set(waiting)
        while waiting:
            scope = waiting.pop()
            found += scope.uses
            for module, name in scope.runs:
                called = [s for s in by_name.get(name, ()) if s.is_in(module, scope.file)]
                if len(called) == 1 and called[0] not in reached:
                    waiting += called
                    reached.update(called)
        return tuple(found)


def read(tree: ast.Module, *, file: str, is_start: bool) -> EstimatorUse:
    """Return the uses in one file; `is_start`: it is the script itself, run as ``__main__``."""
    reader = _Reader(file, is_start, _Names.of(tree))
    top = _OpenScope(TOP)
    try:
        reader.block(tree.body, top, sure=True)
    except RecursionError:  # an expression with thousands of operands: no result
        return EstimatorUse()
    scopes = (
        Scope(file, scope.name, tuple(scope.uses), frozenset(scope.runs), is_start and scope is top)
        for scope in (top, *reader.functions)
    )
    return EstimatorUse(tuple(scopes), tuple(reader.places))


@dataclass(frozen=True, slots=True)
class _Names:
    """The meaning of the names in a file."""

    imported: dict[str, Target]
    bound: Counter[str]
    """Name → the number of its definitions and assignments, anywhere in the file."""
    exits: frozenset[str]
    """Functions that may end the process."""

    @classmethod
    def of(cls, tree: ast.Module) -> _Names:
        nodes = list(ast.walk(tree))
        imported = dict(pair for node in nodes for pair in _imported(node))
        bound = Counter(name for node in nodes for name in _bound(node))
        functions = (node for node in nodes if isinstance(node, Function))
        exits = {f.name for f in functions if any(_called(n) in _EXITS for n in ast.walk(f))}
        return cls(imported, bound, _EXITS | exits)

    def is_from(self, node: ast.AST, *packages: str) -> bool:
        """Return whether a name is from one of `packages`: ``tf.compat.v1`` from tensorflow."""
        while isinstance(node, ast.Attribute):
            node = node.value
        module, _ = self.imported.get(getattr(node, "id", ""), (None, TOP))
        return (module or "").partition(".")[0] in packages

    def is_app(self, node: ast.expr) -> bool:
        """Return whether a name is ``app`` of absl or TensorFlow, whose ``run`` calls ``main``."""
        name = getattr(node, "attr", getattr(node, "id", ""))
        return name == "app" and self.is_from(node, "tensorflow", "absl")

    def may_leave(self, node: ast.stmt) -> bool:
        """Return whether the code after a statement may not be reached."""
        return not isinstance(node, _DEFINITIONS) and any(
            isinstance(part, _LEAVES) or _called(part) in self.exits for part in ast.walk(node)
        )

    def runs(self, node: ast.AST) -> Iterator[Target]:
        """Yield what runs whenever `node` runs."""
        match node:
            case ast.Import():
                yield from ((alias.name, TOP) for alias in node.names)
            case ast.ImportFrom(module=str(module)):
                yield module, TOP
            case ast.Call(func=ast.Attribute(attr="run", value=app)) if self.is_app(app):
                first = [*node.args, *(k.value for k in node.keywords if k.arg == "main")]
                yield from self.function(first[0] if first else ast.Name("main"))
            case ast.Call():
                yield from self.function(node.func)

    def function(self, node: ast.expr) -> Iterator[Target]:
        if isinstance(node, ast.Name) and self.bound[node.id] == 1:
            yield self.imported.get(node.id, (None, node.id))


@dataclass(slots=True)
class _OpenScope:
    """A scope while it is being read."""

    name: str
    uses: list[str] = field(default_factory=list)
    runs: set[Target] = field(default_factory=set)


@dataclass(slots=True)
class _Reader:
    file: str
    is_start: bool
    names: _Names
    places: list[str] = field(default_factory=list)
    functions: list[_OpenScope] = field(default_factory=list)

    def block(self, body: Sequence[ast.stmt], scope: _OpenScope, *, sure: bool) -> None:
        for statement in body:
            self.statement(statement, scope, sure)
            sure = sure and not self.names.may_leave(statement)

    def statement(self, node: ast.stmt, scope: _OpenScope, sure: bool) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.function(node, node.name, scope, sure)
            case ast.ClassDef():
                self.class_body(node, scope, sure)
            case ast.If() if self.is_start and ast.unparse(node.test) == _IS_MAIN:
                self.block(node.body, scope, sure=sure)
                self.block(node.orelse, scope, sure=False)
            case ast.Try(handlers=[]):
                self.block([*node.body, *node.finalbody], scope, sure=sure)
            case ast.With() if "suppress" not in "".join(map(ast.dump, node.items)):
                for item in node.items:
                    self.expression(item, scope, sure)
                self.block(node.body, scope, sure=sure)
            case _:
                self.expression(node, scope, sure)

    def function(self, node: Function, name: str, scope: _OpenScope, sure: bool) -> None:
        for decorator in node.decorator_list:
            self.expression(decorator, scope, sure)
        self.expression(node.args, scope, sure=False)
        is_plain = isinstance(node, ast.FunctionDef) and not node.decorator_list
        yields = any(isinstance(part, ast.Yield | ast.YieldFrom) for part in ast.walk(node))
        inner = _OpenScope(name)
        self.functions.append(inner)
        self.block(node.body, inner, sure=is_plain and not yields and self.names.bound[name] == 1)

    def class_body(self, node: ast.ClassDef, scope: _OpenScope, sure: bool) -> None:
        """Read a class: a call runs ``__init__``; whether other methods run is unknown."""
        for expression in (*node.decorator_list, *node.bases):
            self.expression(expression, scope, sure)
        for statement in node.body:
            if not isinstance(statement, Function):
                self.statement(statement, scope, sure)
            elif statement.name == "__init__" and not node.decorator_list:
                self.function(statement, node.name, scope, sure)
            else:
                self.expression(statement, scope, sure=False)

    def expression(self, node: ast.AST, scope: _OpenScope, sure: bool) -> None:
        """Read an expression, or a statement whose parts may not run, such as ``if``."""
        if self.is_use(node):
            place = f"{self.file}:{getattr(node, 'lineno', 0)}"
            self.places.append(place)
            if sure:
                scope.uses.append(place)
        if sure:
            scope.runs.update(self.names.runs(node))
        sure = sure and not isinstance(node, _DOUBTFUL)
        for child in ast.iter_child_nodes(node):
            self.expression(child, scope, sure)

    def is_use(self, node: ast.AST) -> bool:
        match node:
            case ast.Attribute(attr="estimator"):
                return self.names.is_from(node.value, "tensorflow")
            case ast.Import():
                return any(_is_estimator(alias.name) for alias in node.names)
            case ast.ImportFrom(level=0):
                imported = (f"{node.module}.{alias.name}" for alias in node.names)
                return any(map(_is_estimator, imported))
        return False


def _imported(node: ast.AST) -> Iterator[tuple[str, Target]]:
    """Yield the names that an import defines, with their targets."""
    match node:
        case ast.Import():
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                yield name, (alias.name if alias.asname else name, TOP)
        case ast.ImportFrom(module=str(module)):
            yield from ((alias.asname or alias.name, (module, alias.name)) for alias in node.names)


def _bound(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
            yield name
        case ast.alias():
            yield node.asname or node.name.partition(".")[0]


def _called(node: ast.AST) -> str:
    """Return the last part of a called name, or "" if the node is not a call."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
    return ""


def _is_estimator(module: str) -> bool:
    top, *parts = module.split(".")
    return top == "tensorflow_estimator" or (top == "tensorflow" and "estimator" in parts)
