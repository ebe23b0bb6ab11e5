"""A process of its own for a coordinator (`up -d`), and the pipe that tells its starter of it.

The process is forked once the run is planned: nothing is imported or looked up twice. It must be
made before any thread is.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from tfcluster.agent import foreign_json
from tfcluster.rundir.registry import ProcessIdentity, this_process

Tell = Callable[[Mapping[str, Any]], None]
"""Sends one JSON object to the starter; it may be gone."""


@dataclass(slots=True)
class Background:
    """The process as its starter sees it."""

    identity: ProcessIdentity
    _pipe: BinaryIO
    was_signalled: bool = False
    """Whether a signal to the starter was passed on."""

    def news(self) -> Iterator[dict[str, Any]]:
        """What it tells, until it or its telling ends."""
        for line in self._pipe:
            yield foreign_json.parse_json_object(line)

    def close(self) -> None:
        self._pipe.close()

    @contextlib.contextmanager
    def in_foreground(self) -> Iterator[None]:
        """As long as the block lasts Ctrl-C and SIGTERM are meant for the process behind."""
        meant = (signal.SIGINT, signal.SIGTERM)
        before = [(number, signal.signal(number, self._pass_on)) for number in meant]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, meant)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, meant)
            for number, handler in before:
                signal.signal(number, handler)

    def _pass_on(self, number: int, frame: object) -> None:
        self.was_signalled = True
        if self.identity.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.identity.pid, number)


def start(serve: Callable[[Tell], None]) -> Background:
    """Have `serve` called in a process of its own, which has no terminal and ends after it.

    To be called while signals are held back, as they are in the new process too.
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
    """Never returns, whatever happens: above are the frames of the starter."""
    try:
        os.setsid()
        if os.fork():
            os._exit(0)  # not the leader of its session, so no terminal can become its own
        _leave_everything(keep=writer)
        tell = _telling(writer)
        me = this_process()
        tell({"host": me.host, "boot_id": me.boot_id, "pid": me.pid, "start": me.start})
        try:
            serve(tell)
        except BaseException:
            tell({"fault": traceback.format_exc()})
    finally:
        os._exit(0)


def _leave_everything(*, keep: int) -> None:
    """Neither the terminal nor a pipe nor the folder of the starter is held on to."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    fds = [int(name) for name in os.listdir("/dev/fd")]
    for fd in fds:
        # Not closed: an object that is still there must not close what gets its number later.
        if fd not in (keep, null) and (fd < 3 or _is_open(fd)):
            os.dup2(null, fd, inheritable=fd < 3)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _telling(writer: int) -> Tell:
    def tell(news: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            os.write(writer, json.dumps(news).encode() + b"\n")

    return tell


@contextlib.contextmanager
def words_kept(path: Path) -> Iterator[None]:
    """stdout and stderr go to `path`, which is there afterwards only if anything was said."""
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
