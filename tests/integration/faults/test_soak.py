"""Thirty faults in one run: coordinator and agent do not grow, and no event is lost."""

from __future__ import annotations

import itertools
import json
import random
import time
from dataclasses import dataclass, field

import psutil
import pytest
from tests.integration.commandline import CommandLine
from tests.integration.live import Live

from .scene import Trained, copy_jobs
from .test_with_stubs import trained

RESTARTS, STEPS = 30, 400
MOST_BYTES = 1 << 20
"""The allowed growth of resident memory in ten restarts, after the first few."""
WARM_AFTER = 5
FAULTS = (
    *itertools.product(("sigkill", "exception", "exit-3"), ("training", "saving")),
    *itertools.product(("sigkill", "sigterm", "port-thief"), ("before-join",)),
    ("sigstop", "training"),
)


def some_faults() -> str:
    """Return a value of FAULT with one fault for each attempt but the last.

    With this seed no port is stolen three times in a row.
    """
    draw = random.Random(20)
    chosen = [draw.choice(FAULTS) for _ in range(RESTARTS)]
    return ";".join(f"{kind} worker:{draw.randrange(3)} {phase}" for kind, phase in chosen)


@dataclass
class Growth:
    """The memory and the descriptors of a process at each restart."""

    pid: int
    memory: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def sample(self) -> None:
        process = psutil.Process(self.pid)
        self.memory.append(process.memory_info().rss)
        self.descriptors.append(process.num_fds())


def watch(run: Live) -> tuple[Growth, Growth]:
    """Sample coordinator and agent whenever a restart is reported, until the run ends."""
    coordinator, agent = Growth(run.state()["pid"]), Growth(run.agents()[0])
    restarts = 0
    while run.process.poll() is None:
        text = (run.folder / "events.jsonl").read_text()
        if (reported := text.count('"type":"restarting"')) > restarts:
            restarts = reported
            coordinator.sample()
            agent.sample()
        time.sleep(0.02)
    return coordinator, agent


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_thirty_faults_leak_neither_memory_nor_descriptors(shell: CommandLine) -> None:
    shell.forks = False  # measure the memory of the installed command
    copy_jobs(shell.cwd)
    job = {
        "script": "stub_worker.py",
        "args": [f"--steps={STEPS}", "--step-s=0.002", "--fault-step=7"],
        "env": {"FAULT": some_faults()},
    }
    supervision = {"backoff_s": 0, "max_restarts": 100}
    spec = shell.spec("soak.json", job, workers=3, supervision=supervision)
    run = Live(shell, "up", str(spec))
    coordinator, agent = watch(run)

    assert run.end() == 0, run.said()[-3000:]
    assert run.state()["attempt"] == RESTARTS + 1, run.said()
    for task in ("worker:0", "worker:1", "worker:2"):
        assert Trained.of(run.log(task, RESTARTS + 1)).is_close(trained(STEPS))
    for process in (coordinator, agent):
        assert len(process.memory) >= RESTARTS - 2, "too few restarts were sampled"
        check_growth(process)
    lines = (run.folder / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


def check_growth(process: Growth) -> None:
    warm = process.memory[WARM_AFTER:]
    decades = [warm[0], *warm[10::10]]
    growth = [after - before for before, after in itertools.pairwise(decades)]
    assert all(bytes_ < MOST_BYTES for bytes_ in growth), process.memory
    # A file may be open at the moment of a sample; a leak shows in the minimum of ten samples.
    assert min(process.descriptors[-10:]) <= min(process.descriptors[:10]), process.descriptors
