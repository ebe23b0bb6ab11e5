"""The run folder as the coordinator writes it: made once, state replaced whole, events appended."""

from __future__ import annotations

import contextlib
import errno
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tfcluster.agent.error_words import reason_of
from tfcluster.agent.private import make_private
from tfcluster.errors import RunFolderError, SurroundingsError
from tfcluster.run.events import Event, to_line
from tfcluster.run.paths import RunPaths, runtime_dir

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
            cure="make it writable, or set TFCLUSTER_HOME to a folder that is",
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
            cure="make ~/.cache/tfcluster writable, where the name of another folder is kept, or"
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
            cure="make room, or set TFCLUSTER_HOME to a folder on another disk",
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
