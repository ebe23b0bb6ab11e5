"""The coordinator's part of a command beside a task: frames pass, and nothing piles up."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tfcluster.agent import catalogue as msg
from tfcluster.agent import exec_frames, protocol
from tfcluster.errors import UsageError
from tfcluster.nodes.exec_sessions import ExecSessions
from tfcluster.wire.messages import ExecData


class Node:
    """An agent that starts each command at once, and what it was sent."""

    def __init__(self, answer: type[msg.ExecReport] = msg.ExecStarted, **facts: Any) -> None:
        self.orders: list[msg.Order] = []
        self.frames: list[tuple[str, int, bytes]] = []
        self.sessions = ExecSessions(self._order, self._send)
        self._answer, self._facts = answer, facts
        self.has_order, self.has_frame = asyncio.Event(), asyncio.Event()

    def _order(self, node: str, order: msg.Order) -> None:
        self.orders.append(order)
        self.has_order.set()
        if isinstance(order, msg.Exec):
            report = self._answer(id=order.id, **self._facts)
            asyncio.get_running_loop().call_soon(self.sessions.take, node, report)

    async def _send(self, node: str, name: str, offset: int, data: bytes) -> None:
        self.frames.append((name, offset, data))
        self.has_frame.set()


@contextlib.asynccontextmanager
async def user(node: Node) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield the user's end of a command on "far", which has been started."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)

    async def serve() -> None:
        streams = await asyncio.open_connection(sock=theirs)
        with contextlib.closing(streams[1]):
            async with node.sessions.open("far", "worker:0", ["cat"], None) as session:
                await session.join(*streams)

    async with asyncio.TaskGroup() as group:
        group.create_task(serve())
        with contextlib.closing(writer):
            yield reader, writer


def frames(data: bytes) -> list[tuple[bytes, bytes]]:
    return list(protocol.Decoder().feed(data))


def test_frames_pass_both_ways_and_the_end_is_the_last_word() -> None:
    async def story() -> None:
        node = Node()
        async with user(node) as (reader, writer):
            writer.write(protocol.data_frame(protocol.EXEC, "1/stdin", 0, b"abc"))
            await node.has_frame.wait()
            node.sessions.take("far", ExecData(name="1/stdout", offset=0, data=b"out"))
            node.sessions.take("near", ExecData(name="1/stdout", offset=3, data=b"forged"))
            node.sessions.take("far", ExecData(name="2/stdout", offset=0, data=b"unknown"))
            node.sessions.take("far", msg.ExecEnded(id=1, exit_code=3))
            *outputs, (kind, last) = frames(await reader.read())
        assert node.frames == [("1/stdin", 0, b"abc")]
        assert [protocol.read_data(payload) for _, payload in outputs] == [("1/stdout", 0, b"out")]
        assert (kind, protocol.read_control(last)["exit_code"]) == (protocol.CONTROL, 3)
        assert [order.type for order in node.orders] == ["exec"]

    asyncio.run(story())


@pytest.mark.parametrize("reason", ["closed", "foreign", "nonsense"])
def test_it_ends_with_the_users_connection(reason: str) -> None:
    async def story() -> None:
        node = Node()
        async with user(node) as (_, writer):
            await node.has_order.wait()
            if reason == "foreign":
                writer.write(protocol.data_frame(protocol.EXEC, "7/stdin", 0, b"abc"))
            if reason == "nonsense":
                writer.write(b"nonsense")
        assert [order.type for order in node.orders] == ["exec", "end_exec"]

    asyncio.run(story())


def test_it_ends_when_the_link_is_cut_or_the_agent_floods() -> None:
    async def story() -> None:
        for is_flooded in (False, True):
            node = Node()
            async with user(node) as (reader, _):
                await node.has_order.wait()
                await asyncio.sleep(0.01)
                offset, chunk = 0, b"x" * exec_frames.CHUNK
                while is_flooded and offset < 1 << 24:  # the user reads nothing
                    node.sessions.take("far", ExecData(name="1/stdout", offset=offset, data=chunk))
                    offset += len(chunk)
                node.sessions.lose("far")
                said = protocol.read_control(frames(await reader.read())[-1][1])
            why = "has sent more than it may" if is_flooded else "the connection to far was cut"
            assert why in said["error"]
            assert [order.type for order in node.orders] == ["exec", "end_exec"]

    asyncio.run(story())


def test_a_command_that_cannot_be_started_is_refused_with_the_reason() -> None:
    async def story() -> None:
        node = Node(msg.ExecFailed, error="/no/such: No such file")
        with pytest.raises(UsageError, match="/no/such: No such file"):
            async with node.sessions.open("far", "worker:0", ["/no/such"], None):
                pass
        assert [order.type for order in node.orders] == ["exec"]

    asyncio.run(story())
