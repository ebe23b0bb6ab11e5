"""The copy of a submitted run's folder on this machine, kept up to date by a thread.

One process at a time copies (a lock in the run folder); all views read the folder as ever. A file
process (`agent.files`) in the coordinator's pod lists and sends the files, as those of the agents
do for their nodes; a broken connection is made again and resumed. While the run lives, checkpoints
and outputs are left out. When all files of an ended run have arrived, the pod is released, and then
the end is shown. A copy of another machine's run releases nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Final, Protocol

from tfcluster.agent import catalogue as msg
from tfcluster.agent import foreign_json, protocol
from tfcluster.agent.error_text import describe_error
from tfcluster.backends import job_watch, past_runs
from tfcluster.backends.kubernetes.exec_client import PodProcess
from tfcluster.backends.kubernetes.submitted.kube_package import FOLDER
from tfcluster.backends.past_runs import SilentError
from tfcluster.checkpoints.copying import PARTIAL, SourceChangedError, write_atomically
from tfcluster.checkpoints.recognition import Entry
from tfcluster.checkpoints.store import deliver, read_store
from tfcluster.errors import TfclusterError
from tfcluster.rundir import registry
from tfcluster.rundir.events import Warned
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import EventLog, replace_file
from tfcluster.rundir.states import Status
from tfcluster.wire import messages
from tfcluster.wire.file_transfer import RemoteFiles, RemoteFilesError
from tfcluster.wire.remote_source import RemoteFolder, at_once, is_same, only_grows

LOCK: Final = ".mirror"
_MIRRORED: Final = ".mirrored"
"""The file with the id of the folder that was copied last, and where its files begin here."""
_EVENTS: Final = ".mirrored.events"
"""The copy of that folder's events, whose lines are appended to the events here."""
_RETRY_S: Final = 1.0
_INTERVAL_S: Final = 0.2
_NOT_OPEN: Final = "the coordinator's pod runs, but has not opened the run's folder yet"
_SLOW_S: Final = 10.0
"""Seconds that a coordinator may take to open the run's folder, without a word."""
_AT_ONCE: Final = 16
"""The files that are copied at the same time, so that none waits for the network alone."""
_OWN: Final = frozenset({"spec.json", "plan.json", "launch.json", "submitted.json"})
"""Files that each side has for itself."""
_AT_THE_END: Final = frozenset({"checkpoints", "outputs"})
_NEVER: Final = frozenset({"tasks", "tuner"})
_SEQ: Final = re.compile(rb'(\{"seq":\s*)(\d+)')
"""The beginning of each line of events (`rundir.run_writer.to_line`)."""


class PodFolder(Protocol):
    """The coordinator's pod, as the copy needs it. Its methods raise TfclusterError."""

    @property
    def folder(self) -> str:
        """The run folder there."""

    def open(self) -> PodProcess | None:
        """Start a file process in the pod; None while no pod runs."""

    def release(self) -> None:
        """Remove all that the cluster has of the run."""


@dataclass(slots=True)
class Mirror:
    """The thread that copies the folder of one run (`backends.jobs.Following`)."""

    paths: RunPaths
    source: PodFolder
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
        """Copy until the connection ends; return whether the run is over."""
        if registry.load_recorded(self.paths).status.is_final:
            return True
        if (pod := self.source.open()) is None:
            return False
        with pod:
            final_state = asyncio.run(self._copy_from(pod))
        if final_state is None:
            return False
        self._finish(final_state)
        return True

    async def _copy_from(self, pod: PodProcess) -> bytes | None:
        """Copy over one connection; return the state of a run that is over, once all has come.

        Raises ConnectionError if it is not the first connection in a row without an answer: the
        first one may be to a pod that does not listen yet.
        """
        files, reader = open_files(pod)
        try:
            there = RemoteFolder(files, self.source.folder, run=at_once)
            copy = FolderCopy(self.paths, there)
            copy.begin(await self._await_folder(there))
            self._failures = 0
            while (final_state := await copy.update()) is None:
                self._has_news.set()
                await asyncio.sleep(_INTERVAL_S)
            return final_state
        except RemoteFilesError:
            if not files.is_lost:
                raise
        reader.join(_RETRY_S)  # it may still read why
        self._failures += 1
        if self._failures > 1:
            raise ConnectionError(pod.last_words or "the coordinator's pod sends nothing")
        return None

    async def _await_folder(self, there: RemoteFolder) -> Mapping[str, Any]:
        """Return what identifies the run folder, once it is open; long waits are the problem."""
        began = time.monotonic()
        while True:
            for entry in await there.scan():
                if entry.path == FOLDER:
                    self.problem = ""
                    return foreign_json.parse_json_object(await there.read(entry))
            if time.monotonic() - began >= _SLOW_S:  # a successor waits for its predecessor
                self.problem = _NOT_OPEN
            await asyncio.sleep(_INTERVAL_S)

    def _finish(self, final_state: bytes) -> None:
        if self.paths.is_copy:  # the machine that has started the run fetches its files, too
            replace_file(self.paths.state, final_state)
            return
        deliver_results(self.paths)
        with job_watch.recording_alone(self.paths):  # a view may notice that the Job is gone
            with contextlib.suppress(
                TfclusterError, SilentError, OSError, subprocess.SubprocessError
            ):
                self.source.release()
            replace_file(self.paths.state, final_state)
        past_runs.find_leftovers_of(self.paths.run_id)  # forgets a run that left nothing


