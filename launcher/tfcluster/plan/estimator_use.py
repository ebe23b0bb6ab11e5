"""Where a job's files use `tf.estimator`, which ended with TensorFlow 2.15: surely, or perhaps.

A use is sure only where the start of the script leads to it in any case. Whatever depends on a
condition, on an error or on an object (``if``, ``try``, loops, methods, functions that are handed
on, names with two meanings) may belong to an older TensorFlow.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

TOP: Final = ""
"""The name of a file's own level."""
_LEAVES: Final = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_EXITS: Final = frozenset({"exit", "_exit", "quit", "abort"})
_DOUBTFUL: Final = (
    *(ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar, ast.Match),
    *(ast.With, ast.AsyncWith, ast.IfExp, ast.BoolOp, ast.Lambda, ast.AnnAssign),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
"""What is in them may never run."""
_IS_MAIN: Final = "__name__ == '__main__'"
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Target = tuple[str | None, str]
"""A module (None: this file) and a function in it, or `TOP`."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A function, or a file's own level: what it does whenever it runs."""

    file: str
    name: str
    uses: tuple[str, ...]
    """Places, ``train.py:12``."""
    runs: frozenset[Target]
    """What it calls or imports."""
    is_start: bool
    """It is the script itself."""

    def is_meant(self, module: str | None, caller: str) -> bool:
        if module is None:
            return self.file == caller
        path = self.file.removesuffix(".py").removesuffix("/__init__")
        return f"/{path}".endswith("/" + module.replace(".", "/"))


@dataclass(frozen=True, slots=True)
class EstimatorUse:
    """What several files say together."""

    scopes: tuple[Scope, ...] = ()
    places: tuple[str, ...] = ()
    """All uses, sure or not."""

    def __or__(self, other: EstimatorUse) -> EstimatorUse:
        return EstimatorUse(self.scopes + other.scopes, self.places + other.places)

    def sure(self) -> tuple[str, ...]:
        """Places that the job reaches in any case."""
        named: dict[str, list[Scope]] = {}
        for scope in self.scopes:
            named.setdefault(scope.name, []).append(scope)
        found: list[str] = []
        waiting = [scope for scope in self.scopes if scope.is_start]
        reached = set(waiting)
        while waiting:
            scope = waiting.pop()
            found += scope.uses
            for module, name in scope.runs:
                meant = [s for s in named.get(name, ()) if s.is_meant(module, scope.file)]
                if len(meant) == 1 and meant[0] not in reached:
                    waiting += meant
                    reached.update(meant)
        return tuple(found)


def read(tree: ast.Module, *, file: str, is_start: bool) -> EstimatorUse:
    """What one file says; `is_start`: it is the script itself, so that it is ``__main__``."""
    reader = _Reader(file, is_start, _Names.of(tree))
    top = _Open(TOP)
    try:
        reader.block(tree.body, top, sure=True)
    except RecursionError:  # a table of thousands of summands, …: nothing is claimed of it
        return EstimatorUse()
    scopes = (
        Scope(file, one.name, tuple(one.uses), frozenset(one.runs), is_start and one is top)
        for one in (top, *reader.functions)
    )
    return EstimatorUse(tuple(scopes), tuple(reader.places))


@dataclass(frozen=True, slots=True)
class _Names:
    """What the names of a file mean."""

    imported: dict[str, Target]
    bound: Counter[str]
    """How often each is given a meaning, anywhere in the file."""
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

    def is_of(self, node: ast.AST, *packages: str) -> bool:
        """Whether it is something in one of `packages`: ``tf.compat.v1`` of tensorflow."""
        while isinstance(node, ast.Attribute):
            node = node.value
        module, _ = self.imported.get(getattr(node, "id", ""), (None, TOP))
        return (module or "").partition(".")[0] in packages

    def is_app(self, node: ast.expr) -> bool:
        """Whether it is absl's ``app`` or TensorFlow's: their ``run()`` calls ``main``."""
        name = getattr(node, "attr", getattr(node, "id", ""))
        return name == "app" and self.is_of(node, "tensorflow", "absl")

    def may_leave(self, node: ast.stmt) -> bool:
        """Whether what follows a statement may not be reached."""
        return not isinstance(node, _DEFINITIONS) and any(
            isinstance(one, _LEAVES) or _called(one) in self.exits for one in ast.walk(node)
        )

    def runs(self, node: ast.AST) -> Iterator[Target]:
        """What is run wherever `node` is."""
        match node:
            case ast.Import():
                yield from ((alias.name, TOP) for alias in node.names)
            case ast.ImportFrom(module=str(module)):
                yield module, TOP
            case ast.Call(func=ast.Attribute(attr="run", value=app)) if self.is_app(app):
                first = [*node.args, *(one.value for one in node.keywords if one.arg == "main")]
                yield from self.function(first[0] if first else ast.Name("main"))
            case ast.Call():
                yield from self.function(node.func)

    def function(self, node: ast.expr) -> Iterator[Target]:
        if isinstance(node, ast.Name) and self.bound[node.id] == 1:
            yield self.imported.get(node.id, (None, node.id))


@dataclass(slots=True)
class _Open:
    """A scope that is being read."""

    name: str
    uses: list[str] = field(default_factory=list)
    runs: set[Target] = field(default_factory=set)


@dataclass(slots=True)
class _Reader:
    file: str
    is_start: bool
    names: _Names
    places: list[str] = field(default_factory=list)
    functions: list[_Open] = field(default_factory=list)

    def block(self, body: Sequence[ast.stmt], scope: _Open, *, sure: bool) -> None:
        for statement in body:
            self.statement(statement, scope, sure)
            sure = sure and not self.names.may_leave(statement)

    def statement(self, node: ast.stmt, scope: _Open, sure: bool) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.function(node, node.name, scope, sure)
            case ast.ClassDef():
                self.of_class(node, scope, sure)
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

    def function(self, node: Function, name: str, scope: _Open, sure: bool) -> None:
        for decorator in node.decorator_list:
            self.expression(decorator, scope, sure)
        self.expression(node.args, scope, sure=False)
        is_plain = isinstance(node, ast.FunctionDef) and not node.decorator_list
        yields = any(isinstance(one, ast.Yield | ast.YieldFrom) for one in ast.walk(node))
        own = _Open(name)
        self.functions.append(own)
        self.block(node.body, own, sure=is_plain and not yields and self.names.bound[name] == 1)

    def of_class(self, node: ast.ClassDef, scope: _Open, sure: bool) -> None:
        """Calling it runs ``__init__``; which other methods run, only an object could tell."""
        for expression in (*node.decorator_list, *node.bases):
            self.expression(expression, scope, sure)
        for statement in node.body:
            if not isinstance(statement, Function):
                self.statement(statement, scope, sure)
            elif statement.name == "__init__" and not node.decorator_list:
                self.function(statement, node.name, scope, sure)
            else:
                self.expression(statement, scope, sure=False)

    def expression(self, node: ast.AST, scope: _Open, sure: bool) -> None:
        """Also of a statement whose parts may be left out, such as ``if``."""
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
                return self.names.is_of(node.value, "tensorflow")
            case ast.Import():
                return any(_is_estimator(alias.name) for alias in node.names)
            case ast.ImportFrom(level=0):
                imported = (f"{node.module}.{alias.name}" for alias in node.names)
                return any(map(_is_estimator, imported))
        return False


def _imported(node: ast.AST) -> Iterator[tuple[str, Target]]:
    """Names that an import gives a meaning."""
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
    """The last name of what is called; "" for what is no call."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
    return ""


def _is_estimator(module: str) -> bool:
    top, *parts = module.split(".")
    return top == "tensorflow_estimator" or (top == "tensorflow" and "estimator" in parts)
