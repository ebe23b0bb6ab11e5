"""The user's end of a command: its descriptors and the frames of its connection."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tfcluster.agent import catalogue as msg
from tfcluster.agent import exec_frames, protocol
from tfcluster.agent.budgets import EXEC_BYTES_AHEAD
from tfcluster.agent.exec_frames import Receiving, Sending
from tfcluster.errors import NodeLostError
from tfcluster.rundir.exec_stream import ExecEnd, ExecStream


class Far:
    """The other end of the connection, as an agent behind its coordinator."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self._decoder = connection, protocol.Decoder()
        self.stdin, self.stdout = Receiving(7, "stdin"), Sending(7, "stdout")

    def frames(self) -> Iterator[tuple[str, int, bytes]]:
        while data := self.connection.recv(1 << 18):
            yield from (protocol.read_data(payload) for _, payload in self._decoder.feed(data))

    def end(self, code: int | None, number: int | None = None) -> None:
        ended = msg.ExecEnded(id=7, exit_code=code, signal=number)
        self.connection.sendall(protocol.control_frame(ended.to_json()))

    def echo(self) -> None:
        """Send back what comes on stdin, until its end."""
        for name, offset, data in self.frames():
            stream = exec_frames.parse_name(name)[1]
            if stream == "stdout":
                self.stdout.note_written(offset)
                continue
            self.stdin.take(offset, data)
            if not data:
                self.end(0)
                return
            self.connection.sendall(self.stdout.frame(data) + self.stdin.note_written(len(data)))


def run(
    serve: Callable[[Far], None], *, stdin: int | None, stdout: int, stderr: int = 2
) -> ExecEnd:
    near, far = socket.socketpair()

    def answer() -> None:
        with far:
            serve(Far(far))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        with near:
            return ExecStream(near, 7, stdin=stdin, stdout=stdout, stderr=stderr).run()
    finally:
        thread.join(30)


@contextlib.contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            with contextlib.suppress(OSError):
                os.close(end)


def test_megabytes_pass_through_both_windows_to_a_slow_reader() -> None:
    whole = os.urandom(1 << 20) * 3
    received = bytearray()
    with pipe() as (stdin, source), pipe() as (sink, stdout):

        def feed() -> None:
            view = memoryview(whole)
            while view:
                view = view[os.write(source, view) :]
            os.close(source)

        def drain() -> None:
            while data := os.read(sink, 10_000):
                received.extend(data)

        threads = [threading.Thread(target=job) for job in (feed, drain)]
        for thread in threads:
            thread.start()
        assert run(Far.echo, stdin=stdin, stdout=stdout) == ExecEnd(0, task_has_ended=False)
        os.close(stdout)
        for thread in threads:
            thread.join(30)
    assert received == whole


def test_a_command_that_reads_nothing_is_sent_a_window_and_no_more() -> None:
    def serve(far: Far) -> None:
        sent = 0
        for _, _, data in far.frames():
            sent += len(data)
            if sent == EXEC_BYTES_AHEAD:
                far.connection.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    far.connection.recv(1)
                far.end(None, 15)
                return

    with open("/dev/zero", "rb") as zero, pipe() as (_, stdout):
        end = run(serve, stdin=zero.fileno(), stdout=stdout)
    assert end.code == 128 + 15


def test_output_that_nobody_reads_any_more_is_an_end_by_sigpipe() -> None:
    def serve(far: Far) -> None:
        far.connection.sendall(far.stdout.frame(b"line\n"))
        for _ in far.frames():
            pass

    with pipe() as (sink, stdout):
        os.close(sink)
        assert run(serve, stdin=None, stdout=stdout).code == 128 + 13


@pytest.mark.parametrize("says_why", [True, False])
def test_a_lost_command_is_an_error_with_what_is_known(says_why: bool) -> None:
    def serve(far: Far) -> None:
        if says_why:
            lost = msg.ExecFailed(id=7, error="the connection to n1 was cut")
            far.connection.sendall(protocol.control_frame(lost.to_json()))

    why = "the connection to n1 was cut" if says_why else "closed the connection"
    with pipe() as (_, stdout), pytest.raises(NodeLostError, match=why):
        run(serve, stdin=None, stdout=stdout)
