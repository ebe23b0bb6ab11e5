"""Runs the trainings of `train.py` through the launcher and compares their numbers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.integration.commandline import CommandLine

ROOT: Final = Path(__file__).parents[2]
SCRIPT: Final = Path(__file__).with_name("train.py")
WORKERS: Final = (1, 2, 3)
NEWEST: Final = os.environ.get("TFCLUSTER_TEST_PYTHON_NEWEST", ".venv")
KERAS: Final = {
    "Keras 2.15": (".venv-tf215", "2"),
    "tf_keras": (".venv", "2"),
    "Keras 3": (NEWEST, "3"),
}
"""The name in the table → its environment and the spec's `keras.version`."""

Key = tuple[str, str, str, int]


@dataclass(frozen=True, slots=True)
class Training:
    """One cell of the matrix; its tuples have one number for each epoch."""

    keras: str
    optimizer: str
    batches: str
    workers: int
    versions: str
    loss: tuple[float, ...]
    accuracy: tuple[float, ...]
    top_3: tuple[float, ...]
    weights: float

    @property
    def key(self) -> Key:
        return self.keras, self.optimizer, self.batches, self.workers

    @property
    def alone(self) -> Key:
        """The key of the training by one worker that this one must equal."""
        return self.keras, self.optimizer, self.batches, 1


class GangError(AssertionError):
    """The trainings failed, or two workers of one gang report different numbers."""


def measure(line: CommandLine, keras: str, workers: int) -> list[Training]:
    """Run one gang and return all its trainings. Raises GangError."""
    python, version = KERAS[keras]
    options = (f"--python={ROOT / python}", f"--set=keras.version={version}")
    done = line.run("run", "-n", str(workers), *options, str(SCRIPT), timeout=560)
    said = {task: list(_rows(done.out.decode(), task)) for task in range(workers)}
    if done.code or any(rows != said[0] for rows in said.values()) or not said[0]:
        raise GangError(f"{keras}, {workers} workers: {said}\n{done.err}\n{done.out.decode()}")
    return [_training(keras, row) for row in said[0]]


def _rows(out: str, task: int) -> Iterator[Mapping[str, object]]:
    for found in re.findall(rf"^worker:{task} │ parity (.*)$", out, re.MULTILINE):
        yield json.loads(found)


def _training(keras: str, row: Mapping[str, object]) -> Training:
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}
    return Training(keras=keras, **values)  # type: ignore[arg-type]


def deviation(training: Training, reference: Training, *, metrics: bool = True) -> float:
    """Return the largest relative difference of a loss, a metric or the sum of |weights|."""
    pairs = [
        (training.weights, reference.weights),
        *zip(training.loss, reference.loss, strict=True),
    ]
    if metrics:
        pairs += zip(training.accuracy, reference.accuracy, strict=True)
        pairs += zip(training.top_3, reference.top_3, strict=True)
    return max(abs(mine - other) / abs(other) for mine, other in pairs)


def by_key(trainings: Iterable[Training]) -> dict[Key, Training]:
    return {training.key: training for training in trainings}
