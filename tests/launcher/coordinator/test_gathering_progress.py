"""While a run waits for files, everybody can see what for and how far it is; and it never waits
without end for a host whose files stand still."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.coordinator.scripted import FAR, HERE, Agent, Ended, perform, plan_on_two_nodes

from tfcluster.agent import protocol
from tfcluster.agent.error_text import describe_error, reason_of
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.ui.event_lines import format_event
from tfcluster.ui.follow import format_status_line
from tfcluster.ui.panels import runs_grid, status_panel
from tfcluster.ui.render import plain_text

MB = 1 << 20
DATA, INDEX = "ckpt-7.data-00000-of-00001", "ckpt-7.index"
ENTRIES = [[DATA, 6 * MB, 1], [INDEX, 10, 1]]


@dataclass
class Slow(Agent):
    """Has a checkpoint, of which half a megabyte comes every five seconds, or less than all."""

    paths: RunPaths | None = None
    most: int = 6 * MB
    """Bytes after which nothing about files comes any more."""
    seen: list[dict[str, Any]] = field(default_factory=list)
    """States of the run on disk, while the checkpoint comes."""
    work: list[asyncio.Task[None]] = field(default_factory=list)

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
            self._write(protocol.data_frame(protocol.FILE, str(number), at, bytes(MB // 2)))
            self.seen.append(json.loads(self.paths.state.read_text()))
        if self.most == 6 * MB:
            self.say({"type": "read_end", "id": number, "error": "it is gone"})


def run_with(paths: RunPaths, tmp_path: Path, most: int) -> tuple[Ended, Slow]:
    plan = plan_on_two_nodes(tmp_path, hostile_is_chief=True)
    slow = Slow(FAR, str(tmp_path), paths=paths, most=most)
    agents = {HERE: Agent(HERE, str(tmp_path)), FAR: slow}
    return perform(plan, agents, paths), slow


def test_what_a_run_waits_for_is_in_its_state_while_it_does(
    paths: RunPaths, tmp_path: Path
) -> None:
    """``status`` said ``worker:0 starting`` for as long as gigabytes came."""
    _, slow = run_with(paths, tmp_path, 6 * MB)
    state = RunSnapshot.from_json(slow.seen[-1])
    assert {task.state for task in state.tasks} == {"succeeded"}
    assert state.gathering is not None
    done = state.gathering["bytes"]
    assert state.gathering == {"what": "checkpoints", "node": FAR, "bytes": done, "of": 6 * MB + 10}
    assert 3 * MB <= done < 6 * MB
    line = f"checkpoints from {FAR}, {done / 1e6:.1f} MB of 6.3 MB"
    assert f"gathering    {line}" in plain_text(status_panel(state, paths, now=1e9), 100)
    assert f"gathering {line}" in format_status_line(state, {}, now=1e9, width=200)
    assert runs_grid([state], now=1e9).rows[0][1] == "running, gathering"
    events = [json.loads(line) for line in paths.events.read_text().splitlines()]
    told = [format_event(event) for event in events if event["type"] == "gathering"]
    assert 2 <= len(told) <= 4, "not every second"
    assert told[0] is not None
    assert told[0].text.startswith(f"gathering checkpoints from {FAR}, ")


def test_a_host_whose_files_stand_still_is_not_waited_for_without_end(
    paths: RunPaths, tmp_path: Path
) -> None:
    ended, slow = run_with(paths, tmp_path, MB)
    assert ended.outcome.exit_code == 0, "all tasks had succeeded"
    assert ended.state.gathering is None
    why = f"{FAR} has answered nothing about its files for 20 s: its disk or a file server hangs"
    folder = f"/cache/nodes/{paths.run_id}/{FAR}/tasks/worker-0/checkpoints"
    said = "\n".join(ended.state.warnings)
    assert f"ckpt-7 was not gathered: {why}" in said
    assert f"what worker:0 has saved stays on {FAR}: scp -r {FAR}:{folder} ." in said
    assert f"TensorBoard files of {FAR} were not all copied: {why}" in said
    assert ended.seconds < 120
    assert slow.order_counts["shutdown"] == 1


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError(), OSError()])
def test_a_reason_is_never_empty(error: Exception) -> None:
    assert describe_error(error)
    assert reason_of(error)
