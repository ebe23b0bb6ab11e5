"""A task traces whole steps when its agent asks for them, and never fails because of that."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tfcluster_workers.profiling import StepProfiler


class Rig:
    """A profiler whose recorder notes what it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.now, self.file = 100.0, str(folder / "profiles" / "worker-0.xplane.pb")
        self.requests: list[dict[str, Any]] = []
        self.sent: list[dict[str, Any]] = []
        self.problem: Exception | None = None
        self.calls: list[str] = []
        self.profiler = StepProfiler(
            lambda: self.requests.pop(0) if self.requests else None,
            lambda **fields: self.sent.append(fields),
            recorder=self,
            clock=lambda: self.now,
        )

    def start(self, file: str) -> None:
        self._note(f"start {Path(file).name}")

    def stop(self, file: str) -> None:
        self._note("stop")

    def _note(self, call: str) -> None:
        if self.problem is not None:
            raise self.problem
        self.calls.append(call)

    def ask(self, **fields: Any) -> None:
        usual = {"id": "p", "file": self.file, "until": 200.0, "first": 10, "steps": 3}
        self.requests.append({**usual, **fields})

    def steps(self, first: int, last: int, by: int = 1) -> None:
        for step in range(first, last + 1, by):
            self.now += 1.0
            self.profiler.at_step(step)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_the_steps_after_the_first_one_are_traced(rig: Rig) -> None:
    rig.steps(1, 4)
    rig.ask()
    rig.steps(5, 20)
    assert rig.calls == ["start worker-0.xplane.pb", "stop"]
    assert rig.sent == [{"id": "p", "seconds": 3.0, "first": 11, "last": 13}]
    assert Path(rig.file).parent.is_dir()


def test_a_task_that_is_late_ends_with_the_others_or_traces_as_many_steps(rig: Rig) -> None:
    rig.ask()
    rig.steps(12, 20)
    rig.ask(id="q")
    rig.steps(21, 30)
    first_and_last = [(report["first"], report["last"]) for report in rig.sent]
    assert first_and_last == [(13, 13), (22, 24)]


def test_several_steps_of_one_call_are_not_torn_apart(rig: Rig) -> None:
    rig.ask()
    rig.steps(0, 40, by=4)
    assert rig.sent == [{"id": "p", "seconds": 1.0, "first": 13, "last": 16}]


def test_nobody_waits_for_a_trace_that_would_begin_too_late(rig: Rig) -> None:
    rig.ask(until=101.5)
    rig.steps(8, 20)
    assert (rig.calls, rig.sent) == ([], [])
    rig.ask(id="q", first=20)
    rig.steps(21, 30)
    assert [report["id"] for report in rig.sent] == ["q"]


def test_a_training_that_begins_again_ends_the_trace(rig: Rig) -> None:
    rig.ask()
    rig.steps(8, 11)
    rig.steps(1, 3)
    assert rig.calls[-1] == "stop"
    assert len(rig.sent) == 1


def test_the_end_of_the_task_ends_the_trace(rig: Rig) -> None:
    rig.ask()
    rig.steps(8, 12)
    rig.profiler.end_early()
    rig.profiler.end_early()
    assert rig.sent == [{"id": "p", "seconds": 2.0, "first": 11, "last": 12}]


def test_a_fork_of_the_task_leaves_its_trace_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.ask()
    rig.steps(8, 12)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    rig.profiler.end_early()
    rig.steps(12, 20)
    assert (rig.calls, rig.sent) == (["start worker-0.xplane.pb"], [])


def test_a_profiler_that_fails_is_reported_and_the_training_goes_on(rig: Rig) -> None:
    for after in (10, 11):  # it fails to start, then to stop
        rig.ask()
        rig.problem = RuntimeError("in use") if after == 10 else None
        rig.steps(8, after)
        rig.problem = RuntimeError("disk full")
        rig.steps(after + 1, 20)
    assert [report["problem"] for report in rig.sent] == ["in use", "disk full"]


def test_a_request_of_another_release_is_ignored(rig: Rig) -> None:
    rig.ask(colour="blue")
    rig.steps(8, 20)
    assert (rig.calls, rig.sent) == ([], [])
