"""The script of docs/guides/your_own_script.md works alone and under `tfcluster run`."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.documentation import unprinted

from .lab import PYTHONS, ROOT, Lab, Trained, a_lab

PAGE = (ROOT / "docs/guides/your_own_script.md").read_text()
TASKS = ("worker:0", "worker:1")
STEPS, BATCH = 90, 32

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Yield a lab whose working folder has the two files of the page."""
    with a_lab() as lab:
        programs = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
        for name, program in zip(("shapes.py", "train.py"), programs, strict=False):
            lab.line.script(name, program)
        yield lab


@pytest.fixture(scope="module")
def alone(lab: Lab) -> list[float]:
    """The losses of `python train.py`."""
    command = [str(PYTHONS["tf215"]), "train.py", "--epochs", "3", "--out", "alone"]
    done = subprocess.run(command, cwd=lab.line.cwd, env=lab.line.env, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    return losses(lab.line.cwd / "alone")


@pytest.fixture(scope="module")
def together(lab: Lab) -> Trained:
    """The result of `tfcluster run -n 2 train.py`."""
    options = ("-n", "2", f"--python={PYTHONS['tf215']}")
    return lab.train("run", *options, "train.py", "--epochs", "3")


def losses(folder: Path) -> list[float]:
    found: list[float] = json.loads((folder / "history.json").read_text())
    return found


def test_the_script_has_the_same_losses_alone_and_on_two_workers(
    lab: Lab, alone: list[float], together: Trained
) -> None:
    assert together.code == 0, together.complaint()
    assert len(alone) == 3
    assert losses(lab.line.cwd / "out") == pytest.approx(alone, abs=1e-5)
    assert f"loss: {alone[0]:.4f}" in PAGE, "the page shows what the script prints"


def test_steps_and_examples_per_second_are_reported_for_the_unmodified_script(
    together: Trained,
) -> None:
    for task in TASKS:
        last = together.of("progress", task)[-1]
        assert (last["step"], last["epoch"]) == (STEPS, 3)
        assert set(last["metrics"]) == {"loss", "accuracy"}
    figures = together.state["figures"]
    examples = figures["mean_steps_per_second"] * BATCH
    assert figures["mean_examples_per_second"] == pytest.approx(examples, rel=0.01)
    assert re.search(rf"worker:1 +exit 0 .* {STEPS} +\d+\.\d ", together.err)


def test_the_page_shows_the_summary(together: Trained) -> None:
    assert unprinted("guides/your_own_script.md", "succeeded after", together.err) == []


def test_new_files_in_the_working_directory_are_listed_with_the_option_to_gather_them(
    together: Trained,
) -> None:
    summary = " ".join(together.err.split())
    assert "New files in the working directory: out/." in summary
    assert """--set 'checkpoints.outputs=["out/**"]'""" in summary
