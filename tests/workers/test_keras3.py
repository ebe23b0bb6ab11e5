"""Keras 3 on two workers fails as released and gives the numbers of one worker when patched.

The cases are in the folder keras3: all run once with two workers and once with one worker.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.integration.commandline import CommandLine

from .conftest import PYTHONS, REPOSITORY, Ended, Gang

# Two processes of TensorFlow 2.21 on two cores that may be busy.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(1200)]
CASES = Path(__file__).with_name("keras3")
Numbers = dict[str, dict[str, Any]]

FIT = """
{imported}
import numpy as np, tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
x = np.ones((8, 2), "float32")
model.fit(x, x[:, 0], batch_size=4, verbose=0)
print("evaluated", model.evaluate(x, x[:, 0], batch_size=4, verbose=0, return_dict=True))
print("predicted", model.predict(x, batch_size=4, verbose=0).shape)
"""
TOGETHER = """
import atexit, glob, os, time

def await_other():
    open(f"failed-{os.getpid()}", "w").close()
    while len(glob.glob("failed-*")) < 2:
        time.sleep(0.05)

atexit.register(await_other)
"""
"""Part of a script whose two tasks exit together: none fails because the other is gone."""
SPELLINGS = {
    "import keras": "import keras",
    "tf.keras": "import tensorflow as tf\nkeras = tf.keras",
}
KNOWN_FAULTS = r"Invalid reduction dimension 0|convert a value \(PerReplica"
ANNOUNCED = "for multi-worker training (keras#20585)"


def case_names(kind: str) -> list[str]:
    """Return the names of the cases with decorator `kind`, without importing TensorFlow."""
    return [
        node.name
        for name in ("data.py", "models.py")
        for node in ast.parse((CASES / name).read_text()).body
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Name) and decorator.id == kind
    ]


@pytest.fixture(scope="module")
def run(gang: Gang, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[Ended]]:
    """Return a function that runs all cases with N workers; each N runs once."""

    @cache
    def run_cases(workers: int) -> list[Ended]:
        tasks = [f"worker:{index}" for index in range(workers)]
        folder = tmp_path_factory.mktemp(f"{workers}w")
        target, env = ["module", "tests.workers.keras3"], {"PYTHONPATH": str(REPOSITORY)}
        ended = gang(PYTHONS["newest"], tasks, target, cwd=folder, env=lambda task: env)
        return [ended[task] for task in tasks]

    return run_cases


def numbers(ended: Ended) -> Numbers:
    lines = [line.split(" ", 2) for line in ended.text.splitlines() if line.startswith("case ")]
    return {name: json.loads(found) for _, name, found in lines}


def leaves(found: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(found, dict | list):
        inner = found.items() if isinstance(found, dict) else enumerate(found)
        for name, value in inner:
            yield from leaves(value, f"{path}/{name}")
    else:
        yield path, found


@pytest.mark.next
@pytest.mark.parametrize("case", case_names("case"))
def test_two_workers_give_the_numbers_of_one(run: Callable[[int], list[Ended]], case: str) -> None:
    one, (first, second) = run(1)[0], run(2)
    alone, together = numbers(one)[case], numbers(first)[case]
    assert "error" not in alone, f"{alone['error']}\n{one.text[-3000:]}"
    assert "error" not in together, f"{together['error']}\n{first.text[-3000:]}"
    assert numbers(second)[case] == together, "the workers report different numbers"
    expected = {path: value for path, value in leaves(alone) if path != "/drawn"}
    found = {path: value for path, value in leaves(together) if path != "/drawn"}
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.next
@pytest.mark.parametrize("refused", case_names("refusal"))
def test_an_unsupported_feature_is_refused_with_the_fix(
    run: Callable[[int], list[Ended]], refused: str
) -> None:
    error = numbers(run(2)[0])[refused]["error"]
    assert error.startswith("Keras3Error: ")
    assert {
        "gradient_accumulation": "gradient_accumulation_steps of Keras 3 does not work",
        "averages_that_overwrite": "ema_overwrite_frequency of Keras 3 does not work",
        "a_metric_from_outside_the_scope": "the metric `top` was made outside strategy.scope()",
    }[refused] in error


@pytest.mark.next
def test_the_chief_logs_once_that_keras_is_patched(
    run: Callable[[int], list[Ended]],
) -> None:
    counts = [ended.text.count(ANNOUNCED) for ended in (*run(2), *run(1))]
    assert counts == [1, 0, 0]
    (line,) = [line for line in run(2)[0].text.splitlines() if ANNOUNCED in line]
    assert "TFCLUSTER_KERAS3_SHIM=off disables the patch" in line


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_script_fails_without_the_patch_and_works_with_it(
    gang: Gang, tmp_path: Path, spelling: str
) -> None:
    script = FIT.format(imported=SPELLINGS[spelling])
    (tmp_path / "job.py").write_text(script)
    tasks, target = ["worker:0", "worker:1"], ["script", str(tmp_path / "job.py")]

    def train(**env: str) -> list[Ended]:
        ended = gang(PYTHONS["newest"], tasks, target, cwd=tmp_path, env=lambda task: env)
        return [ended[task] for task in tasks]

    if spelling == "import keras":
        (tmp_path / "job.py").write_text(script.replace("x = np", f"{TOGETHER}\nx = np"))
        for ended in train(TFCLUSTER_KERAS3_SHIM="off"):
            assert ended.code == 1, "Keras works without the patch: was it fixed upstream?"
            assert re.search(KNOWN_FAULTS, ended.text), ended.text[-3000:]
            assert ANNOUNCED not in ended.text
        (tmp_path / "job.py").write_text(script)
    patched = train()
    assert [ended.code for ended in patched] == [0, 0], patched[0].text[-3000:]
    assert all("predicted (8, 1)" in ended.text for ended in patched)
    steps = [event["step"] for event in patched[0].events if event["type"] == "progress"]
    assert steps[-1] == 2
    lines = [line for line in patched[0].text.splitlines() if line.startswith("evaluated")]
    assert lines == [line for line in patched[1].text.splitlines() if line.startswith("evaluated")]


def keras_with_another_trainer(folder: Path) -> dict[str, str]:
    """Copy the installed Keras, change a function that is patched; return the variables for it."""
    (installed,) = Path(PYTHONS["newest"]).parent.parent.glob("lib/python3*/site-packages/keras")
    shutil.copytree(installed, folder / "keras", ignore=shutil.ignore_patterns("__pycache__"))
    module = folder / "keras/src/backend/tensorflow/trainer.py"
    source = module.read_text()
    assert "(self, iterator=None, data_batch=None)" in source
    module.write_text(source.replace("(self, iterator=None, data_batch=None)", "(self, **given)"))
    return {"PYTHONPATH": str(folder)}


@pytest.mark.next
def test_a_changed_function_is_the_root_cause_before_the_first_step(tmp_path: Path) -> None:
    """The run names the function, as a release may come that tfcluster does not know."""
    folder = Path(tempfile.mkdtemp(prefix="tfc-", dir="/tmp"))  # short: it holds sockets
    line = CommandLine(folder)
    job = line.script("job.py", FIT.format(imported="import keras"))
    env = keras_with_another_trainer(tmp_path)
    options = [f"--python={PYTHONS['newest']}", "--set=keras.version=3"]
    options += [f"--set=job.env.{name}={value}" for name, value in env.items()]
    try:
        done = line.run("run", "-n", "2", *options, str(job), timeout=600)
        kinds = {event["type"] for event in line.events()}
    finally:
        line.clean_up()
        shutil.rmtree(folder)
    summary = " ".join(done.err.split())
    assert done.code == 1, summary
    cause = summary[summary.index("root cause: worker:") :]
    assert re.match(r"root cause: worker:\d, exit 1 Keras3Error: Keras \S+ cannot be", cause)
    for words in (
        "no method of keras.src.backend.tensorflow.trainer.",
        "'keras==3.15.1'), or set keras.version to 2",
        "failures#keras-3-refused",
    ):
        assert words in cause
    assert "progress" not in kinds
