"""A file of metrics that cannot be written gives one warning; once it can be, it is."""

from __future__ import annotations

import asyncio

import pytest
from tests.launcher.conftest import plan_of

from tfcluster.coordinator import metrics_file
from tfcluster.coordinator.metrics_file import MetricsFile
from tfcluster.rundir.fold import first_state
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import this_process
from tfcluster.rundir.run_writer import RunWriter


def test_one_warning_and_a_file_as_soon_as_there_is_room(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_file, "_EVERY_S", 0.0)
    folder = paths.root / "textfiles"
    run_writer = RunWriter(first_state(plan_of(), paths, this_process(), 1.0), paths)
    file = MetricsFile(folder / "lab.prom", run_writer)

    async def follow() -> None:
        following = asyncio.create_task(file.keep_written())
        for _ in range(3):
            await asyncio.sleep(0)
        folder.mkdir()
        for _ in range(3):
            await asyncio.sleep(0)
        following.cancel()

    asyncio.run(follow())
    run_writer.close()
    (warning,) = run_writer.state.warnings
    assert warning.startswith(f"{file.path} cannot be written: ")
    assert f'run="{paths.run_id}"' in file.path.read_text()
