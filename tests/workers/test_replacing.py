"""The replacement of another package's methods."""

from __future__ import annotations

from typing import Any

from tfcluster_workers.hooks.replacing import replaces


class Model:
    def fit(self, epochs: int) -> int:
        """Train."""
        return epochs


def test_a_replacement_gets_the_original_and_its_arguments() -> None:
    owner: Any = type("Owner", (Model,), {})

    @replaces(owner, "fit")
    def fit(stock: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        return stock(self, *args, **kwargs) + 1

    assert owner().fit(epochs=2) == 3
    assert (owner.fit.__name__, owner.fit.__doc__) == ("fit", "Train.")


def test_a_method_is_replaced_once() -> None:
    owner: Any = type("Owner", (Model,), {})
    for _ in range(2):

        @replaces(owner, "fit")
        def fit(stock: Any, self: Any, epochs: int) -> Any:
            return stock(self, epochs) + 1

    assert owner().fit(2) == 3


def test_a_subclass_and_another_hook_have_their_own_replacement() -> None:
    parent: Any = type("Parent", (Model,), {})
    child: Any = type("Child", (parent,), {})

    def double(owner: Any) -> None:
        @replaces(owner, "fit")
        def fit(stock: Any, self: Any, epochs: int) -> Any:
            return stock(self, epochs) * 2

    def add(owner: Any) -> None:
        @replaces(owner, "fit")
        def fit(stock: Any, self: Any, epochs: int) -> Any:
            return stock(self, epochs) + 1

    double(parent)
    double(child)
    add(child)
    assert (parent().fit(2), child().fit(2)) == (4, 9)
