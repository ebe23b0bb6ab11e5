"""Frames are decoded however the stream is cut, and sessions outlive connections."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfcluster.agent import protocol


def decode(*pieces: bytes, after_magic: bool = False) -> list[tuple[bytes, bytes]]:
    decoder = protocol.Decoder(after_magic=after_magic)
    return [frame for piece in pieces for frame in decoder.feed(piece)]


FRAMES = [
    (protocol.CONTROL, protocol.control_frame({"type": "stop", "why": "Ctrl-C — ende"})),
    (protocol.LOG, protocol.data_frame(protocol.LOG, "worker:0/1", 2**40, b"\0\xff line\n")),
    (protocol.FILE, protocol.data_frame(protocol.FILE, "ä", 0, b"")),
    (protocol.PING, protocol.frame(protocol.PING)),
]


@given(st.lists(st.integers(0, 200), max_size=8))
def test_frames_are_decoded_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    stream = b"".join(frame for _, frame in FRAMES)
    edges = [0, *sorted(cuts), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert [kind for kind, _ in decode(*pieces)] == [kind for kind, _ in FRAMES]
    payloads = [payload for _, payload in decode(*pieces)]
    assert protocol.read_control(payloads[0]) == {"type": "stop", "why": "Ctrl-C — ende"}
    assert protocol.read_data(payloads[1]) == ("worker:0/1", 2**40, b"\0\xff line\n")
    assert protocol.read_data(payloads[2]) == ("ä", 0, b"")


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_noise_before_the_marker_is_skipped_and_kept_for_errors(size: int) -> None:
    noise = b"Welcome to gpu1!\n\x00 not the marker\n"
    stream = noise + protocol.MAGIC + FRAMES[0][1]
    decoder = protocol.Decoder(after_magic=True)
    pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
    frames = [frame for piece in pieces for frame in decoder.feed(piece)]
    assert [kind for kind, _ in frames] == [protocol.CONTROL]
    assert decoder.noise == noise


def test_too_much_noise_is_an_error_that_shows_the_noise() -> None:
    with pytest.raises(protocol.ProtocolError, match="bash: command not found"):
        decode(b"bash: command not found\n" * 4000, after_magic=True)


@pytest.mark.parametrize(
    ("read", "data"),
    [
        *(
            (decode, stream)
            for stream in (b"Z\0\0\0\0", b"C\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n")
        ),
        *((protocol.read_control, payload) for payload in (b"{", b"[1]", b"\xff")),
        *(
            (protocol.read_data, payload)
            for payload in (b"", b"\0\x09short", b"\0\x01\xff12345678")
        ),
        (lambda size: protocol.frame(protocol.LOG, bytes(size)), protocol.MAX_PAYLOAD + 1),
    ],
)
def test_other_streams_and_damaged_or_too_large_frames_are_errors(
    read: Callable[[Any], object], data: Any
) -> None:
    with pytest.raises(protocol.ProtocolError):
        read(data)


def test_a_session_resends_only_unreceived_messages() -> None:
    sender, receiver = protocol.Session(), protocol.Session()
    frames = [sender.number({"type": "note", "what": what}) for what in "abc"]
    for _, payload in decode(*frames[:2]):
        assert receiver.is_new(protocol.read_control(payload))
    again = sender.resume(receiver.last_seen)
    assert again == frames[2:]
    received = [protocol.read_control(payload)["what"] for _, payload in decode(*again)]
    assert received == ["c"]


def test_a_message_received_twice_is_new_once() -> None:
    session = protocol.Session()
    assert [session.is_new({"n": n}) for n in (1, 2, 2, 1, 3)] == [True, True, False, False, True]


def test_unnumbered_messages_are_always_new() -> None:
    session = protocol.Session()
    assert session.is_new({"n": 0})
    assert session.is_new({"n": 0})
    assert session.last_seen == 0


def test_acknowledged_messages_are_forgotten() -> None:
    session = protocol.Session()
    for _ in range(5):
        session.number({})
    session.acknowledged(3)
    assert session.backlog == 2
