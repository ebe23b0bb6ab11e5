"""Writes down what happens: an event goes to ``events.jsonl``, into the state, and to disk."""

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
from tfcluster.errors import RunFolderError, SurroundingsError
from tfcluster.plan.secrets import redact
from tfcluster.rundir import fold
from tfcluster.rundir.events import Event, Progress, to_line
from tfcluster.rundir.paths import RunPaths, runtime_dir
from tfcluster.rundir.snapshot import RunSnapshot, TaskSnapshot

_RESERVE_BYTES = 128 * 1024


def make_new(new_id: Callable[[], str], home_dir: Path) -> RunPaths:
    """`make` with the first of `new_id` that no other run has."""
    while True:
        try:
            return make(new_id(), home_dir)
        except FileExistsError:
            continue


def make(run_id: str, home_dir: Path) -> RunPaths:
    """Make the folder (0700) and point ``latest`` at it.

    Raises FileExistsError where another run has this id, RunFolderError.
    """
    paths = RunPaths.of(run_id, home_dir)
    try:
        home_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths.root.parent.mkdir(mode=0o700, exist_ok=True)
        paths.root.mkdir(mode=0o700)
        paths.logs.mkdir()
        paths.reserve.write_bytes(bytes(_RESERVE_BYTES))
        _link(home_dir / "latest", paths.root)
    except OSError as error:
        if isinstance(error, FileExistsError) and Path(error.filename) == paths.root:
            raise
        raise RunFolderError(
            f"cannot make the run folder {paths.root}: {reason_of(error)}",
            fix="make it writable, or set TFCLUSTER_HOME to a folder that is",
        ) from error
    return paths


def release_reserve(paths: RunPaths) -> None:
    """Give back the space that `make` kept, for the last state and the last events."""
    with contextlib.suppress(OSError):
        paths.reserve.unlink(missing_ok=True)


def make_runtime_dir() -> None:
    """The folder of sockets and locks; raises SurroundingsError where others could meddle."""
    folder = runtime_dir()
    try:
        make_private(str(folder))
    except OSError as error:
        raise SurroundingsError(
            f"no sockets are put into {folder}: {reason_of(error)}",
            fix="make ~/.cache/tfcluster writable, where the name of another folder is kept, or"
            " set XDG_RUNTIME_DIR to a folder of your own (short: at most 36 characters)",
        ) from error


def _link(link: Path, target: Path) -> None:
    fresh = link.with_name(f".latest-{target.name}")
    fresh.symlink_to(target)
    fresh.replace(link)


def write_json(
    path: Path,
    data: Mapping[str, Any],
    indent: int | None = 1,
    refused: Callable[[OSError], None] = lambda error: None,
) -> bool:
    """Replace a JSON file whole; False (and the old one kept) where the disk refuses it, which
    `refused` is called with.

    Without `indent` it is one line, made in a tenth of the time.
    """
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.write_text(json.dumps(data, indent=indent, default=dict) + "\n")
        fresh.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        refused(error)
        return False
    return True


def require_json(path: Path, data: Mapping[str, Any]) -> None:
    """The same; raises RunFolderError with the reason."""

    def refused(error: OSError) -> None:
        raise RunFolderError(
            f"cannot write {path}: {why_refused(error)}",
            fix="make room, or set TFCLUSTER_HOME to a folder on another disk",
        ) from error

    write_json(path, data, refused=refused)


def why_refused(error: OSError) -> str:
    """Why something could not be written into a run's folder."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    if error.errno == errno.ENOENT:
        return "the folder was deleted"
    return reason_of(error)


class EventLog:
    """Appends to ``events.jsonl`` with `seq` from 1; a full disk delays lines, never loses them."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._file = path.open("ab", buffering=0)
        self._clock = clock
        self._seq = 0
        self._waiting = b""
        self.refusal: OSError | None = None
        """Why lines wait."""

    @property
    def waiting_bytes(self) -> int:
        """Of lines that the disk has not taken yet."""
        return len(self._waiting)

    def append(self, event: Event) -> None:
        self._seq += 1
        self._waiting += to_line(event, seq=self._seq, time=self._clock())
        self.flush()

    def flush(self) -> bool:
        """Whether everything is on disk."""
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
"""How often progress alone rewrites ``state.json``; anything else does so at once."""
_PAUSE = 9
"""Times as long as a save took, `keep_up` waits for the next: that of a thousand tasks takes
milliseconds, and must not take all the time while they start one after the other."""


