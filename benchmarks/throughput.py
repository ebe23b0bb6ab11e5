"""The cost of supervision for training, and the gain of a fair share of the cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from benchmarks.harness import Claim, Metric, Quantity, Taken
from benchmarks.trainings import Started, Training

STEPS = 600
FITS = 5
PLANNED = "1 and 2"
"""The name of the numbers that a plan sets if there are no more cores than tasks."""
THREADS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"as many as cores": (0, 0), "1 and 1": (1, 1), PLANNED: (1, 2)}
)
"""TF_NUM_INTRAOP_THREADS and TF_NUM_INTEROP_THREADS; 0 is TensorFlow's own choice, all cores."""


def _rate(workers: int, started: Started) -> Taken:
    rates = started.wait_for("rate-*", workers)
    started.box.end(started.process)
    taken: dict[str, float | list[float]] = {"examples": sum(one[0] for one in rates) / workers}
    if waits := [wait for _, *several in rates for wait in several]:
        taken["last step to fit's return"] = waits
    return taken


def tax(*, quick: bool, venv: str) -> Metric:
    """Return the metric: the steady rate of one `fit`, without its first fifth."""
    training = Training(venv, 2, ("tax", str(STEPS)))
    return Metric(
        title=f"Training tax: 2 workers, {STEPS} steps of one fit",
        quantities={"examples": Quantity("examples/s")},
        arms=training.arms(partial(_rate, 2), "shell", "tfcluster"),
        claims=[
            Claim(
                "tfcluster : shell, pairs",
                "examples",
                "tfcluster",
                "shell",
                at_least=0.97,
                stretch=1.0,
                is_paired=True,
            )
        ],
        note="Geometric mean of the rounds' ratios; the target applies to the lower end of the "
        "interval.",
    )


def fits(*, quick: bool, venv: str) -> Metric:
    """Return the metric of repeated `fit`, as in a notebook: each leaves an iterator to delete."""
    training = Training(venv, 4, ("fits", str(FITS)))
    waits = "last step to fit's return"
    return Metric(
        title=f"4 workers on this machine's cores, {FITS} times fit and evaluate",
        quantities={"examples": Quantity("examples/s"), waits: Quantity("s", "p90")},
        arms=training.arms(partial(_rate, 4), "shell", "tfcluster"),
        claims=[
            Claim("tfcluster : shell", "examples", "tfcluster", "shell", at_least=1.1, stretch=1.4),
            Claim("tfcluster : shell, p90", waits, "tfcluster", "shell", 0.5, stretch=0.2),
        ],
        note="shell: TensorFlow's default thread counts: each of the four workers uses all cores.",
    )


def threads(*, quick: bool, venv: str, workers: int) -> Metric:
    """Return the metric that compares numbers of threads for workers that share this machine.

    All arms but the shell have tfcluster's hooks.
    """
    training = Training(venv, workers, ("fits", "2"))
    waits, look = "last step to fit's return", partial(_rate, workers)
    arms = training.arms(look, "shell")
    for name, numbers in THREADS.items():
        arms[name] = training.arm(name, look, _set(*numbers))
    return Metric(
        title=f"Threads: {workers} workers on this machine's cores, twice fit and evaluate",
        quantities={"examples": Quantity("examples/s"), waits: Quantity("s", "p90")},
        arms=arms,
        claims=[
            *(
                Claim(f"{name} : {PLANNED}", "examples", name, PLANNED)
                for name in THREADS
                if name != PLANNED
            ),
            Claim(f"{PLANNED} : shell", "examples", PLANNED, "shell"),
            Claim(f"{PLANNED} : shell, p90", waits, PLANNED, "shell"),
        ],
        note="Arms are named after their numbers of threads within an operation (intra-op) and "
        "between operations (inter-op).",
    )


def _set(within: int, between: int) -> Sequence[str]:
    numbers = {"TF_NUM_INTRAOP_THREADS": within, "TF_NUM_INTEROP_THREADS": between}
    return [word for name, n in numbers.items() for word in ("--set", f"job.env.{name}={n}")]
