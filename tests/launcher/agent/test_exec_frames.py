"""The windows of a command's streams: a sender waits for what was written."""

from __future__ import annotations

import pytest

from tfcluster.agent import exec_frames, protocol
from tfcluster.agent.budgets import EXEC_BYTES_AHEAD
from tfcluster.agent.exec_frames import Receiving, Sending
from tfcluster.agent.protocol import ProtocolError


def parts(frame: bytes) -> tuple[str, int, bytes]:
    ((kind, payload),) = protocol.Decoder().feed(frame)
    assert kind == protocol.EXEC
    return protocol.read_data(payload)


def test_a_sender_waits_once_its_window_is_full_until_the_other_end_has_written() -> None:
    sending, receiving = Sending(7, "stdout"), Receiving(7, "stdout")
    told = b""
    for _ in range(10):
        while sending.room:
            name, offset, data = parts(sending.frame(b"x" * min(sending.room, 5000)))
            assert name == "7/stdout"
            receiving.take(offset, data)
        told = receiving.note_written(EXEC_BYTES_AHEAD)
        sending.note_written(parts(told)[1])
    assert parts(told) == ("7/stdout", 10 * EXEC_BYTES_AHEAD, b"")
    assert sending.room == EXEC_BYTES_AHEAD


def test_single_keys_are_not_acknowledged_one_by_one() -> None:
    receiving = Receiving(7, "stdin")
    assert [receiving.note_written(1) for _ in range(1000)] == [b""] * 1000


def test_bytes_that_are_missing_or_were_never_sent_are_refused() -> None:
    sending, receiving = Sending(7, "stdin"), Receiving(7, "stdin")
    sending.frame(b"abc")
    receiving.take(0, b"abc")
    with pytest.raises(ProtocolError, match="goes on at 9, not at 3"):
        receiving.take(9, b"d")
    with pytest.raises(ProtocolError, match="was written to 4, and sent to 3"):
        sending.note_written(4)


@pytest.mark.parametrize("name", ["", "7", "x/stdin", "7/log", "-1/stdin", "9" * 30 + "/stdin"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ProtocolError):
        exec_frames.parse_name(name)


def test_a_size_is_two_numbers() -> None:
    name, _, data = parts(exec_frames.size_frame(7, 24, 80))
    assert (exec_frames.parse_name(name), exec_frames.parse_size(data)) == ((7, "size"), (24, 80))
    with pytest.raises(ProtocolError):
        exec_frames.parse_size(b"24")
