"""An ensemble of gathered models is at least as good on validation as the models on average."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest
from tests.documentation import unprinted

from .lab import PYTHONS, ROOT, SPECS, Lab, Trained, a_lab

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

LOSS = r"^validation cross-entropy (mean single|plain|weighted) (\S+)"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab() as made:
        yield made


@pytest.fixture(scope="module")
def runs(lab: Lab) -> list[str]:
    """Train two small runs of `localhost-2w` with different seeds, on TensorFlow 2.15."""
    return [trained(lab, seed).folder.name for seed in (1, 2)]


@pytest.fixture(scope="module")
def output_of_one_run(lab: Lab, runs: list[str]) -> str:
    """The output of the spec ensemble.json, which takes the latest run of localhost-2w."""
    done = lab.train("up", str(SPECS / "ensemble.json"), f"--python={PYTHONS['tf215']}")
    assert done.code == 0, done.complaint()
    return "\n".join(done.said("worker:0", r".+"))


@pytest.fixture(scope="module")
def output_of_two_runs(lab: Lab, runs: list[str]) -> str:
    """The output of the ensemble job without the launcher, with the newest TensorFlow."""
    done = alone(lab, "newest", "--runs", *runs, "--search", "random")
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def trained(lab: Lab, seed: int) -> Trained:
    options = (f"--python={PYTHONS['tf215']}", "--set=cluster.worker=1")
    few = ("--", "--epochs=3", "--examples=1920", f"--seed={seed}")
    done = lab.train("up", str(SPECS / "localhost-2w.json"), *options, *few)
    assert done.code == 0, done.complaint()
    return done


def alone(lab: Lab, python: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PYTHONS[python]), "-m", "tfcluster_workers.jobs.ensemble", *args],
        env=lab.line.env | {"PYTHONPATH": str(ROOT / "workers")},
        cwd=lab.line.root,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_spec_weights_the_checkpoints_of_the_latest_run(
    output_of_one_run: str, runs: list[str]
) -> None:
    members = re.findall(r"^cross-entropy \S+ weight (\S+) (.*)", output_of_one_run, re.M)
    kept = ["ckpt-1", "ckpt-2", "ckpt-3"]
    assert [path.rpartition("/")[2] for _, path in members] == kept
    assert all(f"/{runs[-1]}/" in path for _, path in members)
    assert sum(float(weight) for weight, _ in members) == pytest.approx(1, abs=1e-3)


def test_weighted_is_at_most_plain_and_plain_is_below_the_mean_of_single_models(
    output_of_one_run: str, output_of_two_runs: str
) -> None:
    for said in (output_of_one_run, output_of_two_runs):
        losses = {name: float(loss) for name, loss in re.findall(LOSS, said, re.M)}
        assert losses["weighted"] <= losses["plain"] < losses["mean single"]


def test_the_page_shows_what_is_printed(output_of_one_run: str, output_of_two_runs: str) -> None:
    labelled = "\n".join(f"worker:0 │ {line}" for line in output_of_one_run.splitlines())
    assert unprinted("tutorials/ensemble.md", "│", labelled) == []
    assert unprinted("tutorials/ensemble.md", "…\ncross", output_of_two_runs) == []


def test_the_test_accuracy_is_printed_once(output_of_one_run: str, output_of_two_runs: str) -> None:
    for said in (output_of_one_run, output_of_two_runs):
        (accuracy,) = re.findall(r"^test accuracy (\S+)", said, re.M)
        assert float(accuracy) > 0.8


def test_several_runs_each_give_their_newest_model(
    output_of_two_runs: str, runs: list[str]
) -> None:
    paths = re.findall(r"^cross-entropy \S+ weight \S+ (.*)", output_of_two_runs, re.M)
    assert [path.rpartition("/")[2] for path in paths] == ["ckpt-3", "ckpt-3"]
    assert [run in path for run, path in zip(runs, paths, strict=True)] == [True, True]


def test_checkpoints_of_another_model_are_refused_with_one_line(lab: Lab, runs: list[str]) -> None:
    done = alone(lab, "tf215", "--runs", runs[0], "--model", "fashion_cnn", "--examples", "10")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("ensemble:")]
    assert "ckpt-1 is not a checkpoint of fashion_cnn" in line
    assert "Traceback" not in done.stderr
