"""Keras with the changes of docs/upstream, and without the patch, trains on two workers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.commandline import CommandLine
from tests.matrix.results import numbers

ROOT = Path(__file__).parents[2]
APPLY = ROOT / "docs/upstream/apply.py"
FEATURES = ROOT / "tests/matrix/features.py"
PYTHON = Path(os.environ.get("TFCLUSTER_TEST_PYTHON_NEWEST", str(ROOT / ".venv/bin/python")))

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def changed() -> Iterator[Path]:
    """Yield a folder with a changed copy of the installed Keras."""
    (keras,) = PYTHON.parent.parent.glob("lib/python3*/site-packages/keras")
    folder = Path(tempfile.mkdtemp(prefix="tfc-", dir="/tmp"))
    shutil.copytree(keras, folder / "keras", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, str(APPLY), str(folder / "keras")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n+++ ") == 2, "the diff shows the trainer and the test"
    yield folder
    shutil.rmtree(folder)


@pytest.mark.next
def test_two_workers_train_like_one_without_the_patch(changed: Path) -> None:
    line = CommandLine(Path(tempfile.mkdtemp(prefix="tfc-", dir="/tmp")))
    line.env["CUDA_VISIBLE_DEVICES"] = "-1"
    env = {"TFCLUSTER_KERAS3_SHIM": "off", "PYTHONPATH": str(changed)}
    settings = [f"--set=job.env.{name}={value}" for name, value in env.items()]
    options = [f"--python={PYTHON}", "--set=keras.version=3", *settings]
    try:
        feature = "dicts_weights_and_metrics"
        done = line.run("run", "-n", "2", *options, str(FEATURES), feature, timeout=580)
        out = done.out.decode()
        assert done.code == 0, f"{done.err}\n{out}"
        assert "patched Keras" not in out
        rows = re.findall(r"^worker:\d │ feature (.*)$", out, re.MULTILINE)
        assert len(rows) == 2
        for row in map(json.loads, rows):
            together, alone = (dict(numbers(row[which])) for which in ("together", "alone"))
            assert together == pytest.approx(alone, rel=1e-4, abs=1e-6)
    finally:
        line.clean_up()
        shutil.rmtree(line.root)


@pytest.mark.next
def test_the_patch_fits_a_keras_that_has_these_changes(changed: Path) -> None:
    """The day on which Keras fixes the bug must not be the one on which tfcluster refuses it."""
    code = (
        "import keras\nfrom tfcluster_workers.keras3 import patching\npatching.attach(keras)\n"
        "print(keras.__file__, patching.obstacle(keras) or 'patched')"
    )
    path = f"{changed}{os.pathsep}{ROOT / 'workers'}"
    done = subprocess.run(
        [PYTHON, "-c", code],
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1:] == [f"{changed}/keras/__init__.py patched"], done.stderr


def test_the_test_for_keras_passes(changed: Path) -> None:
    (test,) = changed.rglob("multi_worker_test.py")
    done = subprocess.run(
        [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        cwd=changed,
        env={**os.environ, "PYTHONPATH": str(changed), "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
