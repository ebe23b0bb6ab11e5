"""Changes of runs reach every viewer once and in order, and a slow viewer costs no memory."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.conftest import MakeRun

from tfcluster.rundir import registry
from tfcluster.rundir.events import Progress, Warned
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import to_line
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status
from tfcluster.web import streams
from tfcluster.web.run_data import RunIndex
from tfcluster.web.streams import Feeds

from .conftest import Write, change

Frame = tuple[str, Any]
HANG_S = 30.0


def parse(data: bytes) -> list[Frame]:
    """Return the events in what a stream sent."""
    found = list[Frame]()
    for block in data.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[:1] != ":")
        if "event" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


class Browser:
    """A viewer of a stream that keeps what it was sent."""

    def __init__(self, frames: AsyncIterator[bytes]) -> None:
        self._frames, self.got = frames, list[Frame]()

    async def read(self) -> list[Frame]:
        """Wait for the next frames and return them."""
        found = parse(await asyncio.wait_for(anext(self._frames), HANG_S))
        self.got += found
        return found

    async def until(self, event: str) -> Any:
        """Read until there was an event; return the data of the last one."""
        while not (found := [data for name, data in self.got if name == event]):
            await self.read()
        return found[-1]

    async def read_all(self) -> None:
        async for data in self._frames:
            self.got += parse(data)


def append(paths: RunPaths, *lines: bytes) -> None:
    """Append events to a run's file."""
    with paths.events.open("ab") as file:
        file.write(b"".join(lines))


def progress(step: int) -> bytes:
    return to_line(Progress(task="worker:0", attempt=1, step=step), seq=step, time=100.0 + step)


def warning(seq: int, text: str = "careful") -> bytes:
    return to_line(Warned(message=text), seq=seq, time=100.0)


def finish(state: RunSnapshot) -> None:
    state.status, state.ended_at = Status.SUCCEEDED, 200.0


def play(home_dir: Path, watch: Callable[[Feeds], Awaitable[None]]) -> None:
    """Run `watch` over the streams of a home; afterwards no thread may read for them."""

    async def main() -> None:
        found = Feeds(RunIndex(home_dir))
        await watch(found)
        found.close()

    asyncio.run(main())
    for thread in threading.enumerate():
        if thread.name == "feed":
            thread.join(HANG_S)
            assert not thread.is_alive()


@pytest.fixture
def paths(make_run: MakeRun) -> RunPaths:
    found = make_run(status=Status.RUNNING)
    found.events.touch()
    return found


def test_a_viewer_gets_the_state_then_changes_points_and_moments(
    home_dir: Path, paths: RunPaths
) -> None:
    append(paths, progress(1))

    async def watch(all_streams: Feeds) -> None:
        browser = Browser(all_streams.follow(paths))
        first = await browser.read()
        assert [name for name, _ in first] == ["state", "logs"]
        assert first[0][1]["status"] == "running"
        assert len(first[0][1]["tasks"]) == 2

        browser.got.clear()
        append(paths, progress(2), warning(3), progress(4))
        assert [event["step"] for event in await browser.until("progress")] == [2, 4]
        assert [event["message"] for event in await browser.until("timeline")] == ["careful"]

        browser.got.clear()
        change(paths, lambda state: setattr(state.tasks[1], "step", 7))
        changes = await browser.until("state")
        assert changes.keys() == {"tasks", "figures"}
        assert [(task["task"], task["step"]) for task in changes["tasks"]] == [("worker:1", 7)]

    play(home_dir, watch)