def open_files(pod: PodProcess) -> tuple[RemoteFiles, threading.Thread]:
    """Return the files of a pod in which `pod` is a file process, and the thread that reads it.

    The thread is not asyncio's: the end of a command does not wait for it.
    """
    loop = asyncio.get_running_loop()

    async def send(order: msg.Order) -> None:
        try:
            pod.send(protocol.control_frame(order.to_json()))
        except OSError as error:
            files.mark_lost()
            raise RemoteFilesError(describe_error(error)) from error

    async def send_file(name: str, offset: int, data: bytes) -> None:
        raise AssertionError("the coordinator's pod gets no file")

    def take(kind: bytes, payload: bytes) -> None:
        try:
            files.handle(messages.read_file_report(kind, payload))
        except protocol.ProtocolError as error:
            files.mark_lost(f"it sent {error}")

    def read() -> None:
        decoder, why = protocol.Decoder(), ""
        with contextlib.suppress(RuntimeError):  # the copy has ended, and its loop
            try:
                while data := pod.read(1 << 18):
                    for frame in decoder.feed(data):
                        loop.call_soon_threadsafe(take, *frame)
            except (OSError, ValueError) as error:
                why = describe_error(error)
            loop.call_soon_threadsafe(files.mark_lost, why)

    files = RemoteFiles(send, send_file, node="the coordinator's pod")
    reader = threading.Thread(target=read, name="mirror's reader", daemon=True)
    reader.start()
    return files, reader


