"""Real training on hosts that share only a network gives the same numbers as on one machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.integration.jobs.lab import PYTHONS
from tests.integration.profiled import FIT_NOTEBOOK, check_profile
from tests.lab.machines import Lab

from .office import Office, Run, until

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

HANG_S = 240.0
"""The longest wait: six TensorFlow processes start on two idle cores in half a minute."""
SMALL = ("--examples=192",)
"""Arguments for two steps an epoch."""
EPOCHS = 14

PACED = """
import os, time
from tfcluster_workers.jobs import keras_mnist

make_callbacks = keras_mnist.make_callbacks

def paced(keras, *rest):
    attempt, release = os.environ["TFCLUSTER_ATTEMPT"], os.environ["RELEASE"]
    waits = attempt == "2"
    pause_s = float(os.environ["PAUSE_S"]) if attempt in ("1", "2") else 0
    def pause(*_):
        time.sleep(pause_s)
        while waits and not os.path.exists(release):
            time.sleep(0.1)
    return [*make_callbacks(keras, *rest), keras.callbacks.LambdaCallback(on_train_batch_end=pause)]

keras_mnist.make_callbacks = paced
keras_mnist.main()
"""
"""`keras_mnist` with a pause after each step of two attempts, to leave time for a fault.

The second attempt also waits for the file RELEASE.
"""

RESTORE = """
import sys
import tensorflow as tf
from tfcluster_workers.data import pipeline
from tfcluster_workers.jobs.parts import digits_cnn