class Journal:
    """Owns a run's state and its two files. `record` never fails, also on a full disk."""

    def __init__(
        self,
        state: RunSnapshot,
        paths: RunPaths,
        *,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        secrets: Sequence[str] = (),
    ) -> None:
        """`secrets`: values that are covered in all that is written. `timer`: of pauses, which a
        clock that is set must not make longer."""
        self._secrets = secrets
        self.state = state
        self.paths = paths
        self._clock, self._timer = clock, timer
        self._log = EventLog(paths.events, clock=clock)
        self.heard: Callable[[Event], None] = lambda event: None
        """Called after each event; may call `save`."""
        self._is_dirty, self._is_urgent = True, True
        self._refusal: OSError | None = None
        """Why the state was not saved last."""
        self._saved_at = self._may_save_at = 0.0
        self.save()

    def record(self, event: Event) -> None:
        event = redact(event, self._secrets)
        has_room = self._log.waiting_bytes < budgets.UNWRITTEN_EVENTS
        if has_room or not isinstance(event, Progress):
            self._log.append(event)
        fold.apply(self.state, event, self._clock(), self.paths)
        self.touch(urgent=not isinstance(event, Progress))
        self.heard(event)

    def task(self, task: str) -> TaskSnapshot:
        return self.state.task(task)

    def wait_for(self, what: str | None) -> None:
        """Have `status` say what the next start waits for; None: nothing any more."""
        self.state.waits_for = what
        self.touch()

    def note_gathering(self, facts: Mapping[str, Any] | None) -> None:
        """Have `status` say what is being copied; None: nothing any more."""
        self.state.gathering = None if facts is None else dict(facts)
        self.touch(urgent=False)

    def touch(self, *, urgent: bool = True) -> None:
        """Have the state saved with the next `save`."""
        self._is_dirty = True
        self._is_urgent |= urgent

    def save(self) -> bool:
        """Bring everything to disk that is due; whether nothing is left behind."""
        now = self._clock()
        if self._is_dirty and (self._is_urgent or now - self._saved_at >= _PROGRESS_INTERVAL_S):
            began = self._timer()
            if write_json(self.paths.state, self.state.to_json(), None, self._note_refusal):
                self._is_dirty, self._is_urgent, self._saved_at = False, False, now
                self._refusal = None
                self._may_save_at = self._timer() + _PAUSE * (self._timer() - began)
            else:
                self._may_save_at = began + _PROGRESS_INTERVAL_S
        return self._log.flush() and not self._is_urgent

    def keep_up(self) -> None:
        """`save`, in a tenth of the time at most, however large the state is."""
        if self._timer() >= self._may_save_at:
            self.save()

    @property
    def wake_s(self) -> float | None:
        """How soon `save` should be called again, seconds; None when nothing waits for it."""
        if not self._is_dirty:
            return None
        pause_s = self._may_save_at - self._timer()
        return max(0.0, pause_s) if self._is_urgent else _PROGRESS_INTERVAL_S

    def close(self) -> str:
        """Save what is left, on a full disk too; why it was not taken, empty where all was."""
        self._is_urgent = self._is_dirty
        if not (saved := self.save()):
            release_reserve(self.paths)
            saved = self.save()
        release_reserve(self.paths)
        self._log.close()
        if saved:
            return ""
        refusal = self._refusal or self._log.refusal
        assert refusal is not None
        return why_refused(refusal)

    def _note_refusal(self, error: OSError) -> None:
        self._refusal = error
