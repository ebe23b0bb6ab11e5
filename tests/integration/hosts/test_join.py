"""`tfcluster join` on each of three machines forms one cluster without a common coordinator."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.integration.jobs.lab import PYTHONS
from tests.lab.machine import Machine, kill

from .office import Office, one, until

COMMAND = str(Path(sys.executable).with_name("tfcluster"))
FINDS = """
import os, time
print("config", os.environ["TF_CONFIG"], flush=True)
time.sleep(float(os.environ["STAYS"]))
"""
LONG_S = 240.0
"""The longest wait: three TensorFlow processes start on machines that are in fact one."""
TRAINS = {
    "module": "tfcluster_workers.jobs.keras_mnist",
    "prepare": {"module": "tfcluster_workers.data.prepare"},
}


class Joined:
    """A `tfcluster join` on one machine."""

    def __init__(self, host: Machine, *more: str) -> None:
        self.host = host
        home = Path("~").expanduser()
        self._process = host.start(
            [COMMAND, "join", f"{home}/train.json", *more],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.said = ""

    def end(self) -> int:
        """Wait until the command has ended and return its exit code; its output is in `said`."""
        if not self.said:
            self.said = self._process.communicate(timeout=LONG_S)[0]
        return self._process.returncode

    @property
    def folder(self) -> Path:
        runs = self.host.root / ".local/state/tfcluster/runs"
        found: list[Path] = until(lambda: [*runs.glob("*/state.json")], f"a run; {self.said}")
        return found[0].parent

    def log(self, task: str) -> str:
        path = self.folder / "logs" / "attempt-1" / f"{task.replace(':', '-')}.log"
        return path.read_text() if path.exists() else ""

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return found

    def step(self) -> int:
        """Return the highest step that its tasks have reported."""
        return max(task["step"] or 0 for task in self.state()["tasks"])

    def pids(self, words: str) -> list[int]:
        """Return the pids, as seen from here, of the machine's processes with `words` in argv."""
        return [pid for pid, line in self.host.processes().items() if words in line]

    def close(self) -> None:
        if self._process.poll() is None:
            kill(self.pids("tfcluster join"))  # our own child is only a wrapper of it
        self._process.communicate()


class Hall:
    """Machines on which a user types `tfcluster join`."""

    def __init__(self, office: Office) -> None:
        self._office, self._joined = office, list[Joined]()

    def hosts(self, workers: Sequence[int], job: dict[str, Any], **more: Any) -> list[Machine]:
        """Add machines with the spec, one for each number of workers in `workers`."""
        hosts = self._office.add_hosts(len(workers))
        addresses = [
            f"{host.address}:{2222 + index}"
            for host, count in zip(hosts, workers, strict=True)
            for index in range(count)
        ]
        spec = {"name": "joined", "cluster": {"worker": addresses}, "job": job, **more}
        for host in hosts:
            (host.root / "train.json").write_text(json.dumps(spec))
            (host.root / "finds.py").write_text(FINDS)
        return hosts

    def join(self, host: Machine, *more: str) -> Joined:
        self._joined.append(Joined(host, *more))
        return self._joined[-1]

    def train(self, workers: Sequence[int], *args: str, **more: Any) -> list[Joined]:
        """Start `keras_mnist` on every machine."""
        job = TRAINS | {"args": list(args)}
        return [
            self.join(host, f"--python={python()}") for host in self.hosts(workers, job, **more)
        ]

    def close(self) -> None:
        for joined in self._joined:
            joined.close()


def python() -> Path:
    """Return the Python with TensorFlow 2.15, which is imported fastest, or else the newest."""
    return PYTHONS["tf215"] if PYTHONS["tf215"].exists() else PYTHONS["newest"]


@pytest.fixture
def hall(office: Office) -> Iterator[Hall]:
    made = Hall(office)
    try:
        yield made
    finally:
        made.close()


def stub(stays_s: float) -> dict[str, Any]:
    return {"script": "finds.py", "hooks": "off", "env": {"STAYS": str(stays_s)}}


@pytest.mark.slow
def test_each_machine_finds_its_own_tasks_and_a_scheduler_can_end_them(hall: Hall) -> None:
    hosts = hall.hosts([1, 2, 1], stub(300))
    stranger, *two = reversed(hosts)
    (stranger.root / "train.json").write_text(
        (stranger.root / "train.json").read_text().replace(f"{stranger.address}:", "10.77.9.9:")
    )
    refused = hall.join(stranger)
    assert refused.end() == 3
    assert f"{stranger.address}, {stranger.name}" in refused.said
    assert "10.77.9.9" in refused.said

    pair, single = (hall.join(host) for host in two)
    for joined, tasks in ((single, ["worker:0"]), (pair, ["worker:1", "worker:2"])):
        until(lambda j=joined, t=tasks: all("\n" in j.log(task) for task in t), str(tasks))  # type: ignore[misc]
        assert [task["task"] for task in joined.state()["tasks"]] == tasks
        for index, task in enumerate(tasks, start=int(tasks[0][-1])):
            config = json.loads(joined.log(task).removeprefix("config "))
            assert config["task"] == {"type": "worker", "index": index}
            assert len(config["cluster"]["worker"]) == 4
    for joined in (single, pair):
        pid = one(lambda joined=joined: joined.pids("tfcluster join"), "process of the command")  # type: ignore[misc]
        os.kill(pid, signal.SIGTERM)
        assert joined.end() == 143, joined.said


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.timeout(600)
def test_two_workers_of_one_machine_train_with_one_of_another(hall: Hall) -> None:
    pair, third = hall.train((2, 1), "--epochs=1", "--examples=192")
    assert (pair.end(), third.end()) == (0, 0), pair.said + third.said
    assert checkpoints(pair)
    assert not checkpoints(third)
    loss = logged(pair, "worker:0", "test loss")
    assert logged(pair, "worker:1", "test loss") == pytest.approx(loss, abs=1e-5)
    assert logged(third, "worker:2", "test loss") == pytest.approx(loss, abs=1e-5)


def checkpoints(joined: Joined) -> list[Path]:
    """Return the checkpoints in the run folder on the machine."""
    return [*(joined.folder / "checkpoints").glob("*")]


def logged(joined: Joined, task: str, what: str) -> float:
    (value,) = re.findall(rf"^{what} (\S+)", joined.log(task), re.MULTILINE)
    return float(value)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.timeout(600)
def test_the_machine_that_loses_a_worker_exits_with_1_and_the_others_with_5(hall: Hall) -> None:
    joined = hall.train((1, 1), "--epochs=500", "--examples=192")
    until(lambda: all(machine.step() > 3 for machine in joined), "some steps of all", LONG_S)
    *others, last = joined
    kill(last.pids("tfcluster_workers/boot.py"))
    assert last.end() == 1, last.said
    assert "SIGKILL" in last.said
    for machine in others:
        assert machine.end() == 5, machine.said
        assert "on another machine" in machine.said
