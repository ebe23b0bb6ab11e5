"""Files are transferred with a real agent: verified, in slices, resumed after a cut, cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tfcluster.agent import catalogue as msg
from tfcluster.agent.agent_config import AgentConfig
from tfcluster.agent.processes import living_children
from tfcluster.backends.local.local_nodes import AgentProcess
from tfcluster.wire.agent_link import AgentLink, ByteStreams
from tfcluster.wire.file_transfer import (
    FilesStalledError,
    RemoteFileChangedError,
    RemoteFiles,
    RemoteFilesError,
)
from tfcluster.wire.file_trees import FileToSend
from tfcluster.wire.messages import FileSlice, Log

pytestmark = pytest.mark.linux("the agent's file process is found in /proc")

MB = 1 << 20
HANG_S = 240.0
"""The file process is niced: on a busy machine it gets little of a core."""


class Node:
    """An agent with its own cache, and a link to it that a test can cut."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.data.mkdir()
        self.config = AgentConfig(
            run_id="run-1",
            node="gpu1",
            token="secret",
            socket=str(folder / "agent.sock"),
            ports_dir=str(folder / "ports"),
            lease_s=30.0,
            cache=str(folder / "cache"),
        )
        self.process = AgentProcess(sys.executable, self.config)
        self.connections: list[asyncio.StreamWriter] = []
        self.messages: list[msg.Report] = []

    async def _dial(self) -> ByteStreams:
        streams = await asyncio.open_unix_connection(self.config.socket)
        self.connections.append(streams[1])
        return streams

    @contextlib.asynccontextmanager
    async def link(self) -> AsyncIterator[AgentLink]:
        hello = msg.Hello(run_id="run-1", node="gpu1", token="secret", stream_logs=True)
        link = AgentLink(self._dial, hello, lease_s=30.0)
        await link.open()
        self.pid: int = link.welcome.pid
        listening = asyncio.create_task(self._listen(link))
        try:
            yield link
        finally:
            await link.send(msg.Shutdown())
            await link.close()
            await listening

    async def _listen(self, link: AgentLink) -> None:
        async for message in link:
            self.messages.append(message)

    def cut(self) -> None:
        self.connections[-1].transport.abort()

    @property
    def file_process(self) -> int:
        (pid,) = living_children()[self.pid]
        return pid

    def most_kilobytes(self, pid: int) -> int:
        """Return the most memory the process ever had, in kB."""
        facts = Path(f"/proc/{pid}/status").read_text()
        return int(facts.partition("VmHWM:")[2].split()[0])

    def open_files(self) -> list[str]:
        """Return the files in `data` that the agent's file process has open."""
        links = []
        for fd in Path(f"/proc/{self.file_process}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                links.append(os.readlink(fd))
        return [path for path in links if path.startswith(str(self.data))]

    def file(self, size: int, name: str = "a") -> dict[str, Any]:
        """Create a file in `data` and return the arguments for reading it."""
        content = bytes(range(256)) * (size // 256)
        (self.data / name).write_bytes(content)
        found = (self.data / name).stat()
        return {"size": found.st_size, "mtime_ns": found.st_mtime_ns}


@pytest.fixture
def node() -> Iterator[Node]:
    folder = Path(tempfile.mkdtemp(prefix="tfc-"))  # a socket's path may have 108 bytes
    made = Node(folder)
    yield made
    made.process._process.wait(60)
    assert not made.process.last_words()
    made.process._errors.close()
    assert not [*folder.glob("cache/passing/*")]
    shutil.rmtree(folder)


class Received:
    """A consumer that keeps the bytes of one file and can be made to block."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.may_continue = asyncio.Event()
        self.may_continue.set()

    async def __call__(self, data: bytes) -> None:
        self.data += data
        await self.may_continue.wait()


def over_a_link(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an asynchronous test with the `files` of a link to its `node`."""

    def run(node: Node, **given: Any) -> None:
        async def with_files() -> None:
            async with asyncio.timeout(HANG_S), node.link() as link:
                await test(node, link.files, **given)

        asyncio.run(with_files())

    known = inspect.signature(test)
    seen = [value for name, value in known.parameters.items() if name != "files"]
    run.__signature__ = known.replace(parameters=seen)  # type: ignore[attr-defined]
    return run


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (files and processes send no events)
        await asyncio.sleep(0.01)


async def begin_slow_read(node: Node, files: RemoteFiles, received: Received) -> asyncio.Task[Any]:
    """Begin to read 16 MB at 10 bytes per second, which would take weeks; return the read."""
    reading = files.read(str(node.data), "a", received, **node.file(16 * MB), rate=10.0)
    task = asyncio.create_task(reading)
    await until(lambda: bool(received.data))
    return task


@over_a_link
async def test_a_file_is_read_whole_with_its_digest(node: Node, files: RemoteFiles) -> None:
    received, listed = Received(), node.file(3 * MB)
    digest = await files.read(str(node.data), "a", received, **listed)
    assert digest == hashlib.sha512(received.data).hexdigest()
    assert received.data == (node.data / "a").read_bytes()
    with pytest.raises(RemoteFileChangedError, match="No such file"):
        await files.read(str(node.data), "b", received, **listed)
    (node.data / "a").write_bytes(b"another")
    with pytest.raises(RemoteFileChangedError, match="changed"):
        await files.read(str(node.data), "a", Received(), **listed)


@over_a_link
async def test_a_listing_and_a_tree_may_need_more_than_one_page(
    node: Node, files: RemoteFiles
) -> None:
    names = [f"{number:04}" + "ä" * 120 for number in range(1500)]
    source = node.folder / "source"
    source.write_text("x")
    tree = [FileToSend(name, source, 0o755) for name in names]
    await files.send_tree(str(node.data / "sent"), tree, keep=False)
    found = await files.scan(str(node.data / "sent"))
    assert [path for path, _, _ in found] == names
    assert {path.stat().st_mode & 0o777 for path in (node.data / "sent").iterdir()} == {0o700}
    assert (node.data / "sent").stat().st_mode & 0o777 == 0o700


@over_a_link
async def test_a_read_resumes_after_the_connection_breaks(node: Node, files: RemoteFiles) -> None:
    received, listed = Received(), node.file(32 * MB)
    received.may_continue.clear()
    reading = asyncio.create_task(files.read(str(node.data), "a", received, **listed, rate=2e7))
    await until(lambda: bool(received.data))
    for _ in range(3):
        before = len(node.connections)
        node.cut()
        await until(lambda before=before: len(node.connections) > before)  # type: ignore[misc]
        received.may_continue.set()
        size = len(received.data)
        await until(lambda size=size: len(received.data) > size)  # type: ignore[misc]
        assert len(node.open_files()) <= 1
    digest = await reading
    assert received.data == (node.data / "a").read_bytes()
    assert digest == hashlib.sha512(received.data).hexdigest()


@over_a_link
async def test_a_tree_arrives_although_the_connection_breaks(
    node: Node, files: RemoteFiles
) -> None:
    node.file(24 * MB, "big")
    node.file(0, "empty")
    tree = [FileToSend(name, node.data / name, mtime_ns=10**18) for name in ("big", "empty")]
    into = node.folder / "nodes/run/gpu1/tasks/checkpoints"
    sending = asyncio.create_task(files.send_tree(str(into), tree, keep=False))
    passing = node.folder / "cache" / "passing"
    await until(lambda: any(p.stat().st_size > MB for p in passing.glob("*/*")))
    node.cut()
    await sending
    assert (into / "big").read_bytes() == (node.data / "big").read_bytes()
    assert (into / "empty").stat().st_mtime_ns == 10**18
    assert (into / "big").stat().st_mode & 0o777 == 0o600
    assert not list(passing.glob("*/*")), "moved, not copied"


@over_a_link
async def test_a_reader_that_fails_cancels_the_transfer(node: Node, files: RemoteFiles) -> None:
    listed = node.file(64 * MB)

    async def full(data: bytes) -> None:
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        await files.read(str(node.data), "a", full, **listed, rate=1e5)
    await until(lambda: not node.open_files())


@over_a_link
async def test_at_most_a_few_megabytes_are_sent_before_they_are_written(
    node: Node, files: RemoteFiles
) -> None:
    """Neither side ever holds more than a few megabytes of a file."""
    received, listed = Received(), node.file(64 * MB)
    received.may_continue.clear()
    sizes = list[int]()
    handle = files.handle

    def count(answer: msg.FileReport | FileSlice | msg.FilesLost) -> None:
        sizes.append(len(answer.data) if isinstance(answer, FileSlice) else 0)
        handle(answer)

    files.handle = count  # type: ignore[method-assign]
    reading = asyncio.create_task(files.read(str(node.data), "a", received, **listed))
    await until(lambda: sum(sizes) >= 8 * MB)
    await files.scan(str(node.data))  # another order is answered meanwhile
    assert sum(sizes) <= 9 * MB
    received.may_continue.set()
    await reading
    assert sum(sizes) == 64 * MB
    assert node.most_kilobytes(node.pid) < 40_000
    assert node.most_kilobytes(node.file_process) < 40_000


@over_a_link
async def test_hurry_still_applies_after_a_reconnect(node: Node, files: RemoteFiles) -> None:
    received = Received()
    received.may_continue.clear()
    reading = await begin_slow_read(node, files, received)
    files.hurry()
    node.cut()
    await until(lambda: len(node.connections) > 1)
    received.may_continue.set()
    await reading


@over_a_link
async def test_a_small_file_does_not_wait_for_a_slow_one(node: Node, files: RemoteFiles) -> None:
    slow = await begin_slow_read(node, files, Received())
    small = node.file(256, "small")
    await files.read(str(node.data), "small", Received(), **small, rate=1e6)
    slow.cancel()


@over_a_link
async def test_exits_and_logs_do_not_wait_for_a_hanging_disk(
    node: Node, files: RemoteFiles
) -> None:
    listed = node.file(64 * MB)
    received = Received()
    reading = asyncio.create_task(files.read(str(node.data), "a", received, **listed, rate=1e8))
    await until(lambda: bool(received.data))
    stuck = node.file_process
    os.kill(stuck, signal.SIGSTOP)
    argv = ["sh", "-c", "echo said; exit 7"]
    task = msg.TaskOrder(task="worker:0", argv=argv, log=str(node.folder / "log"))
    send: Any = files._send
    await send(msg.Start(attempt=1, tasks=[task]))
    await until(lambda: any(isinstance(m, msg.TaskExited) for m in node.messages))
    assert [m.data for m in node.messages if isinstance(m, Log)] == [b"said\n"]
    os.kill(stuck, signal.SIGCONT)
    await reading
    assert node.file_process == stuck, "a start of tasks ends leftover processes, not this one"


@pytest.mark.parametrize("what", ["scan", "look", "read", "send"])
@over_a_link
async def test_every_wait_for_hanging_files_ends_with_an_error(
    node: Node, files: RemoteFiles, what: str
) -> None:
    """A dead file server once made a call wait for ever although connection and tasks were fine."""
    listed = node.file(4 * MB)
    tree = [FileToSend("a", node.data / "a")]
    ask: dict[str, Callable[[], Awaitable[Any]]] = {
        "scan": lambda: files.scan(str(node.data)),
        "look": lambda: files.find_shared_folder([str(node.data)], name="a", text="", inode=1),
        "read": lambda: files.read(str(node.data), "a", Received(), **listed),
        "send": lambda: files.send_tree(str(node.data / "into"), tree, keep=False),
    }
    await ask[what]()
    files._node.silence_s = 1.0
    os.kill(node.file_process, signal.SIGSTOP)
    for _ in ("after the silence limit", "soon, because the node is known to hang"):
        with pytest.raises(FilesStalledError, match="gpu1 has answered nothing about its files"):
            await ask[what]()
    os.kill(node.file_process, signal.SIGCONT)
    files._node.silence_s = HANG_S
    await ask[what]()


@over_a_link
async def test_a_cut_connection_is_not_reported_as_hanging_files(
    node: Node, files: RemoteFiles
) -> None:
    """The lease limits how long the coordinator waits for a cut connection."""
    node.file(4 * MB)
    files._node.silence_s = 0.5
    real = node._dial
    off = asyncio.Event()

    async def dial() -> ByteStreams:
        await off.wait()
        return await real()

    link = files._send.__self__  # type: ignore[attr-defined]
    link._dial = dial
    node.cut()
    await until(lambda: not files._node.is_connected)
    scanning = asyncio.create_task(files.scan(str(node.data)))
    done, _ = await asyncio.wait([scanning], timeout=1.5)
    assert not done
    files._node.silence_s = HANG_S  # for the answer itself
    off.set()
    assert [path for path, _, _ in await scanning] == ["a"]


@over_a_link
async def test_a_killed_file_process_is_replaced(node: Node, files: RemoteFiles) -> None:
    reading = await begin_slow_read(node, files, Received())
    os.kill(node.file_process, signal.SIGKILL)
    with pytest.raises(RemoteFilesError, match="killed"):
        await reading
    tree = [FileToSend("a", node.data / "a")]
    sending = asyncio.create_task(files.send_tree(str(node.folder / "in"), tree, keep=False))
    passing = node.folder / "cache" / "passing"
    await until(lambda: any(p.stat().st_size > 0 for p in passing.glob("*/*")))
    os.kill(node.file_process, signal.SIGKILL)
    with pytest.raises(RemoteFilesError, match="killed"):
        await sending
    assert not [*passing.iterdir()], "nothing is left of a tree that was half sent"
    assert [path for path, _, _ in await files.scan(str(node.data))] == ["a"]


@over_a_link
async def test_cancelling_a_tree_does_not_cancel_another_with_the_same_files(
    node: Node, files: RemoteFiles
) -> None:
    node.file(32 * MB, "big")
    tree = [FileToSend("big", node.data / "big")]
    where = [node.folder / f"nodes/run/gpu1/{name}" for name in ("one", "two")]
    both = [asyncio.create_task(files.send_tree(str(into), tree, keep=False)) for into in where]
    passing = node.folder / "cache" / "passing"
    await until(lambda: any(p.stat().st_size > 0 for p in passing.glob("*/*")))
    both[0].cancel()
    await asyncio.gather(*both, return_exceptions=True)
    assert [into.exists() for into in where] == [False, True]
    assert (where[1] / "big").stat().st_size == 32 * MB
