"""`keras_mnist` has the same losses for every spec and number of workers, and after a kill."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from functools import cache

import pytest
from tests.documentation import unprinted

from tfcluster.ui.native_lines import NativeFilter

from .lab import PYTHONS, SPECS, Lab, Trained, a_lab

# Many multi-worker TensorFlow runs, each started once.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

SMALL = ("--epochs=2", "--examples=960")
NO_STRATEGY = ("localhost-2w", "--set=cluster.worker=1", "--set=strategy.name=default")
SHARED = {
    "mirrored on two logical CPUs": (1, ("mirrored-local",)),
    "two workers": (2, ("localhost-2w", "--set=strategy.communication=RING")),
    "three workers, one killed in the second epoch": (
        3,
        ("localhost-3w", "--set=supervision.backoff_s=0", "--chaos=kill worker:2 at step 15"),
    ),
}
"""The ways to share the work: the number of tasks, the spec and the options that change it."""


class Runs:
    """The runs of this file, each started once, on the first 960 examples."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    @cache  # noqa: B019 (lives as long as the module's fixture)
    def of(self, tensorflow: str, spec: str, *options: str) -> Trained:
        python = f"--python={PYTHONS[tensorflow]}"
        logical = ("--logical-cpus=2",) if spec == "mirrored-local" else ()
        trained = self.lab.train(
            "up", str(SPECS / f"{spec}.json"), python, *options, "--", *SMALL, *logical
        )
        assert trained.code == 0, trained.complaint()
        return trained


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    with a_lab() as lab:
        yield Runs(lab)


@pytest.mark.parametrize(
    ("tensorflow", "how"),
    [
        *(("newest", how) for how in SHARED),
        ("tf215", "two workers"),
    ],
)
def test_each_way_to_share_the_work_has_the_same_losses(
    runs: Runs, tensorflow: str, how: str
) -> None:
    alone = runs.of(tensorflow, *NO_STRATEGY)
    expected = alone.losses()
    assert len(expected) == 2
    tasks, spec = SHARED[how]
    shared = runs.of(tensorflow, *spec)
    assert shared.state["warnings"] == [], "every setting has been read"
    for task in (f"worker:{number}" for number in range(tasks)):
        assert shared.losses(task) == pytest.approx(expected, abs=1e-4)
        assert shared.said(task, "^evaluated from (.*)") == ["ckpt-2"]
        tested = alone.said("worker:0", r"^test loss (\S+)")
        assert [float(loss) for loss in shared.said(task, r"^test loss (\S+)")] == pytest.approx(
            [float(loss) for loss in tested], abs=1e-4
        )


def test_after_a_kill_all_three_workers_resume_from_the_chiefs_last_epoch(runs: Runs) -> None:
    _, spec = SHARED["three workers, one killed in the second epoch"]
    trained = runs.of("newest", *spec)
    undisturbed = runs.of("newest", *NO_STRATEGY)
    assert trained.state["attempt"] == 2
    for task in ("worker:0", "worker:1", "worker:2"):
        steps = [e["step"] for e in trained.of("progress", task) if e["attempt"] == 2]
        assert (steps[0], steps[-1]) == (11, 20)
        assert trained.said(task, "^resuming after (.*)") == ["epoch 1"]
        assert trained.losses(task) == pytest.approx(undisturbed.losses(), abs=1e-4)


def test_the_pages_show_what_is_printed(runs: Runs) -> None:
    two = runs.of("newest", *SHARED["two workers"][1])
    killed = runs.of("newest", *SHARED["three workers, one killed in the second epoch"][1])
    of_worker_1 = killed.err.replace("worker:2", "worker:1")
    assert unprinted("tutorials/keras_mnist.md", "worker:1 │ evaluated", two.out) == []
    assert unprinted("tutorials/keras_mnist.md", "\nevaluated", two.out) == []
    assert unprinted("tutorials/keras_mnist.md", "resuming", killed.out, of_worker_1) == []
    assert unprinted("guides/keras.md", "patched", two.out) == []


@pytest.mark.parametrize("tensorflow", list(PYTHONS))
def test_no_line_of_native_code_is_printed(runs: Runs, tensorflow: str) -> None:
    trained = runs.of(tensorflow, *SHARED["two workers"][1])
    logs = (trained.folder / "logs").rglob("*.log")
    shown = [line for log in logs for line in NativeFilter()(log.read_bytes()).splitlines()]
    assert shown
    printed = trained.out.encode().splitlines()
    native = [x for x in [*shown, *printed] if re.search(rb"\.(?:cc|h):\d+\] |absl::", x)]
    # On a busy machine one task may end before the other has disconnected from it.
    assert [line for line in native if b"UNAVAILABLE: failed to connect" not in line] == []


@pytest.mark.parametrize("tensorflow", list(PYTHONS))
def test_the_start_lines_show_data_replicas_and_keras(runs: Runs, tensorflow: str) -> None:
    trained = runs.of(tensorflow, *SHARED["two workers"][1])
    (line,) = trained.said("worker:0", "^keras_mnist: (.*)")
    assert "synthetic_digits (synthetic data; --dataset mnist for real data)" in line
    assert "global batch 96 on 2 replicas" in line
    assert line.endswith("keras 2.15.0" if tensorflow == "tf215" else "keras 3.15.1")
    assert trained.said("worker:0", "^the model (.*)") == [
        "computes in float32, keeps float32 variables"
    ]


def test_the_learning_rate_follows_its_schedule_and_scales_with_the_batch_on_request(
    runs: Runs,
) -> None:
    trained = runs.lab.train(
        "up",
        str(SPECS / "mirrored-local.json"),
        f"--python={PYTHONS['tf215']}",
        "--",
        *("--epochs=8", "--examples=192", "--replica-batch=96", "--logical-cpus=2"),
        *("--scale-learning-rate", f"--csv={runs.lab.line.root}/epochs.csv"),
    )
    assert trained.code == 0, trained.complaint()
    rates = trained.said("worker:0", r"learning rate (\S+)$")
    assert [float(rate) for rate in rates] == [2e-3] * 3 + [2e-4] * 4 + [2e-5]
    with open(runs.lab.line.root / "epochs.csv") as table:
        losses = [float(row["loss"]) for row in csv.DictReader(table)]
    assert losses == pytest.approx(trained.losses(), abs=1e-5)
