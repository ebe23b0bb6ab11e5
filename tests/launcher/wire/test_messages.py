"""An invalid message disconnects the node that sent it, with a clear reason, and no other node."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.launcher.messages import kinds_of, plain, sample

from tfcluster.agent import catalogue as msg
from tfcluster.agent import protocol
from tfcluster.agent.catalogue import Hello
from tfcluster.agent.message_fields import Message
from tfcluster.agent.protocol import ProtocolError
from tfcluster.wire.agent_link import AgentLink, ByteStreams
from tfcluster.wire.messages import read_report

TASK = {"task": "worker:0", "attempt": 1}
WELCOME = {"type": "welcome", "n": 0, "pid": 5, "guard_pid": 6, "last_seen": 0, "cache": "/c"}
EXITED = sample(msg.TaskExited)
GOOD = [
    *(sample(kind) for kind in kinds_of(msg.Report)),
    {"type": "a kind of a later version", "with": ["anything"]},
]


@pytest.mark.parametrize("message", GOOD, ids=lambda message: message["type"])
def test_valid_messages_are_accepted(message: dict[str, Any]) -> None:
    read_report({"n": 1, **message})


LISTED = {"type": "scanned", "id": 1, "entries": []}


@pytest.mark.parametrize(
    ("message", "field", "values"),
    [
        (EXITED, "type", [5, ["list"]]),
        (EXITED, "n", ["one"]),
        (EXITED, "duration_s", [float("inf"), None]),
        (EXITED, "attempt", [True]),
        (EXITED, "exit_code", [-1]),
        (EXITED, "task", [{"a": 1}]),
        (EXITED, "ended_by", [7]),
        (LISTED, "entries", [[[name, 1, 2]] for name in ("a\0b", "\ud800")]),
        (LISTED, "entries", [[["a", 1, time]] for time in (10**30, -(10**30), 2.5)]),
        (LISTED, "entries", [[["a", -1, 2]]]),
        # It is part of the commands that a user is asked to paste.
        (WELCOME, "cache", ["", ".cache", "~/.cache", "/a\nb", "/a\x1b[2J", "/a\x9bb", 7]),
        (WELCOME, "pid", ["5"]),
        (WELCOME, "executable", [7]),
        (WELCOME, "last_seen", [None]),
    ],
)
def test_an_invalid_field_is_an_error_that_names_it(
    message: dict[str, Any], field: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(ProtocolError) as caught:
            read_report({**message, field: value})
        assert f"whose {field} is " in str(caught.value)


def test_a_message_that_no_agent_sends_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="which no agent sends"):
        read_report({**EXITED, "type": "link_cut"})


def test_a_listing_may_hold_a_name_that_is_not_utf_8_and_a_time_before_1970() -> None:
    read_report({"type": "scanned", "id": 1, "entries": [["a\udc80", 1, -5]]})


@pytest.mark.parametrize(
    ("load", "is_valid"),
    [
        ("tf.train.Checkpoint(model=model, opt=opt).restore({path}).expect_partial()", True),
        ("tf.train.Checkpoint(model).restore({path}).expect_partial()", True),
        ("tf_keras.models.load_model({path})", True),
        ("model.load_weights({path})", True),
        ("model.load_weights({path}); import os", False),
        ("__import__('os').system('id')", False),
        ("tf.train.Checkpoint(a=print()).restore({path})", False),
    ],
)
def test_the_python_that_a_user_pastes_is_only_a_call_that_loads(load: str, is_valid: bool) -> None:
    saved = msg.Saved.read({**TASK, "path": "ckpt-1", "load": load})
    assert saved.load == (load if is_valid else None)


@pytest.mark.parametrize("kind", kinds_of(msg.Report), ids=lambda kind: kind.type)
def test_a_missing_field_is_an_error_that_names_it(kind: type[msg.Report]) -> None:
    whole = sample(kind)
    for name in kind.fields:
        rest = {other: value for other, value in whole.items() if other != name}
        if hasattr(kind, name):
            assert getattr(read_report(rest), name) == getattr(kind, name)
        else:
            with pytest.raises(ProtocolError, match=f"'{kind.type}' whose {name} is missing"):
                read_report(rest)


@pytest.mark.parametrize(
    "kind", [*kinds_of(msg.Report), *kinds_of(msg.Order)], ids=lambda k: k.type
)
def test_a_message_is_written_as_it_is_read(kind: type[Message]) -> None:
    found = kind.read(sample(kind))
    assert kind.read(plain(found)) == found


def test_no_two_messages_have_the_same_type() -> None:
    types = [kind.type for kind in kinds_of(Message)]
    assert len(types) == len(set(types))


# -- over a connection ----------------------------------------------------------------------


def control(message: dict[str, Any]) -> bytes:
    return protocol.control_frame(message)


BAD = {
    "no frame": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a frame"),
    "a frame without an end": (struct.pack(">cI", b"C", 1 << 31), "not a frame"),
    "no JSON": (protocol.frame(b"C", b"{"), "is not a JSON object"),
    "deep JSON": (protocol.frame(b"C", b"[" * 100_000), "is not a JSON object"),
    "a long number": (protocol.frame(b"C", b'{"n":' + b"9" * 9000 + b"}"), "is not a JSON object"),
    "no object": (protocol.frame(b"C", b"[]"), "not a JSON object"),
    "no type": (control({"n": 1}), "whose type is missing"),
    "a wrong type": (
        control({**EXITED, "duration_s": "long"}),
        "whose duration_s is 'long'",
    ),
    "a damaged log": (protocol.frame(b"L", b"\xff"), "a data frame is damaged"),
    "a log of no name": (protocol.frame(b"L", b"\0\1\xff" + bytes(8)), "a data frame is damaged"),
    "a damaged number": (protocol.frame(b"A", b"1"), "an acknowledgement is damaged"),
}


@asynccontextmanager
async def linked(*after_welcome: bytes, welcome: dict[str, Any] = WELCOME) -> AsyncIterator[Any]:
    """Yield a link to an agent that sends these bytes and then nothing, and the list of dials."""
    dials: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dials.append(writer)
        writer.write(protocol.MAGIC + control(welcome))
        await writer.drain()
        await reader.read(100)  # the hello
        writer.write(b"".join(after_welcome))
        await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]

    async def dial() -> ByteStreams:
        return await asyncio.open_connection(host, port)

    link = AgentLink(dial, Hello(run_id="r", node="n", token="t"), lease_s=60.0)
    try:
        yield link, dials
    finally:
        await link.close()
        for writer in dials:
            writer.close()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(("sent", "expected"), BAD.values(), ids=BAD)
def test_an_invalid_frame_disconnects_the_node_and_is_reported(sent: bytes, expected: str) -> None:
    good = control({"type": "task_started", "n": 1, **TASK, "pid": 3})

    async def scenario() -> tuple[list[Any], str, int]:
        async with asyncio.timeout(60), linked(good, sent) as (link, dials):
            await link.open()
            return [message async for message in link], link.last_words(), len(dials)

    messages, reason, dialled = asyncio.run(scenario())
    assert [message.type for message in messages] == ["task_started"]
    assert reason.startswith("(disconnected: it sent ")
    assert expected in reason
    assert len(reason) < 500
    assert dialled == 1, "such an agent is not dialled again"


@pytest.mark.parametrize(
    "welcome", [{**WELCOME, "pid": "5"}, {"type": "task_continued", **TASK}], ids=str
)
def test_an_invalid_welcome_is_refused(welcome: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(60), linked(welcome=welcome) as (link, _):
            with pytest.raises(ProtocolError):
                await link.open()

    asyncio.run(scenario())


def test_a_node_that_the_coordinator_refuses_is_disconnected() -> None:
    async def scenario() -> str:
        async with asyncio.timeout(60), linked() as (link, dials):
            await link.open()
            await link.refuse("a message about another node's task")
            assert [message async for message in link] == []
            assert len(dials) == 1
            reason: str = link.last_words()
            return reason

    assert "a message about another node's task" in asyncio.run(scenario())