model = digits_cnn.build(tf.keras, seed=99)
tf.train.Checkpoint(model=model).restore(sys.argv[1]).assert_existing_objects_matched()
digits_cnn.compile_for_training(tf.keras, model)
test = pipeline.load("synthetic_digits", "test", data_dir=sys.argv[2]).batch(96)
print(*model.evaluate(test, verbose=0))
"""
"""A script that uses the checkpoint in one process, without strategy, over other weights."""


class Gangs:
    """Runs on the same three hosts, one after the other."""

    def __init__(self, office: Office) -> None:
        self.office, self.lab = office, office.lab
        self.hosts = office.add_hosts(3)

    def start(self, name: str, job: dict[str, Any], *options: str) -> Run:
        """Start `tfcluster up` of a spec with a worker on every host, on fixed ports."""
        spec = self.office.spec(
            PACED,
            name=name,
            cluster={"worker": [f"{host.address}:2222" for host in self.hosts]},
            job={**job, "prepare": {"module": "tfcluster_workers.data.prepare"}},
            runtime={"hosts": {"*": {"python": str(PYTHONS["tf215"])}}},
            supervision={"backoff_s": 0},
        )
        run = self.office.up(spec, *options, "--", f"--epochs={EPOCHS}", *SMALL)
        run.name = name
        return run

    @cache  # noqa: B019 (lives as long as the module's fixture)
    def undisturbed(self) -> Run:
        run = self.start("undisturbed", {"module": "tfcluster_workers.jobs.keras_mnist"})
        self.finish(run)
        return run

    def finish(self, run: Run) -> None:
        """Wait until the run has succeeded and no process of it lives on any host."""
        assert run.end(HANG_S) == 0, run.said
        self._wait_for_silence()

    def end_unfinished(self) -> None:
        for pid, words in self.office.home.processes().items():
            if "tfcluster.cli.main" in words:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        self._wait_for_silence()

    def _wait_for_silence(self) -> None:
        everywhere = [self.office.home, *self.hosts]
        until(lambda: not any(machine.processes() for machine in everywhere), "the end of all")


@pytest.fixture(scope="module")
def gangs(lab: Lab) -> Iterator[Gangs]:
    office = Office(lab)
    try:
        yield Gangs(office)
    finally:
        office.close()
    assert not office.left, f"left behind: {office.left}"


@pytest.fixture(autouse=True)
def _alone(gangs: Gangs) -> Iterator[None]:
    """End the run of a test that failed in it, so that the next test gets the ports."""
    yield
    gangs.end_unfinished()


def test_the_checkpoint_of_three_hosts_gives_the_same_metrics_at_the_desk(gangs: Gangs) -> None:
    run = gangs.undisturbed()
    prepared = {event["node"] for event in run.of_type("prepare_finished")}
    assert prepared == {host.address for host in gangs.hosts}
    listed = gangs.office.start("checkpoints", run.folder.name)
    assert listed.end() == 0
    assert f"ckpt-{EPOCHS}" in listed.said
    asked = gangs.office.start("checkpoints", "--path", run.folder.name)
    assert asked.end() == 0
    loss, accuracy = restore(gangs, PYTHONS["tf215"], asked.said.strip())
    for task in tasks(3):
        assert logged(run, task, "test accuracy") == [pytest.approx(accuracy, abs=5e-5)]
        assert logged(run, task, "test loss") == [pytest.approx(loss, abs=1e-5)]


def test_a_gang_that_shrinks_and_grows_again_trains_to_the_same_numbers(gangs: Gangs) -> None:
    expected, third = gangs.undisturbed(), gangs.hosts[2]
    release = str(gangs.office.desk / "release")
    sets = ("min_workers=2", "lease_s=5", "grow_every_s=0.1")
    options = [f"--set=supervision.{one}" for one in sets]
    job = {"script": "train.py", "env": {"PAUSE_S": "0.3", "RELEASE": release}}
    run = gangs.start("elastic", job, *options)
    run.wait_for_event("checkpoint_gathered", HANG_S)
    gangs.lab.cut(third)
    until(lambda: run.log("worker:0", 2), "a gang of two", HANG_S)
    gangs.lab.repair(third)
    run.wait_for_event("node_back", HANG_S)
    gangs.office.release()
    gangs.finish(run)
    smaller, grown = run.of_type("restarting")[-2:]
    assert smaller["members"] == tasks(2)
    assert grown["reason"] == "worker:2 is back: growing to 3 workers"
    assert 0 < smaller["from_step"] < grown["from_step"] < 2 * EPOCHS
    for attempt, event, count in ((2, smaller, 2), (3, grown, 3)):
        for task in tasks(count):
            found = losses(run, task, attempt)
            first = event["from_step"] // 2
            wanted = losses(expected)[first : first + len(found)]
            assert found == pytest.approx(wanted, abs=1e-4)
    for task in tasks(3):
        assert len(losses(run, task, 3)) == EPOCHS - grown["from_step"] // 2
        assert logged(run, task, "test loss", 3) == pytest.approx(
            logged(expected, task, "test loss"), abs=1e-4
        )


def test_a_slow_link_is_named_as_what_makes_the_steps_long(gangs: Gangs) -> None:
    office, hosts = gangs.office, gangs.hosts[:2]
    spec = office.spec(
        "",
        name="slow-link",
        cluster={"worker": [f"{host.address}:2222" for host in hosts]},
        job={"module": "tfcluster_workers.jobs.gradient_volume"},
        runtime={"hosts": {"*": {"python": str(PYTHONS["tf215"])}}},
    )
    mbit = 20  # a busy machine adds little to so long a transfer
    for host in hosts:
        gangs.lab.shape(host, mbit=mbit)
    try:
        run = office.up(spec, "--", "--steps=100000", "--megabytes=2")
        run.name = "slow-link"
        verdict = run.wait_for_event("step_verdict", HANG_S)
    finally:
        for host in hosts:
            gangs.lab.shape(host, mbit=10_000)
    assert verdict["bound"] == "network"
    assert verdict["causes"] == []
    assert "2 MB a step at 0.00" in verdict["message"], verdict
    window = run.of_type("step_times")[-1]
    sent_s = 2e6 * window["steps"] * 8 / (mbit * 1e6)
    # Two workers send each gradient once, and TCP needs some percent more.
    assert window["parts"]["transfer"] == pytest.approx(sent_s, rel=0.3)
    assert window["parts"]["transfer"] / window["seconds"] > 0.7


def test_a_profile_has_the_trace_of_every_host(gangs: Gangs) -> None:
    office, python = gangs.office, PYTHONS["tf215"]
    office.write("train.ipynb", FIT_NOTEBOOK)
    spec = office.spec(
        name="traced",
        cluster={"worker": [f"{host.address}:2222" for host in gangs.hosts[:2]]},
        job={"script": "train.ipynb"},
        runtime={"hosts": {"*": {"python": str(python)}}},
    )
    run = office.up(spec)
    run.name = "traced"
    run.wait_for_event("progress", HANG_S)
    asked = office.start("profile", "traced", "--steps=4", "--json")
    assert asked.end(HANG_S) == 0, asked.said
    check_profile(asked.said, run.folder, python, steps=4)
    stopped = office.start("down", "traced")
    assert stopped.end(HANG_S) == 0, stopped.said
    assert run.end(HANG_S) == 143, run.said


def test_a_scaling_study_runs_on_the_first_hosts_of_the_spec(gangs: Gangs) -> None:
    addresses = [host.address for host in gangs.hosts]
    spec = gangs.office.spec(
        cluster={"worker": [f"{address}:2222" for address in addresses]},
        job={"module": "tfcluster_workers.jobs.gradient_volume"},
        runtime={"hosts": {"*": {"python": str(PYTHONS["tf215"])}, addresses[2]: {"env": {}}}},
    )
    run = gangs.office.start("scale", str(spec), "--steps=20", "--json", "--", "--steps=1000000")
    assert run.end(HANG_S) == 0, run.said
    study = json.loads(next(line for line in run.said.splitlines() if line.startswith("{")))
    assert (study["backend"], study["cores"], study["gradient_bytes"]) == ("ssh", None, 4e6)
    assert [cell["nodes"] for cell in study["cells"]] == [addresses[:1], addresses[:2]]
    assert all(cell["steps"] >= 20 and cell["examples_per_second"] > 0 for cell in study["cells"])
    assert not [*gangs.office.home.root.glob(".local/state/tfcluster/runs/far-*")]


def tasks(count: int) -> list[str]:
    return [f"worker:{number}" for number in range(count)]


def logged(run: Run, task: str, what: str, attempt: int = 1) -> list[float]:
    lines = re.findall(rf"^{what} (\S+)", run.log(task, attempt), re.MULTILINE)
    return [float(value) for value in lines]


def losses(run: Run, task: str = "worker:0", attempt: int = 1) -> list[float]:
    """Return the loss of each epoch that `task` has logged."""
    return logged(run, task, r"epoch \d+ loss", attempt)


def restore(gangs: Gangs, python: Path, checkpoint: str) -> list[float]:
    """Return loss and accuracy of the test split, computed at the desk in a separate process."""
    data = gangs.hosts[0].root / "tensorflow_datasets"
    workers = next(path for path in sys.path if (Path(path) / "tfcluster_workers").is_dir())
    done = gangs.office.home.run(
        [str(python), "-c", RESTORE, checkpoint, str(data)],
        env={"PYTHONPATH": workers, "CUDA_VISIBLE_DEVICES": "-1"},
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    return [float(number) for number in done.stdout.split()]
