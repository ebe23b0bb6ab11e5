"""Replaces functions and methods of other packages by ones that call the original."""

from __future__ import annotations

import functools
from typing import Any, Callable

_MARK = "_is_tfcluster_replacement"


def replaces(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Decorate the replacement of `owner.name`, which gets the original as its first argument.

    A second replacement does nothing: Keras and KerasTuner show one class under two module names.
    """

    def replace(replacement: Callable[..., Any]) -> None:
        stock = getattr(owner, name)
        if hasattr(stock, _MARK):
            return

        @functools.wraps(stock)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            return replacement(stock, *args, **kwargs)

        vars(replaced)[_MARK] = True
        setattr(owner, name, replaced)

    return replace
