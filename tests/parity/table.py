"""Writes the page docs/parity.md from trainings, and reads it back for the test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

from .measure import ROOT, Key, Training, by_key, deviation

PAGE: Final = ROOT / "docs/parity.md"
_TEMPLATE: Final = Path(__file__).with_name("page.md")
_LAST_BATCH: Final = {"full": "96", "partial": "36", "uneven": "37"}
_BATCHES: Final = {shown: name for name, shown in _LAST_BATCH.items()}

SGD, ADAM, UNEVEN = 5e-6, 1e-4, 2e-3
"""The deviations that the test allows: five digits for SGD, 1e-4 for Adam."""


def counts_all_alike(training: Training) -> bool:
    """Return whether all examples have equal weight; with Keras 3's shim they always do."""
    return training.batches != "uneven" or training.keras == "Keras 3"


def bound(training: Training) -> float:
    """Return the largest deviation that the test allows."""
    if not counts_all_alike(training):
        return UNEVEN
    return SGD if training.optimizer == "SGD" else ADAM


def page(trainings: Sequence[Training]) -> str:
    """Return the whole page."""
    even = [one for one in trainings if one.batches != "uneven"]
    uneven = [one for one in trainings if one.batches == "uneven"]
    references = by_key(trainings)

    def worst(optimizer: str) -> float:
        mine = (one for one in even if one.optimizer == optimizer)
        return max(deviation(one, references[one.alone]) for one in mine)

    versions = sorted({f"- {one.keras}: {one.versions}\n" for one in trainings})
    return _TEMPLATE.read_text().format(
        versions="".join(versions),
        even=_table(even, references),
        uneven=_table(uneven, references),
        sgd=worst("SGD"),
        adam=worst("Adam"),
        sgd_bound=SGD,
        adam_bound=ADAM,
        uneven_bound=UNEVEN,
    )


def _table(trainings: Sequence[Training], references: dict[Key, Training]) -> str:
    lines = []
    for one in sorted(trainings, key=lambda one: one.key):
        found = deviation(one, references[one.alone])
        lines.append((*_key_cells(one.key), *values(one), f"{found:.1e}" if found else "0"))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _key_cells(key: Key) -> tuple[str, ...]:
    keras, optimizer, batches, workers = key
    return keras, optimizer, _LAST_BATCH[batches], str(workers)


def values(one: Training) -> tuple[str, ...]:
    """Return the numbers of a row, as shown."""
    losses = tuple(f"{loss:.6f}" for loss in one.loss)
    return (*losses, f"{one.accuracy[-1]:.4f}", f"{one.top_3[-1]:.4f}", f"{one.weights:.4f}")


def read(text: str) -> dict[Key, tuple[float, ...]]:
    """Return the numbers of every row of the page, without the deviation."""
    found = {}
    for cells in _rows(text.splitlines()):
        keras, optimizer, last, workers, *numbers = cells
        key = (keras, optimizer, _BATCHES[last], int(workers))
        found[key] = tuple(float(number) for number in numbers[:-1])
    return found


def _rows(lines: Iterable[str]) -> Iterable[list[str]]:
    rest = iter(lines)
    for line in rest:
        if line.startswith("| ---"):
            for row in takewhile(lambda row: row.startswith("|"), rest):
                yield [cell.strip() for cell in row.strip("| ").split("|")]
