"""Replaces functions and methods of other packages by ones that call the original."""

from __future__ import annotations

import functools
from typing import Any, Callable

_MARK = "_tfcluster_replacement"


def replaces(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Decorate the replacement of `owner.name`, which gets the original as its first argument.

    The same replacement is made once: Keras and KerasTuner show one class under two module names.
    """

    def replace(replacement: Callable[..., Any]) -> None:
        stock = getattr(owner, name)
        mark = (replacement.__module__, replacement.__qualname__)
        if getattr(vars(owner).get(name), _MARK, None) == mark:
            return

        @functools.wraps(stock)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            return replacement(stock, *args, **kwargs)

        vars(replaced)[_MARK] = mark
        setattr(owner, name, replaced)

    return replace
