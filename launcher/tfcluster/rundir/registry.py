"""The registry of runs: lists them, finds the one a user means, and checks their coordinators."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tfcluster.agent import foreign_json
from tfcluster.agent.error_text import reason_of
from tfcluster.errors import RunFolderError, UnknownRunError
from tfcluster.rundir.paths import RunPaths, home
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process of one boot of a machine; `start` is in clock ticks since boot (proc(5), stat)."""

    host: str
    boot_id: str
    pid: int
    start: int

    def is_alive(self) -> bool | None:
        """Whether it still runs; None where only another machine could tell."""
        if self.host != socket.gethostname():
            return None
        return self.boot_id == boot_id() and start_of(self.pid) == self.start


def this_process() -> ProcessIdentity:
    return ProcessIdentity(
        host=socket.gethostname(),
        boot_id=boot_id(),
        pid=os.getpid(),
        start=start_of(os.getpid()) or 0,
    )


def boot_id() -> str:
    """A text that changes with every boot; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_of(pid: int) -> int | None:
    """Start time of a live process, None when there is none; a zombie counts as gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None if Path("/proc/self").exists() else _start_without_proc(pid)
    state, *rest = stat.rpartition(")")[2].split()
    return None if state == "Z" else int(rest[18])


def _start_without_proc(pid: int) -> int | None:
    import psutil  # macOS only: the import is not free

    try:
        return int(psutil.Process(pid).create_time() * 100)
    except psutil.Error:
        return None


_SUFFIX_ALPHABET = "23456789abcdefghijkmnpqrstuvwxyz"  # no 0/o, 1/l: it is typed by hand


_NEW_S = 60.0
"""A folder without a state may belong to a run that just begins; an older one is damaged."""


_ANSWER_S = 2.0


class DamagedRunError(RunFolderError):
    """A run's ``state.json`` is missing or is no state of a run."""

    def __init__(self, paths: RunPaths, why: str) -> None:
        super().__init__(
            f"the run {paths.run_id} is damaged: {paths.state} cannot be read: {why}",
            fix=f"`tfcluster rm {paths.run_id}` removes its folder;"
            " what it gathered and logged lies there until then",
        )
        self.paths, self.why = paths, why

    @property
    def changed_at(self) -> float:
        """When something in its folder last came or went, seconds since 1970; 0: it is gone."""
        try:
            return self.paths.root.stat().st_mtime
        except OSError:
            return 0.0


@dataclass(frozen=True, slots=True)
class RunListing:
    """All runs of a home."""

    runs: list[tuple[RunPaths, RunSnapshot]] = field(default_factory=list)
    """Oldest first."""
    damaged: list[DamagedRunError] = field(default_factory=list)
    """Those of which nothing can be known; oldest first."""


def new_run_id(name: str, now: float) -> str:
    """``localhost-2w-20260914-153012-k7f3``: name, local time, four random characters."""
    import secrets  # not for `ps`

    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{name}-{stamp}-" + "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(4))


def load(paths: RunPaths) -> RunSnapshot:
    """Read a run's state; it is `lost` when it is not over and its coordinator is gone.

    Raises DamagedRunError where the folder holds no readable state.
    """
    snapshot = _read(paths)
    if snapshot.status.is_final or coordinator_of(snapshot).is_alive() is not False:
        return snapshot
    # It may have ended the run, and then itself, since we read.
    snapshot = _read(paths)
    if not snapshot.status.is_final:
        snapshot.status = Status.LOST
    return snapshot


def _read(paths: RunPaths) -> RunSnapshot:
    try:
        return RunSnapshot.from_json(foreign_json.read_json_object(paths.state))
    except (OSError, ValueError) as error:
        why = reason_of(error)
        raise DamagedRunError(paths, why) from error


def coordinator_of(snapshot: RunSnapshot) -> ProcessIdentity:
    return ProcessIdentity(
        host=snapshot.host, boot_id=snapshot.boot_id, pid=snapshot.pid, start=snapshot.pid_start
    )


def is_open(snapshot: RunSnapshot) -> bool:
    """Whether there is something to end: the run lives, or nobody has cleaned up after its loss."""
    if snapshot.status is Status.LOST:
        now = time.time()
        return snapshot.ended_at is None or any(at > now for at in snapshot.leases.values())
    return not snapshot.status.is_final


def is_elsewhere(snapshot: RunSnapshot) -> bool:
    """Whether it is coordinated on another host that shares this home."""
    return snapshot.host != socket.gethostname()


def control_socket(paths: RunPaths, snapshot: RunSnapshot) -> Path:
    """Where its coordinator listens, also where this shell's runtime folder is another."""
    folder = snapshot.runtime_dir
    return Path(folder) / paths.control_socket.name if folder else paths.control_socket


