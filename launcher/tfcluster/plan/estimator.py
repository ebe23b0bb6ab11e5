"""Where a job's files use `tf.estimator`, which ended with TensorFlow 2.15: surely, or perhaps.

A use is sure where nothing stands between it and the start of the script: what is inside ``if`` or
``try``, or in a function that only such code names, may belong to an older TensorFlow.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

TOP: Final = ""
"""The name of a file's own level."""
_GUARDS: Final = ("version", "hasattr", "estimator")
"""Words of a condition that asks which TensorFlow there is."""
_MISSING: Final = frozenset(
    {"ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException"}
)
"""What is caught where a part of TensorFlow may be absent."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A function, or a file's own level: what it does whenever it runs."""

    name: str
    uses: tuple[str, ...]
    """Places, ``train.py:12``."""
    names: frozenset[str]
    """What it refers to: functions among them may run."""


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
        found: list[str] = []
        waiting, reached = [TOP], {TOP}
        while waiting:
            name = waiting.pop()
            for scope in (one for one in self.scopes if one.name == name):
                found += scope.uses
                waiting += scope.names - reached
                reached |= scope.names
        return tuple(found)


def read(tree: ast.Module, *, file: str, is_start: bool) -> EstimatorUse:
    """What one file says; `is_start`: it is the script itself, so that it is ``__main__``."""
    reader = _Reader(file, is_start, frozenset(_names_of_tensorflow(tree)))
    top = _Open(TOP)
    if is_start:
        top.names.add("main")  # tf.compat.v1.app.run() calls it without naming it
    try:
        reader.block(tree.body, top, sure=True)
    except RecursionError:  # a table of thousands of summands, …: nothing is claimed of it
        return EstimatorUse()
    scopes = [one.closed() for one in (top, *reader.functions)]
    return EstimatorUse(tuple(scopes), tuple(reader.places))


def _names_of_tensorflow(tree: ast.Module) -> Iterator[str]:
    """Names that an import binds to TensorFlow, or to something in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "tensorflow":
                    yield alias.asname or "tensorflow"
        elif isinstance(node, ast.ImportFrom) and _is_tensorflow(node.module):
            yield from (alias.asname or alias.name for alias in node.names)


def _is_tensorflow(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "tensorflow"


@dataclass(slots=True)
class _Open:
    """A scope that is being read."""

    name: str
    uses: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def closed(self) -> Scope:
        return Scope(self.name, tuple(self.uses), frozenset(self.names))


@dataclass(slots=True)
class _Reader:
    file: str
    is_start: bool
    tensorflow: frozenset[str]
    places: list[str] = field(default_factory=list)
    functions: list[_Open] = field(default_factory=list)

    def block(self, body: Sequence[ast.stmt], scope: _Open, *, sure: bool) -> None:
        for statement in body:
            self.statement(statement, scope, sure)
            if isinstance(statement, ast.If) and _leaves_for_another_version(statement):
                sure = False

    def statement(self, node: ast.stmt, scope: _Open, sure: bool) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for decorator in node.decorator_list:
                    self.expression(decorator, scope, sure)
                self.function(node, node.name)
            case ast.ClassDef():
                self.of_class(node, scope, sure)
            case ast.If():
                is_main = self.is_start and "__main__" in ast.dump(node.test)
                self.expression(node.test, scope, sure)
                self.block(node.body, scope, sure=sure and is_main)
                self.block(node.orelse, scope, sure=False)
            case ast.Try() | ast.TryStar():
                is_guarded = any(map(_catches_absence, node.handlers))
                for body in (node.body, node.orelse):
                    self.block(body, scope, sure=sure and not is_guarded)
                for handler in node.handlers:
                    self.block(handler.body, scope, sure=False)
                self.block(node.finalbody, scope, sure=sure)
            case ast.Match():
                for case in node.cases:
                    self.block(case.body, scope, sure=False)
            case ast.With() | ast.AsyncWith() | ast.For() | ast.AsyncFor() | ast.While():
                for child in ast.iter_child_nodes(node):
                    if not isinstance(child, ast.stmt):
                        self.expression(child, scope, sure)
                self.block(node.body, scope, sure=sure)
                self.block(getattr(node, "orelse", ()), scope, sure=False)
            case _:
                self.expression(node, scope, sure)

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> None:
        own = _Open(name)
        self.functions.append(own)
        self.block(node.body, own, sure=True)

    def of_class(self, node: ast.ClassDef, scope: _Open, sure: bool) -> None:
        """Who names the class may make one: its methods run by their own names."""
        for base in node.bases:
            self.expression(base, scope, sure)
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                makes = statement.name in ("__init__", "__call__")
                self.function(statement, node.name if makes else statement.name)
            else:
                self.statement(statement, scope, sure)

    def expression(self, node: ast.AST, scope: _Open, sure: bool) -> None:
        if self.is_use(node):
            place = f"{self.file}:{getattr(node, 'lineno', 0)}"
            self.places.append(place)
            if sure:
                scope.uses.append(place)
        if sure:
            scope.names |= _functions_named(node)
        may_be_skipped = isinstance(node, ast.IfExp | ast.BoolOp | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            self.expression(child, scope, sure and not may_be_skipped)

    def is_use(self, node: ast.AST) -> bool:
        match node:
            case ast.Attribute(attr="estimator"):
                return self.is_of_tensorflow(node.value)
            case ast.Import():
                return any(_is_estimator(alias.name) for alias in node.names)
            case ast.ImportFrom(level=0):
                imported = (f"{node.module}.{alias.name}" for alias in node.names)
                return any(map(_is_estimator, imported))
        return False

    def is_of_tensorflow(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.tensorflow


def _functions_named(node: ast.AST) -> set[str]:
    """Functions that an expression may call, or hand on to be called."""
    match node:
        case ast.Name(id=name) | ast.Call(func=ast.Attribute(attr=name)):
            return {name}
    return set()


def _is_estimator(module: str) -> bool:
    top, *parts = module.split(".")
    return top == "tensorflow_estimator" or (top == "tensorflow" and "estimator" in parts)


def _catches_absence(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(one, ast.Name) and one.id in _MISSING for one in caught)


def _leaves_for_another_version(node: ast.If) -> bool:
    """``if hasattr(tf, "estimator"): …; return``: what follows is for another TensorFlow."""
    asked = ast.dump(node.test).lower()
    leaves = any(isinstance(last, ast.Return | ast.Raise) for last in node.body[-1:])
    return leaves and any(word in asked for word in _GUARDS)
