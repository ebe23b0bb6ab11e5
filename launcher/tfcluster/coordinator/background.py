"""The background process of a coordinator (`up -d`), and the pipe from it to its starter.

The process is forked once the run is planned, so nothing is imported or looked up twice. It must
be forked before any thread is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from tfcluster.agent import foreign_json
from tfcluster.rundir.registry import ProcessIdentity, this_process

Tell = Callable[[Mapping[str, Any]], None]
"""A function that sends one JSON object to the starter, which may have ended."""


@dataclass(slots=True)
class Background:
    """The background process, as its starter sees it."""

    identity: ProcessIdentity
    _pipe: BinaryIO
    was_signalled: bool = False
    """True if a signal to the starter was passed on."""

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the objects that the process sends, until it closes the pipe or ends."""
        for line in self._pipe:
            yield foreign_json.parse_json_object(line)

    def close(self) -> None:
        self._pipe.close()

    @contextlib.contextmanager
    def in_foreground(self) -> Iterator[None]:
        """Pass Ctrl-C and SIGTERM on to the background process while the block runs."""
        passed_on = (signal.SIGINT, signal.SIGTERM)
        before = [(number, signal.signal(number, self._pass_on)) for number in passed_on]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
            for number, handler in before:
                signal.signal(number, handler)

    def _pass_on(self, number: int, frame: object) -> None:
        self.was_signalled = True
        if self.identity.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.identity.pid, number)


def start(serve: Callable[[Tell], None]) -> Background:
    """Call `serve` in a new process without a terminal, which ends after it.

    To be called in `signals_held_back`; signals stay blocked in the new process.
    """
    reader, writer = os.pipe()
    if (first := os.fork()) == 0:
        os.close(reader)
        _serve(serve, writer)
    os.close(writer)
    os.waitpid(first, 0)
    pipe = os.fdopen(reader, "rb")
    identity = ProcessIdentity(**foreign_json.parse_json_object(pipe.readline()))
    return Background(identity, pipe)


def _serve(serve: Callable[[Tell], None], writer: int) -> NoReturn:
    """Never return: the frames above belong to the starter."""
    try:
        os.setsid()
        if os.fork():
            os._exit(0)  # the child is no session leader, so it can never get a terminal
        _detach(keep=writer)
        tell = partial(_tell, writer)
        tell(asdict(this_process()))
        try:
            serve(tell)
        except BaseException:
            tell({"fault": traceback.format_exc()})
    finally:
        os._exit(0)


def _detach(*, keep: int) -> None:
    """Let go of the starter's terminal, pipes and working directory."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    fds = [int(name) for name in os.listdir("/dev/fd")]
    for fd in fds:
        # Replaced, not closed: a living file object must not close a later file of this number.
        if fd not in (keep, null) and (fd < 3 or _is_open(fd)):
            os.dup2(null, fd, inheritable=fd < 3)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _tell(writer: int, message: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):
        os.write(writer, json.dumps(message).encode() + b"\n")


@contextlib.contextmanager
def redirected_output(path: Path) -> Iterator[None]:
    """Redirect stdout and stderr to `path`, which is removed if nothing was written."""
    with path.open("ab") as file:
        for fd in (1, 2):
            os.dup2(file.fileno(), fd)
    try:
        yield
    finally:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (1, 2):
            os.dup2(null, fd)
        with contextlib.suppress(OSError):
            if path.stat().st_size == 0:
                path.unlink()
