"""The writer of a run folder: makes it, writes ``events.jsonl`` and ``state.json``."""

from __future__ import annotations

import contextlib
import errno
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfcluster.agent import budgets
from tfcluster.agent.error_text import reason_of
from tfcluster.agent.net.private_folders import make_private
from tfcluster.errors import RunFolderError, SetupError
from tfcluster.plans.secrets import redact
from tfcluster.rundir import fold
from tfcluster.rundir.events import Event, Progress, StepTimes, Usage
from tfcluster.rundir.figures import state_json
from tfcluster.rundir.paths import RunPaths, runtime_dir
from tfcluster.rundir.snapshot import RunSnapshot, TaskSnapshot, to_json_numbers

_RESERVE_BYTES = 128 * 1024


def to_line(event: Event, *, seq: int, time: float) -> bytes:
    """Return one line of ``events.jsonl``, newline included."""
    record = {"seq": seq, "time": round(time, 6)} | event.facts()
    if isinstance(event, Progress):
        record["metrics"] = to_json_numbers(event.metrics)
    return json.dumps(record, separators=(",", ":"), default=dict).encode() + b"\n"


def make_new(new_id: Callable[[], str], home_dir: Path) -> RunPaths:
    """Make a run folder with the first id of `new_id` that no other run has; see `make`."""
    while True:
        with contextlib.suppress(FileExistsError):
            return make(new_id(), home_dir)


def make(run_id: str, home_dir: Path) -> RunPaths:
    """Make the folder of a run (mode 0700) and point the link ``latest`` at it.

    Raises FileExistsError if another run has this id, RunFolderError if it cannot be made.
    """
    paths = RunPaths.of(run_id, home_dir)
    try:
        home_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths.root.parent.mkdir(mode=0o700, exist_ok=True)
        paths.root.mkdir(mode=0o700)
        paths.logs.mkdir()
        make_reserve(paths)
        fresh = home_dir / f".latest-{run_id}"
        fresh.symlink_to(paths.root)
        fresh.replace(home_dir / "latest")
    except OSError as error:
        if isinstance(error, FileExistsError) and Path(error.filename) == paths.root:
            raise
        raise RunFolderError(
            f"cannot make the run folder {paths.root}: {reason_of(error)}",
            fix="make it writable, or set TFCLUSTER_HOME to a folder that is",
        ) from error
    return paths


def make_reserve(paths: RunPaths) -> None:
    """Reserve some disk space for the last state and the last events."""
    paths.reserve.write_bytes(bytes(_RESERVE_BYTES))


def release_reserve(paths: RunPaths) -> None:
    """Free the disk space that `make_reserve` reserved."""
    with contextlib.suppress(OSError):
        paths.reserve.unlink(missing_ok=True)


def make_runtime_dir() -> None:
    """Make the folder of sockets and locks.

    Raises SetupError if it cannot be made, or if other users could write into it.
    """
    folder = runtime_dir()
    try:
        make_private(str(folder))
    except OSError as error:
        raise SetupError(
            f"cannot use {folder} for sockets: {reason_of(error)}",
            fix="make ~/.cache/tfcluster writable, where the name of another folder is stored, or"
            " set XDG_RUNTIME_DIR to a private folder (at most 36 characters)",
        ) from error


def write_json(path: Path, data: Mapping[str, Any], indent: int | None = 1) -> None:
    """Replace a JSON file as `replace_file` does, with the same errors.

    If `indent` is None the file is one line, which takes a tenth of the time.
    """
    replace_file(path, json.dumps(data, indent=indent, default=dict).encode() + b"\n")


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically; raise OSError, and keep the old one, if the disk refuses it."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.write_bytes(data)
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def require_json(path: Path, data: Mapping[str, Any]) -> None:
    """Replace a JSON file as `write_json` does; raise RunFolderError if the disk refuses it."""
    try:
        write_json(path, data)
    except OSError as error:
        raise RunFolderError(
            f"cannot write {path}: {why_refused(error)}",
            fix="free some space, or set TFCLUSTER_HOME to a folder on another disk",
        ) from error


