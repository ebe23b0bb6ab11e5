"""Each tested release of Keras 3: two workers fail without the shim and train like one with it.

`make test-matrix` makes the environments. Each release runs twice; several tests share a run.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.integration.commandline import CommandLine, Done

from .releases import NEXT, python_of, releases
from .results import numbers

SCRIPT = Path(__file__).with_name("features.py")
KNOWN_FAULTS = (
    r"Invalid reduction dimension 0 for input with 0 dimensions",
    r"Attempt to convert a value \(.*PerReplica",
)
"""The errors of tensorflow#72388 and keras#20585 (with a dict: keras#20329)."""

# The limit allows for two gangs of TensorFlow for each release on two busy cores.
pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.matrix,
    pytest.mark.slow,
    pytest.mark.timeout(400),
]
each_release = pytest.mark.parametrize(
    "release", [*releases(), *(pytest.param(path, marks=pytest.mark.next) for path in NEXT)]
)

Features = Callable[[str], list[dict[str, dict[str, Any]]]]


def folder_of(line: CommandLine, release: str) -> Path:
    """Return the folder in which the features write their files."""
    return line.cwd / f"keras-{release.replace('/', '-')}"


def run(line: CommandLine, release: str, *settings: str, features: tuple[str, ...] = ()) -> Done:
    options = [f"--python={python_of(release)}", "--set=keras.version=3"]
    options += [f"--set={setting}" for setting in settings]
    folder = folder_of(line, release)
    folder.mkdir(exist_ok=True)
    arguments = ("run", "-n", "2", *options, str(SCRIPT), *features)
    return line.run(*arguments, timeout=380, cwd=folder)


@pytest.fixture(scope="module")
def line() -> Iterator[CommandLine]:
    root = Path(tempfile.mkdtemp(prefix="tfc-", dir="/tmp"))
    line = CommandLine(root)
    line.env["CUDA_VISIBLE_DEVICES"] = "-1"
    yield line
    try:
        line.clean_up()
    finally:
        shutil.rmtree(root)


@pytest.fixture(scope="module")
def features_of(line: CommandLine) -> Features:
    """Return a function: a release → for each of the two workers, its results by feature."""

    @cache
    def run_once(release: str) -> list[dict[str, dict[str, Any]]]:
        done = run(line, release)
        out = done.out.decode()
        assert done.code == 0, f"{done.err}\n{out}"
        found: list[dict[str, dict[str, Any]]] = [{}, {}]
        for worker, row in re.findall(r"^worker:(\d) │ feature (.*)$", out, re.MULTILINE):
            result = json.loads(row)
            assert release in {result["keras"], *NEXT}
            found[int(worker)][result["feature"]] = result
        return found

    return run_once


@pytest.mark.parametrize(
    "release", [releases()[-1], *(pytest.param(path, marks=pytest.mark.next) for path in NEXT)]
)
def test_without_the_shim_two_workers_fail(line: CommandLine, release: str) -> None:
    """A success would mean that Keras is fixed and that the shim's range ends before `release`."""
    features = ("dicts_weights_and_metrics",)
    done = run(line, release, "job.env.TFCLUSTER_KERAS3_SHIM=off", features=features)
    assert done.code == 1, f"Keras {release} trains on two workers without the shim: {done.err}"
    assert re.search("|".join(KNOWN_FAULTS), done.out.decode()), done.out.decode()


@each_release
@pytest.mark.parametrize("feature", ["dicts_weights_and_metrics", "resumed_from_a_backup"])
def test_with_the_shim_two_workers_have_the_same_numbers_as_one(
    features_of: Features, release: str, feature: str
) -> None:
    for worker in features_of(release):
        together, alone = (dict(numbers(worker[feature][which])) for which in ("together", "alone"))
        assert together == pytest.approx(alone, rel=1e-4, abs=1e-6)


@each_release
def test_training_resumes_from_files_that_only_the_chief_wrote(
    line: CommandLine, features_of: Features, release: str
) -> None:
    chief, other = (worker["resumed_from_a_backup"]["together"] for worker in features_of(release))
    left = sorted(path.name for path in (folder_of(line, release) / "shared").iterdir())
    assert left == ["1.weights.h5", "2.weights.h5", "3.weights.h5"], "nothing of the other worker's"
    assert chief["saved"] == pytest.approx(chief["weights"], rel=1e-6)
    assert len(chief["loss"]) == len(other["loss"]) == 1, "epochs after the interruption"


@each_release
def test_dropout_leaves_the_workers_with_the_same_weights(
    features_of: Features, release: str
) -> None:
    """Each worker draws its own masks, so the numbers are near those of one worker, not equal."""
    chief, other = (worker["dropout"] for worker in features_of(release))
    assert chief["together"] == other["together"]
    near = pytest.approx(chief["alone"]["loss"][-1], rel=0.2)
    assert chief["together"]["loss"][-1] == near
    assert all(math.isfinite(number) for _, number in numbers(chief))
