"""The logs of remote nodes are kept in the run folder, each byte once, with its time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tfcluster.agent.protocol import NOT_IN_FILE
from tfcluster.nodes.remote_logs import RemoteLogs
from tfcluster.plans.plan import TaskId
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.task_logs import LogTimes
from tfcluster.wire.messages import Log


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "demo-20260914-153012-k7f3")


def test_bytes_that_are_sent_again_are_kept_once(paths: RunPaths) -> None:
    logs = RemoteLogs(paths)
    for offset, data in [(0, b"one\n"), (0, b"one\ntwo\n"), (NOT_IN_FILE, b"lost\n"), (8, b"end")]:
        logs.take("gpu1", Log(name="worker:1/2", offset=offset, data=data))
    log = paths.task_log(TaskId("worker", 1), 2)
    assert log.read_bytes() == b"one\ntwo\nlost\nend"


def test_a_line_has_the_time_at_which_it_came(paths: RunPaths) -> None:
    logs, before = RemoteLogs(paths), time.time()
    logs.take("gpu1", Log(name="prepare/0", offset=0, data=b"one\n"))
    between = time.time()
    time.sleep(0.15)
    logs.take("gpu1", Log(name="prepare/0", offset=4, data=b"two\n"))
    times = LogTimes(paths.step_log("prepare", "gpu1"))
    first, second = times.at(3), times.at(7)
    assert first is not None
    assert second is not None
    assert before <= first <= between < second