def test_a_slow_viewer_is_told_to_reload_and_its_stream_ends(
    home_dir: Path, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_MOST_WAITING", 2000)

    async def watch(all_streams: Feeds) -> None:
        slow, quick = (Browser(all_streams.follow(paths)) for _ in range(2))
        await slow.read()
        await quick.read()
        for number in range(1, 8):
            append(paths, warning(number, "x" * 500))
            quick.got.clear()
            await quick.until("timeline")
        await asyncio.wait_for(slow.read_all(), HANG_S)
        assert [name for name, _ in slow.got[2:]] == ["reload"]

    play(home_dir, watch)


def test_the_end_of_a_run_is_the_end_of_its_stream(
    home_dir: Path, paths: RunPaths, write_log: Write
) -> None:
    async def watch(all_streams: Feeds) -> None:
        browser = Browser(all_streams.follow(paths))
        await browser.read()
        write_log(paths, "worker:0", b"bye\n")
        append(paths, warning(1, "last"))
        change(paths, finish)
        assert await browser.until("end") == {}
        found = dict(browser.got)
        assert (found["state"]["status"], found["logs"]["bytes"]) == ("succeeded", 4)
        assert found["timeline"][0]["message"] == "last"
        assert browser.got[-1] == ("end", {})

        late = Browser(all_streams.follow(paths))
        assert [name for name, _ in await late.read()] == ["state", "logs", "end"]

    play(home_dir, watch)


def test_one_thread_reads_for_all_viewers_and_ends_with_the_last(
    home_dir: Path, paths: RunPaths
) -> None:
    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "feed"]

    async def watch(all_streams: Feeds) -> None:
        opened = [all_streams.follow(paths) for _ in range(5)]
        for stream in opened:
            await anext(stream)
        (thread,) = threads()
        for stream in opened:
            await stream.aclose()  # type: ignore[attr-defined]
        await asyncio.to_thread(thread.join, HANG_S)
        assert threads() == []

    play(home_dir, watch)


def test_an_internal_error_ends_the_stream_so_that_the_browser_connects_again(
    home_dir: Path, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda args: None)

    async def watch(all_streams: Feeds) -> None:
        browser = Browser(all_streams.follow(paths))
        await browser.read()
        with monkeypatch.context() as broken:
            broken.setattr(streams, "_changes", lambda before, now: 1 / 0)
            append(paths, warning(1))
            await asyncio.wait_for(browser.read_all(), HANG_S)
        again = Browser(all_streams.follow(paths))
        await again.read()
        append(paths, warning(2))
        assert [event["seq"] for event in await again.until("timeline")] == [2]

    play(home_dir, watch)


def test_closing_ends_every_stream(home_dir: Path, paths: RunPaths) -> None:
    async def watch(all_streams: Feeds) -> None:
        browsers = [Browser(all_streams.follow(where)) for where in (paths, None)]
        for browser in browsers:
            await browser.read()
        all_streams.close()
        for browser in browsers:
            await asyncio.wait_for(browser.read_all(), HANG_S)
        late = Browser(all_streams.follow(paths))
        await late.read_all()
        assert late.got == []

    play(home_dir, watch)


def test_the_list_has_new_changed_and_deleted_runs(home_dir: Path, make_run: MakeRun) -> None:
    first = make_run("first", status=Status.RUNNING)

    async def watch(all_streams: Feeds) -> None:
        browser = Browser(all_streams.follow(None))
        assert [row["name"] for row in dict(await browser.read())["runs"]["runs"]] == ["first"]

        async def next_change() -> Any:
            browser.got.clear()
            return await browser.until("runs")

        change(first, finish)
        rows = (await next_change())["runs"]
        assert [(row["name"], row["status"]) for row in rows] == [("first", "succeeded")]
        second = make_run("second", status=Status.RUNNING)
        assert [row["name"] for row in (await next_change())["runs"]] == ["second"]
        registry.delete(second)
        assert await next_change() == {"runs": [], "gone": [second.run_id]}

    play(home_dir, watch)


def test_what_is_no_event_of_the_timeline_is_left_out_and_a_long_one_is_cut(
    home_dir: Path, paths: RunPaths
) -> None:
    async def watch(all_streams: Feeds) -> None:
        browser = Browser(all_streams.follow(paths))
        await browser.read()
        append(paths, b"\xff\n", b"[1]\n", b"{\n", b"\n", b'{"type": 1}\n')
        append(paths, b'{"type": "alive"}\n', progress(1), warning(2, "x" * 9000), b'{"torn')
        assert [event["step"] for event in await browser.until("progress")] == [1]
        (found,) = await browser.until("timeline")
        assert (found["type"], len(found["message"])) == ("warned", 2001)

    play(home_dir, watch)


@pytest.mark.parametrize("how", ["deleted", "its coordinator dies"])
def test_a_run_that_goes_away_ends_its_stream(home_dir: Path, paths: RunPaths, how: str) -> None:
    async def watch(all_streams: Feeds) -> None:
        browser = Browser(all_streams.follow(paths))
        await browser.read()
        if how == "deleted":
            registry.delete(paths)
        else:
            change(paths, lambda state: setattr(state, "pid", 2**22 + 1))
        await browser.until("end")
        states = [data.get("status") for name, data in browser.got if name == "state"]
        assert how == "deleted" or states[-1] == "lost"

    play(home_dir, watch)