@dataclass(slots=True)
class FolderCopy:
    """The copy of one run folder, over one connection."""

    paths: RunPaths
    there: RemoteFolder
    _begins: dict[str, int] = field(default_factory=dict)
    """Path of a file that grows → where its copy begins in the file here, if not at 0."""
    _ahead: int = 0
    """The lines of events that the folder here has before those of the copied one."""
    _events_at: int = 0
    """The bytes of `_EVENTS` that were read."""
    _held: int | None = None
    """The next lines of `_EVENTS` that are among the events here; the submitter may be ahead."""
    _pending: dict[str, Entry] = field(default_factory=dict)
    """The files that were listed and are not copied yet."""
    _state: bytes | None = None
    """The newest state, until it is written here."""
    _is_over: bool = False

    def begin(self, about: Mapping[str, Any]) -> None:
        """Note which folder is copied, by its `FOLDER`.

        It is another one once the coordinator's pod was replaced without a volume. Its events and
        logs follow those that are here.
        """
        note = self.paths.root / _MIRRORED
        known = foreign_json.read_json_object(note) if note.exists() else {}
        if known.get("id") != about["id"]:
            begins, ahead = dict[str, int](), 0
            if known:
                begins = dict(_growing(self.paths.root))
                ahead = self._count_events() - about["lines"]
            (self.paths.root / _EVENTS).unlink(missing_ok=True)
            known = {"id": about["id"], "begins": begins, "ahead": ahead}
            write_atomically(note, json.dumps(known))
        self._begins, self._ahead = known["begins"], known["ahead"]

    async def update(self) -> bytes | None:
        """Copy what has changed; return the state of a run that is over, once all else is here.

        The state is read before and written after all that it tells of.
        """
        await self._list()
        name = self.paths.state.name
        if (entry := self._pending.pop(name, None)) is not None:
            await self._read_state(entry)
        wanted = sorted(self._pending.keys() - {name}, key=lambda path: (_completes(path), path))
        is_whole = True
        for _, group in groupby(wanted, _completes):
            while batch := [*islice(group, _AT_ONCE)]:
                is_whole &= all(await asyncio.gather(*map(self._renew, batch)))
        if self._is_over:
            return self._state if is_whole else None
        if self._state is not None:
            replace_file(self.paths.state, self._state)
            self._state = None
        return None

    async def _list(self) -> None:
        changes = not self._is_over  # what was left out is listed at the end
        listed = await self.there.scan(changes=changes)
        left_out = _NEVER if self._is_over else _NEVER | _AT_THE_END
        self._pending |= {e.path: e for e in listed if _is_copied(e.path, left_out)}

    async def _read_state(self, entry: Entry) -> None:
        """Read the state and then list what belongs to it."""
        with contextlib.suppress(SourceChangedError):  # it is listed again
            self._state = await self.there.read(entry)
            self._is_over = Status(foreign_json.parse_json_object(self._state)["status"]).is_final
            await self._list()

    async def _renew(self, path: str) -> bool:
        """Copy a file; return False if it has changed meanwhile or is gone: the next list tells."""
        entry, target = self._pending.pop(path), self.paths.root / path
        try:
            if path == self.paths.events.name:
                raw = self.paths.root / _EVENTS
                await self.there.follow(entry, raw)
                self._append_events(raw)
            elif only_grows(path):
                await self.there.follow(entry, target, begins_at=self._begins.get(path, 0))
            elif not is_same(target, entry):
                await self.there.copy(entry, target, resumes=True)
        except SourceChangedError:
            return False
        return True

    def _append_events(self, raw: Path) -> None:
        """Append the new whole lines of the copied events, numbered on from those here."""
        if self._held is None:
            self._held = self._count_events() - self._ahead
        with raw.open("rb") as file:
            file.seek(self._events_at)
            whole, end, _ = file.read().rpartition(b"\n")
        self._events_at += len(whole + end)
        lines = (whole + end).splitlines(True)
        with self.paths.events.open("ab") as events:
            events.writelines(_shift(line, self._ahead) for line in lines[self._held :])
        self._held = max(0, self._held - len(lines))

    def _count_events(self) -> int:
        """Return the lines of events here, without one that a full disk has cut."""
        data = self.paths.events.read_bytes()
        os.truncate(self.paths.events, data.rfind(b"\n") + 1)
        return data.count(b"\n")


def _is_copied(path: str, left_out: Set[str]) -> bool:
    """Return whether a path of the run folder is a file that this machine wants."""
    top, *below = path.split("/")
    is_partial = any(part.startswith(PARTIAL) for part in below)
    return not (top.startswith(".") or top in _OWN | left_out or is_partial or path.endswith("/"))


def _completes(path: str) -> bool:
    """Return whether a file says that others are complete: a checkpoint's note, TensorFlow's."""
    name = path.rpartition("/")[2]
    return name.startswith(".") or name == "checkpoint"


def _growing(root: Path) -> Iterator[tuple[str, int]]:
    """Yield the path and the size of each file that grows."""
    for path in root.rglob("*"):
        if only_grows(path.name) and path.is_file():
            yield path.relative_to(root).as_posix(), path.stat().st_size


def _shift(line: bytes, by: int) -> bytes:
    match = _SEQ.match(line)
    if match is None:
        return line
    return b"%s%d%s" % (match[1], int(match[2]) + by, line[match.end() :])


def deliver_results(paths: RunPaths) -> None:
    """Copy the results to ``checkpoints.to``, a folder of this machine; a failure is an event."""
    if (to := registry.load_plan(paths).checkpoints.to) is None:
        return
    held = [one for one in read_store(paths.checkpoints)[0] if one.kind != "backup"]
    outputs = paths.outputs if paths.outputs.exists() else None
    try:
        deliver(held[-1] if held else None, outputs, Path(to))
    except (SourceChangedError, OSError) as error:
        log = EventLog(paths.events, clock=time.time)
        why = f"not everything was copied to checkpoints.to ({to}): {describe_error(error)}"
        log.append(Warned(message=why, closing=True))
        log.close()
