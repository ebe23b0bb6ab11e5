"""Whether a coordinator on another machine lives shows in a file of the run folder."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tfcluster.rundir import heartbeat
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import this_process

ELSEWHERE = replace(this_process(), host="elsewhere")


def age(paths: RunPaths, seconds: float) -> None:
    """Let the last beat have been `seconds` ago."""
    at = time.time() - seconds
    os.utime(paths.heartbeat, (at, at))


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
