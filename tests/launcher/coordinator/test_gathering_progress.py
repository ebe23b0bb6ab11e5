"""A run shows the progress of the files it waits for, and gives up a host that stops sending."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.coordinator.scripted import (
    LOCAL,
    REMOTE,
    Agent,
    Ended,
    perform,
    plan_on_two_nodes,
)

from tfcluster.agent import protocol
from tfcluster.agent.error_text import describe_error, reason_of
from tfcluster.coordinator.coordinator import Coordinator
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status
from tfcluster.supervision.decisions import StopRequest
from tfcluster.typed_json import from_json
from tfcluster.ui.event_lines import format_event
from tfcluster.ui.live_panel import format_status_line
from tfcluster.ui.panels import runs_grid, status_panel
from tfcluster.ui.render import plain_text

MB = 1 << 20
DATA, INDEX = "ckpt-7.data-00000-of-00001", "ckpt-7.index"
ENTRIES = [[DATA, 6 * MB, 1], [INDEX, 10, 1]]


@dataclass
class Slow(Agent):
    """An agent with a checkpoint of 6 MB that sends 0.5 MB every 5 s, up to `most` bytes."""

    paths: RunPaths | None = None
    most: int = 6 * MB
    """The bytes after which the agent sends no more file messages."""
    states: list[dict[str, Any]] = field(default_factory=list)
    """The states of the run on disk during the copying."""
    work: list[asyncio.Task[None]] = field(default_factory=list)
    on_piece: Callable[[int], object] = int
    """Called with the place of each piece."""
    writes: bool = True
    """Whether the pieces are still written."""

    def _obey(self, order: dict[str, Any]) -> None:
        match order:
            case {"type": "scan", "folder": folder} if "checkpoints" in folder:
                self.say({"type": "scanned", "id": order["id"], "entries": ENTRIES})
            case {"type": "read", "path": path, "id": number} if path == DATA:
                self.work.append(asyncio.create_task(self._send(number)))
            case {"type": "scan" | "read"} if self.most < 6 * MB:
                pass
            case _:
                super()._obey(order)

    async def _send(self, number: int) -> None:
        assert self.paths is not None
        for at in range(0, self.most, MB // 2):
            await asyncio.sleep(5)
            self.on_piece(at)
            self._write(protocol.data_frame(protocol.FILE, str(number), at, bytes(MB // 2)))
            await self._until_written(at + MB // 2)
            self.states.append(json.loads(self.paths.state.read_text()))
        if self.most == 6 * MB:
            self.say({"type": "file_failed", "id": number, "error": "it is gone"})

    async def _until_written(self, size: int) -> None:
        """Give the thread that writes real time: the loop's clock would not wait for it."""
        assert self.paths is not None
        tries = 0
        while self.writes and max_size(self.paths.root) < size:
            await asyncio.sleep(0)
            time.sleep(0.005)  # noqa: ASYNC251 - no other clock runs at the speed of threads
            tries += 1
            self.writes = tries < 1000  # not if copying was given up


def max_size(folder: Path) -> int:
    """Return the size of the largest part of the checkpoint's data below `folder`, in bytes."""
    return max((part.stat().st_size for part in folder.rglob(f"*{DATA}*")), default=0)


def run_with(paths: RunPaths, tmp_path: Path, most: int) -> tuple[Ended, Slow]:
    plan = plan_on_two_nodes(tmp_path, remote_is_chief=True)
    slow = Slow(REMOTE, str(tmp_path), paths=paths, most=most)
    agents = {LOCAL: Agent(LOCAL, str(tmp_path)), REMOTE: slow}
    return perform(plan, agents, paths), slow


def test_the_state_shows_the_files_that_a_run_waits_for(paths: RunPaths, tmp_path: Path) -> None:
    """``status`` used to show ``worker:0 starting`` while gigabytes were copied."""
    _, slow = run_with(paths, tmp_path, 6 * MB)
    state = from_json(RunSnapshot, slow.states[-1])
    assert {task.state for task in state.tasks} == {"succeeded"}
    assert state.gathering is not None
    done = state.gathering["bytes"]
    assert state.gathering == {
        "what": "checkpoints",
        "node": REMOTE,
        "bytes": done,
        "of": 6 * MB + 10,
    }
    assert 3 * MB <= done < 6 * MB
    line = f"checkpoints from {REMOTE}, {done / 1e6:.1f} MB of 6.3 MB"
    assert f"gathering    {line}" in plain_text(status_panel(state, paths, now=1e9), 100)
    assert f"gathering {line}" in format_status_line(state, now=1e9, width=200)
    assert runs_grid([state], now=1e9).rows[0][1] == "running, gathering"
    events = [json.loads(line) for line in paths.events.read_text().splitlines()]
    lines = [format_event(event) for event in events if event["type"] == "gathering"]
    assert 2 <= len(lines) <= 4, "not every second"
    assert lines[0] is not None
    assert lines[0].text.startswith(f"gathering checkpoints from {REMOTE}, ")


@pytest.mark.parametrize(("times", "now"), [(1, False), (2, False), (1, True)])
def test_the_first_stop_after_the_tasks_end_lets_gathering_finish_and_the_second_aborts_it(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, now: bool
) -> None:
    made, begin = list[Coordinator](), Coordinator.__init__

    def note(coordinator: Coordinator, *args: Any, **how: Any) -> None:
        begin(coordinator, *args, **how)
        made.append(coordinator)

    monkeypatch.setattr(Coordinator, "__init__", note)

    def stop(at: int) -> None:
        if at == MB:
            for _ in range(times):
                made[0].stop(StopRequest("Ctrl-C", 130, now=now))

    plan = plan_on_two_nodes(tmp_path, remote_is_chief=True)
    slow = Slow(REMOTE, str(tmp_path), paths=paths, most=6 * MB, on_piece=stop)
    ended = perform(plan, {LOCAL: Agent(LOCAL, str(tmp_path)), REMOTE: slow}, paths)

    events = [json.loads(line) for line in paths.events.read_text().splitlines()]
    is_aborted = now or times == 2
    if not now:
        hints = [event["message"] for event in events if event["type"] == "hint"]
        assert hints[-1].endswith("their files are being copied; stop again to leave them")
        after = events[events.index(next(e for e in events if e["type"] == "hint")) :]
        (said, *_) = [event for event in after if event["type"] == "gathering"]
        assert said["of"] == 6 * MB + 10
    assert ended.state.missed == ("gathering was stopped" if is_aborted else None)
    if not is_aborted:
        assert slow.states[-1]["gathering"]["bytes"] >= 3 * MB
    else:
        assert (ended.outcome.status, ended.outcome.exit_code) == (Status.INTERRUPTED, 130)
        assert ended.outcome.error is not None
        assert f"tfcluster checkpoints {paths.run_id}" in ended.outcome.error.fix


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError(), OSError()])
def test_the_reason_of_an_error_without_text_is_not_empty(error: Exception) -> None:
    assert describe_error(error)
    assert reason_of(error)
