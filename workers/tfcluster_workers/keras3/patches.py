"""Finds functions of Keras by what they do, and replaces all of them or none.

The private names of Keras change from release to release: 3.16 renames the class that trains and
moves other modules. So a class is found as the one that defines a public method of `keras.Model`,
and a function is known by the parameters it takes and the names it uses. Nothing is replaced before
every function has been found: half of the patches would train wrongly.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from tfcluster_workers.hooks.replacing import replaces

Replacement = Callable[..., Any]
"""A function that gets the original as its first argument, then the original's arguments."""


class OtherKerasError(Exception):
    """A part of this Keras is not the one that is patched; the message says which, and how."""


def defining_class(owner: type, name: str) -> type:
    """Return the class that defines the method `name` of `owner`. Raises OtherKerasError."""
    found = next((each for each in owner.__mro__ if name in vars(each)), None)
    if found is None:
        raise OtherKerasError(f"{_place(owner)} has no method {name}")
    return found


def find_function(owner: Any, *, takes: Iterable[str] = (), uses: Iterable[str] = ()) -> str | None:
    """Return the name of the only function that `owner` itself defines and that fits, or None."""
    fitting = [
        name
        for name, value in vars(owner).items()
        if isinstance(value, FunctionType)
        and value.__module__ == getattr(owner, "__module__", owner.__name__)
        and not _difference(value, takes, uses)
    ]
    return fitting[0] if len(fitting) == 1 else None


def uses_name(function: Any, name: str) -> bool:
    """Return whether `function` uses `name`: a global, an attribute or a string."""
    return name in _names_used(inspect.unwrap(function).__code__)


class Patches:
    """The replacements of Keras's functions; each is checked when it is added."""

    def __init__(self) -> None:
        self._added: list[tuple[Any, str, Replacement]] = []

    def replaces(
        self, owner: Any, name: str, *, takes: Iterable[str] = (), uses: Iterable[str] = ()
    ) -> Callable[[Replacement], None]:
        """Decorate the replacement of `owner.name`. Raises OtherKerasError.

        The original must have the parameters `takes`, in this order, and no other without a
        default, and use the names `uses`.
        """
        require_function(owner, name, takes=takes, uses=uses)

        def add(replacement: Replacement) -> None:
            self._added.append((owner, name, replacement))

        return add

    def apply(self) -> None:
        """Replace all functions."""
        for owner, name, replacement in self._added:
            replaces(owner, name)(replacement)


def require_function(
    owner: Any, name: str, *, takes: Iterable[str] = (), uses: Iterable[str] = ()
) -> None:
    """Raise OtherKerasError if the function `owner.name` is not as expected."""
    function = getattr(owner, name, None)
    difference = "is missing" if function is None else _difference(function, takes, uses)
    if difference:
        raise OtherKerasError(f"{_place(owner)}.{name} {difference}")


def _place(owner: Any) -> str:
    module = getattr(owner, "__module__", "")
    return f"{module}.{owner.__qualname__}" if module else str(owner.__name__)


def _difference(function: Any, takes: Iterable[str], uses: Iterable[str]) -> str:
    """Return how the function differs from the one that is patched; empty if it does not."""
    takes, parameters = tuple(takes), inspect.signature(function).parameters
    required = [name for name, each in parameters.items() if _must_be_passed(each)]
    shared = tuple(name for name in parameters if name in takes)
    if takes and (shared != takes or not set(required) <= set(takes)):
        return f"takes ({', '.join(parameters)}), not ({', '.join(takes)})"
    missing = [name for name in uses if not uses_name(function, name)]
    return f"does not use {', '.join(missing)}" if missing else ""


def _must_be_passed(parameter: inspect.Parameter) -> bool:
    is_variable = parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
    return parameter.default is parameter.empty and not is_variable


def _names_used(code: CodeType) -> Iterator[str]:
    """Yield the names and strings in a function's byte code, including its inner functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_used(constant)
        elif isinstance(constant, str):
            yield constant
