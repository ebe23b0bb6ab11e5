"""Whether a coordinator on another machine lives shows in a file of the run folder."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.launcher.conftest import plan_of

from tfcluster.rundir import events as ev
from tfcluster.rundir import heartbeat, registry
from tfcluster.rundir.fold import first_state
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import this_process
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.states import Status

ELSEWHERE = replace(this_process(), host="elsewhere")


def age(paths: RunPaths, seconds: float) -> None:
    """Let the last beat have been `seconds` ago."""
    at = time.time() - seconds
    os.utime(paths.heartbeat, (at, at))


def running(paths: RunPaths) -> RunPaths:
    """Record a run that trains, with a coordinator on another machine."""
    writer = RunWriter(first_state(plan_of(), paths, ELSEWHERE, time.time()), paths)
    for number in (0, 1):
        started = ev.TaskStarted(task=f"worker:{number}", attempt=1, node="local", pid=20)
        writer.record(started)
    writer.close()
    heartbeat.claim(paths, asdict(ELSEWHERE))
    return paths


def test_the_age_of_a_beat_is_that_of_the_file_system(paths: RunPaths) -> None:
    assert heartbeat.silent_s(paths) is None, "there was none yet"
    heartbeat.claim(paths, asdict(ELSEWHERE))
    age(paths, 500)
    assert 490 < (heartbeat.silent_s(paths) or 0) < 1000
    heartbeat.beat(paths)
    assert (heartbeat.silent_s(paths) or 0) < 400
    assert not list(paths.root.glob(f"{paths.heartbeat.name}.*"))


def test_a_run_belongs_to_the_coordinator_that_claimed_it_last(paths: RunPaths) -> None:
    assert heartbeat.is_held_by(paths, asdict(ELSEWHERE)), "nobody else has claimed it"
    heartbeat.claim(paths, asdict(ELSEWHERE))
    assert heartbeat.is_held_by(paths, asdict(ELSEWHERE))
    heartbeat.claim(paths, asdict(this_process()))
    assert not heartbeat.is_held_by(paths, asdict(ELSEWHERE))
    paths.heartbeat.write_text("half a file")
    assert heartbeat.is_held_by(paths, asdict(ELSEWHERE)), "nothing is known"


def test_on_a_full_disk_the_run_does_not_stay_with_the_coordinator_before(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor took itself for one that was replaced, and ended."""
    heartbeat.claim(paths, asdict(ELSEWHERE))

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", fail)
        heartbeat.claim(paths, asdict(this_process()))
    assert heartbeat.is_held_by(paths, asdict(this_process()))


def test_a_run_on_another_machine_is_not_running_if_nothing_is_heard_of_its_coordinator(
    paths: RunPaths,
) -> None:
    running(paths)
    file = registry.StateFile(paths)
    assert registry.load(paths).status is Status.RUNNING
    age(paths, 500)
    for found in (registry.load(paths), registry.StateFile(paths).read()):
        assert found is not None
        assert found.status is Status.STALLED
        assert (found.stall or {})["what"] == "nothing is heard of its coordinator on elsewhere"
    assert registry.load_recorded(paths).status is Status.RUNNING
    assert not file.is_over()