def is_answered(paths: RunPaths) -> bool:
    """Whether a coordinator answers for the run: its state need not be readable."""
    from tfcluster.rundir import control

    with contextlib.suppress(OSError, ValueError):
        control.ask(paths.control_socket, {"op": "status"}, timeout=_ANSWER_S)
        return True
    return False


def runs(home_dir: Path | None = None) -> list[tuple[RunPaths, RunSnapshot]]:
    """All readable runs, oldest first."""
    return list_runs(home_dir).runs


def list_runs(home_dir: Path | None = None) -> RunListing:
    """Read the states of all runs."""
    found = RunListing()
    for folder in _folders((home_dir or home()) / "runs"):
        paths = RunPaths(folder)
        try:
            found.runs.append((paths, load(paths)))
        except DamagedRunError as error:
            # Without a state it may have been removed just now, or have begun just now.
            if paths.state.exists() or 0 < error.changed_at < time.time() - _NEW_S:
                found.damaged.append(error)
    found.runs.sort(key=lambda run: run[1].started_at)
    found.damaged.sort(key=lambda error: error.changed_at)
    return found


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return []


def delete(paths: RunPaths) -> None:
    """Remove what a run that is over has left: its folder, and a killed coordinator's socket."""
    import shutil

    latest = paths.root.parent.parent / "latest"
    if latest.is_symlink() and latest.resolve() == paths.root.resolve():
        latest.unlink()
    shutil.rmtree(paths.root)
    paths.control_socket.unlink(missing_ok=True)


def resolve(run: str | None, *, live_only: bool = False, home_dir: Path | None = None) -> RunPaths:
    """The run a user means by an id, its last four characters, a name, a spec file, or nothing.

    Nothing means the latest run; with `live_only` the only live one, and of several runs of one
    name the latest that lives is meant, if one does. Raises UnknownRunError
    (exit 2) where that names no run, or more than one.
    """
    found = list_runs(home_dir)
    known = found.runs
    if run is None:
        return _only_live(known) if live_only else _latest(known)
    for fits in _readings(run):
        if matches := [entry for entry in known if fits(entry[1])]:
            live = [entry for entry in matches if not entry[1].status.is_final]
            return (live if live and live_only else matches)[-1][0]
    for error in found.damaged:
        if run == error.paths.run_id or (len(run) == 4 and error.paths.run_id.endswith(f"-{run}")):
            return error.paths
    names = sorted({entry[1].run for entry in known} | {entry[1].name for entry in known})
    import difflib

    near = difflib.get_close_matches(run, names, n=3, cutoff=0.5)
    fix = f"did you mean {' or '.join(near)}?" if near else "`tfcluster ps -a` lists all runs"
    raise UnknownRunError(f"no run is known as {run!r}", fix=fix)


def to_wait_for(home_dir: Path | None = None) -> RunPaths:
    """The run that `wait` means without a name.

    The only live one; where none is live, the latest that was started in the background and has
    not been waited for yet. Raises UnknownRunError (exit 2) where that names no run, or several.
    """
    known = runs(home_dir)
    if all(snapshot.status.is_final for _, snapshot in known):
        for paths, snapshot in reversed(known):
            if snapshot.background and not paths.waited.exists():
                return paths
    return _only_live(known)


def bytes_of(home_dir: Path, *, within_s: float = 0.3) -> int:
    """What all runs take on disk, bytes; of very many files only what can be counted in time."""
    until, total = time.monotonic() + within_s, 0
    for folder, _, names in os.walk(home_dir / "runs"):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
        if time.monotonic() > until:
            break
    return total


def _readings(run: str) -> list[Callable[[RunSnapshot], bool]]:
    spec = os.path.abspath(run)
    return [
        lambda snapshot: snapshot.run == run,
        lambda snapshot: len(run) == 4 and snapshot.run.endswith(f"-{run}"),
        lambda snapshot: snapshot.name == run,
        lambda snapshot: snapshot.spec is not None and os.path.abspath(snapshot.spec) == spec,
    ]


def _latest(known: list[tuple[RunPaths, RunSnapshot]]) -> RunPaths:
    if not known:
        raise UnknownRunError("there is no run yet", fix="start one: `tfcluster up SPEC`")
    return known[-1][0]


def _only_live(known: list[tuple[RunPaths, RunSnapshot]]) -> RunPaths:
    live = [entry for entry in known if not entry[1].status.is_final]
    if len(live) == 1:
        return live[0][0]
    if not live:
        lost = [snapshot.run for _, snapshot in known if is_open(snapshot)]
        raise UnknownRunError(
            "no run is live",
            fix=f"after a lost run cleans up: `tfcluster down {lost[-1]}`"
            if lost
            else "`tfcluster ps -a` lists all runs",
        )
    rows = "\n".join(f"  {snapshot.run}  {snapshot.status}" for _, snapshot in live)
    raise UnknownRunError(f"{len(live)} runs are live:\n{rows}", fix="name one of them")