def why_refused(error: OSError) -> str:
    """Return why a file could not be written into a run's folder, in words."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    if error.errno == errno.ENOENT:
        return "the folder was deleted"
    return reason_of(error)


class EventLog:
    """The file ``events.jsonl``, with `seq` from 1; a full disk delays lines, never loses them."""

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        self._file = path.open("ab", buffering=0)
        self._clock = clock
        with path.open("rb") as file:  # a submitted run's folder is opened again
            self._seq = sum(1 for _ in file)
        self._waiting = b""
        self.refusal: OSError | None = None
        """The error for which lines wait."""

    @property
    def waiting_bytes(self) -> int:
        """The size of the lines that are not yet on disk."""
        return len(self._waiting)

    def append(self, event: Event) -> None:
        self._seq += 1
        self._waiting += to_line(event, seq=self._seq, time=self._clock())
        self.flush()

    def flush(self) -> bool:
        """Write the waiting lines; return whether everything is on disk."""
        while self._waiting:
            try:
                written = self._file.write(self._waiting)
            except OSError as error:
                self.refusal = error
                return False
            self._waiting = self._waiting[written:]
        return True

    def close(self) -> None:
        self.flush()
        self._file.close()


_PROGRESS_INTERVAL_S = 0.25
"""The least time between two saves of ``state.json`` for measurements; others save at once."""
_PAUSE_FACTOR = 9
"""The pause of `keep_up` after a save, as a multiple of the time the save took.

Saving a thousand tasks takes milliseconds, and must not use all the time while they start one
after the other."""


class RunWriter:
    """A run's state and its two files; `record` never fails, not even on a full disk."""

    def __init__(
        self,
        state: RunSnapshot,
        paths: RunPaths,
        *,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        secrets: Sequence[str] = (),
    ) -> None:
        """Take `secrets`, values to be masked in all files, and two clocks.

        `timer` measures the pauses between saves, which a change of the system clock must not
        make longer.
        """
        self.secrets = secrets
        self.state = state
        self.paths = paths
        self._clock, self._timer = clock, timer
        self._log = EventLog(paths.events, clock=clock)
        self.listeners: list[Callable[[Event], None]] = []
        """Called after each event; they may call `save`."""
        self._is_dirty, self._is_urgent = True, True
        self._refusal: OSError | None = None
        """The error of the last save, if it failed."""
        self._saved_at = self._may_save_at = 0.0
        self.save()

    def record(self, event: Event) -> None:
        event = redact(event, self.secrets)
        has_room = self._log.waiting_bytes < budgets.UNWRITTEN_EVENTS
        is_measurement = isinstance(event, (Progress, StepTimes, Usage))
        if has_room or not is_measurement:
            self._log.append(event)
        fold.apply(self.state, event, self._clock(), self.paths)
        self.mark_changed(urgent=not is_measurement)
        for listener in list(self.listeners):
            listener(event)

    def task(self, task: str) -> TaskSnapshot:
        return self.state.task(task)

    def wait_for(self, what: str | None) -> None:
        """Set what the next start waits for, which `status` shows; None clears it."""
        self.state.waits_for = what
        self.mark_changed()

    def note_gathering(self, facts: Mapping[str, Any] | None) -> None:
        """Set which files are being copied, which `status` shows; None clears it."""
        self.state.gathering = None if facts is None else dict(facts)
        self.mark_changed(urgent=False)

    def mark_changed(self, *, urgent: bool = True) -> None:
        """Mark the state as changed, so that the next `save` writes it."""
        self._is_dirty = True
        self._is_urgent |= urgent

    def save(self) -> bool:
        """Write everything to disk that is due; return whether nothing still waits."""
        now = self._clock()
        if self._is_dirty and (self._is_urgent or now - self._saved_at >= _PROGRESS_INTERVAL_S):
            began = self._timer()
            try:
                write_json(self.paths.state, state_json(self.state), None)
            except OSError as error:
                self._refusal = error
                self._may_save_at = began + _PROGRESS_INTERVAL_S
            else:
                self._is_dirty, self._is_urgent, self._saved_at = False, False, now
                self._refusal = None
                self._may_save_at = self._timer() + _PAUSE_FACTOR * (self._timer() - began)
        return self._log.flush() and not self._is_urgent

    def keep_up(self) -> None:
        """Call `save`, but use at most a tenth of the time for it, however large the state is."""
        if self._timer() >= self._may_save_at:
            self.save()

    @property
    def wake_s(self) -> float | None:
        """The seconds after which `save` should be called again; None when nothing waits."""
        if not self._is_dirty:
            return None
        pause_s = self._may_save_at - self._timer()
        return max(0.0, pause_s) if self._is_urgent else _PROGRESS_INTERVAL_S

    def close(self, *, keeps_reserve: bool = False) -> str:
        """Save the rest, using the reserve on a full disk; return why it failed, or "".

        `keeps_reserve`: another process goes on writing.
        """
        self._is_urgent = self._is_dirty
        if not (saved := self.save()):
            release_reserve(self.paths)
            saved = self.save()
        if not keeps_reserve:
            release_reserve(self.paths)
        self._log.close()
        if saved:
            return ""
        refusal = self._refusal or self._log.refusal
        assert refusal is not None
        return why_refused(refusal)
