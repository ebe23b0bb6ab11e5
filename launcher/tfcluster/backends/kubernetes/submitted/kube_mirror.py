"""The copy of a submitted run's folder on this machine, kept up to date by a thread.

One process at a time copies (a lock in the run folder); all views read the folder as ever. The
stream comes from the coordinator's pod through its seat; a broken one is made again and resumed.
When all files of an ended run have arrived, the pod is released, and then the end is shown. A copy
of another machine's run releases nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from tfcluster.agent.error_text import describe_error
from tfcluster.backends import job_watch, past_runs
from tfcluster.backends.kubernetes.seat_client import SeatProcess
from tfcluster.backends.past_runs import SilentError
from tfcluster.checkpoints.copying import SourceChangedError
from tfcluster.checkpoints.store import deliver, open_for_reading
from tfcluster.errors import TfclusterError
from tfcluster.rundir import registry
from tfcluster.rundir.events import Warned
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import EventLog
from tfcluster.wire.folder_stream import Applier, Frame, frames

LOCK: Final = ".mirror"
_RETRY_S: Final = 1.0
_NOT_OPEN: Final = "the coordinator's pod runs, but has not opened the run's folder yet"
_SLOW_S: Final = 10.0
"""Seconds that a coordinator may take to open the run's folder, without a word."""


class Source(Protocol):
    """The coordinator's pod, as the copy needs it. Its methods raise TfclusterError."""

    def open(self) -> SeatProcess | None:
        """Start the process that sends the folder; None while no pod runs."""

    def release(self) -> None:
        """Remove all that the cluster has of the run."""


@dataclass(slots=True)
class Mirror:
    """The thread that copies the folder of one run (`backends.jobs.Following`)."""

    paths: RunPaths
    source: Source
    problem: str = ""
    _has_news: threading.Event = field(default_factory=threading.Event)
    _failures: int = 0
    """The failures in a row to begin a copy."""

    def start(self) -> Mirror:
        threading.Thread(target=self._run, name="mirror", daemon=True).start()
        return self

    def await_news(self, patience_s: float) -> bool:
        """Wait until the folder is up to date once, or there is nobody to ask."""
        return self._has_news.wait(max(0.0, patience_s))

    def _run(self) -> None:
        with contextlib.suppress(FileNotFoundError), self._alone():  # the folder was deleted
            while self.paths.root.exists() and not self._try_to_copy():
                self._has_news.set()
                time.sleep(_RETRY_S)
        self._has_news.set()

    def _try_to_copy(self) -> bool:
        """Do what `_copy` does; what fails is `problem` until the next success."""
        try:
            is_over = self._copy()
        except (
            OSError,  # a full disk
            ValueError,  # a damaged stream, or an older state file
            KeyError,
            subprocess.SubprocessError,
            TfclusterError,
            SilentError,
        ) as error:
            self.problem = describe_error(error)
            return False
        self.problem = ""
        return is_over

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until no other process copies this run."""
        with (self.paths.root / LOCK).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._has_news.set()
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _copy(self) -> bool:
        """Copy until the stream ends; return whether the run is over."""
        if registry.load_recorded(self.paths).status.is_final:
            return True
        applier = Applier(self.paths)
        try:
            if not self._copy_with(applier):
                return False
        except ConnectionError:
            self._failures += 1
            if self._failures > 1:  # the first one may be a pod that does not listen yet
                raise
            return False
        return self._finish(applier)

    def _copy_with(self, applier: Applier) -> bool:
        """Apply what the pod sends; return whether it has sent anything."""
        if (sending := self.source.open()) is None:
            return False
        with sending:
            received = frames(io.BufferedReader(sending))
            with self._noting_silence():
                first = next(received, None)
            if first is None:
                raise ConnectionError(sending.last_words or "the coordinator's pod sends nothing")
            self._failures = 0
            applier.meet(first[0]["folder"])
            with contextlib.suppress(BrokenPipeError):
                sending.send(json.dumps({"have": applier.have()}).encode() + b"\n")
            self._apply(applier, received)
        return True

    @contextlib.contextmanager
    def _noting_silence(self) -> Iterator[None]:
        """Note as the problem if the block takes long: a successor waits for its predecessor."""

        def note() -> None:
            self.problem = _NOT_OPEN

        timer = threading.Timer(_SLOW_S, note)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            if self.problem == _NOT_OPEN:
                self.problem = ""

    def _apply(self, applier: Applier, received: Iterator[Frame]) -> None:
        for head, data in received:
            if "path" in head:
                applier.apply(head, data)
            else:
                self._has_news.set()
                if applier.final_state is not None:
                    return

    def _finish(self, applier: Applier) -> bool:
        if applier.final_state is None:
            return False
        applier.place_checkpoints()
        if self.paths.is_copy:  # the machine that has started the run fetches its files, too
            applier.finish()
            return True
        deliver_results(self.paths)
        with job_watch.recording_alone(self.paths):  # a view may notice that the Job is gone
            with contextlib.suppress(
                TfclusterError, SilentError, OSError, subprocess.SubprocessError
            ):
                self.source.release()
            applier.finish()
        past_runs.find_leftovers_of(self.paths.run_id)  # forgets a run that left nothing
        return True


def deliver_results(paths: RunPaths) -> None:
    """Copy the results to ``checkpoints.to``, a folder of this machine; a failure is an event."""
    if (to := registry.load_plan(paths).checkpoints.to) is None:
        return
    held = [one for one in open_for_reading(paths.checkpoints) if one.kind != "backup"]
    outputs = paths.outputs if paths.outputs.exists() else None
    try:
        deliver(held[-1] if held else None, outputs, Path(to))
    except (SourceChangedError, OSError) as error:
        log = EventLog(paths.events, clock=time.time)
        why = f"not everything was copied to checkpoints.to ({to}): {describe_error(error)}"
        log.append(Warned(message=why, closing=True))
        log.close()
