"""The registry of runs: lists them, finds the one a user means, and checks their coordinators."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfcluster import __version__
from tfcluster.agent import foreign_json
from tfcluster.agent.error_text import describe_error, reason_of
from tfcluster.errors import RunFolderError, UnknownRunError
from tfcluster.rundir import heartbeat
from tfcluster.rundir.paths import RUN_ID, RunPaths, home
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status
from tfcluster.typed_json import from_json

if TYPE_CHECKING:
    from tfcluster.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """The identity of a process; `start` is in clock ticks since boot (proc(5), stat)."""

    host: str
    boot_id: str
    pid: int
    start: int

    def is_alive(self) -> bool | None:
        """Return whether it still runs; None if it belongs to another machine."""
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
    """Return a string that changes with every boot; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_of(pid: int) -> int | None:
    """Return the start time of a live process, or None; a zombie counts as gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()  # the kernel cuts a name at 15 bytes
    except OSError:
        return None if Path("/proc/self").exists() else _start_without_proc(pid)
    state, *rest = stat.rpartition(b")")[2].split()
    return None if state == b"Z" else int(rest[18])


def _start_without_proc(pid: int) -> int | None:
    import psutil  # only needed on macOS, and slow to import

    try:
        process = psutil.Process(pid)
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return None if is_zombie else int(process.create_time() * 100)
    except psutil.Error:
        return None


_SUFFIX_ALPHABET = "23456789abcdefghijkmnpqrstuvwxyz"  # no 0/o, 1/l: it is typed by hand
_NEW_RUN_S = 60.0
"""The age up to which a folder without a state may belong to a new run; then it is damaged."""
_ANSWER_S = 2.0
_COUNT_S = 0.3
_COPY_KEPT_S = 30 * 86400.0
"""The time that a copy of another machine's run stays after a command has last shown it."""


class DamagedRunError(RunFolderError):
    """The error for a run whose ``state.json`` is missing, invalid or another user's."""

    def __init__(self, paths: RunPaths, error: OSError | ValueError, version: object) -> None:
        self.paths, self.why = paths, reason_of(error)
        self.is_foreign = isinstance(error, PermissionError)
        """True for a run that this user may not read: another user started it."""
        self._has_no_state = isinstance(error, FileNotFoundError)
        self.may_pass = not isinstance(error, (ValueError, PermissionError, FileNotFoundError))
        """True for an error of the machine, such as that of a shared file system."""
        fix = f"`tfcluster rm {paths.run_id}` removes its folder with its checkpoints and logs"
        if isinstance(version, str) and version != __version__:
            fix = f"tfcluster {version} wrote it, and this is {__version__}: use that version"
        if self.is_foreign:
            owner = f"{os.getuid()}:{os.getgid()}"
            folder = shlex.quote(str(paths.root))
            fix = f"another user started it: `sudo chown -R {owner} {folder}` makes it yours"
        super().__init__(
            f"the run {paths.run_id} is damaged: {paths.state} cannot be read: {self.why}", fix=fix
        )

    @property
    def changed_at(self) -> float:
        """The time of the last change in its folder, seconds since 1970; 0 if it is gone."""
        try:
            return self.paths.root.stat().st_mtime
        except OSError:
            return 0.0

    @property
    def may_be_new(self) -> bool:
        """True if the run may just begin, or was just deleted."""
        return self._has_no_state and not 0 < self.changed_at < time.time() - _NEW_RUN_S


@dataclass(frozen=True, slots=True)
class RunListing:
    """All runs in tfcluster's home, the readable and the damaged ones, each oldest first."""

    runs: list[tuple[RunPaths, RunSnapshot]] = field(default_factory=list)
    damaged: list[DamagedRunError] = field(default_factory=list)


def new_run_id(name: str, now: float) -> str:
    """Return an id like ``localhost-2w-20260914-153012-k7f3``.

    It consists of the name, the local time and four random characters.
    """
    import secrets  # `ps` does not need it

    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{name}-{stamp}-" + "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(4))


def load(paths: RunPaths) -> RunSnapshot:
    """Read a run's state; it is `lost` if the run is not over but its coordinator is gone.

    Raises DamagedRunError if the folder has no readable state.
    """
    snapshot = load_recorded(paths)
    if not has_lost_coordinator(snapshot):
        return correct_silent(paths, snapshot) if is_out_of_sight(snapshot) else snapshot
    # The coordinator may have ended the run, and then itself, since the state was read.
    snapshot = load_recorded(paths)
    if not snapshot.status.is_final:
        snapshot.status = Status.LOST
    return snapshot


def load_recorded(paths: RunPaths) -> RunSnapshot:
    """Read a run's state as its coordinator recorded it last, alive or not. Raises as `load`."""
    recorded: dict[str, Any] = {}
    try:
        recorded = foreign_json.read_json_object(paths.state)
        return from_json(RunSnapshot, recorded)
    except (OSError, ValueError) as error:
        raise DamagedRunError(paths, error, recorded.get("version")) from error


def load_plan(paths: RunPaths) -> Plan:
    """Read a run's plan, without the values of its secrets. Raises RunFolderError."""
    from tfcluster.plans.plan import Plan  # `ps` does not need it

    try:
        return from_json(Plan, foreign_json.read_json_object(paths.plan))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{paths.plan} cannot be read: {describe_error(error)}") from error


def with_addresses(plan: Plan, snapshot: RunSnapshot) -> Plan:
    """Return the plan with the hosts and ports that were chosen at the start."""
    from tfcluster.plans.plan import TaskId

    hosts, ports = dict[str, str](), dict[TaskId, int]()
    for task in snapshot.tasks:
        host, _, port = task.address.rpartition(":")
        if host and port.isdecimal():
            hosts[task.node], ports[TaskId.parse(task.task)] = host, int(port)
    return plan.at(hosts, ports)


def correct_silent(paths: RunPaths, snapshot: RunSnapshot) -> RunSnapshot:
    """Return the state; `stalled` if nothing is heard of the coordinator, which must be alive.

    For a coordinator that is on another machine, as far as this one knows.
    """
    if snapshot.status.is_final or snapshot.status is Status.QUEUED:
        return snapshot
    silent_s = heartbeat.silent_s(paths)
    if silent_s is None or silent_s < heartbeat.SILENT_S:
        return snapshot
    stall = {
        "since": time.time() - silent_s,
        "what": f"nothing is heard of its coordinator on {snapshot.host}",
        "causes": [],
        "tasks": {},
    }
    return replace(snapshot, status=Status.STALLED, stall=stall)


class StateFile:
    """A reader of ``state.json`` that parses it again only when it was replaced."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._stamp: tuple[int, int] | None = None
        self._snapshot: RunSnapshot | None = None
        self._shown: RunSnapshot | None = None
        """The state, as it was last corrected."""
        self._corrects_at = 0.0
        self.damage: DamagedRunError | None = None
        """The error of the last try to read the file; None if it could be read."""

    def read(self) -> RunSnapshot | None:
        """Return the newest readable state, or None if there has been none yet."""
        try:
            stat = self._paths.state.stat()
            if (stat.st_mtime_ns, stat.st_ino) != self._stamp:
                self._snapshot = self._shown = load_recorded(self._paths)
                self._stamp = (stat.st_mtime_ns, stat.st_ino)
            self.damage = None
        except OSError as error:
            self.damage = DamagedRunError(self._paths, error, None)
        except DamagedRunError as error:
            self.damage = error
        snapshot, is_due = self._snapshot, time.monotonic() >= self._corrects_at
        if snapshot is not None and is_due and is_out_of_sight(snapshot):
            self._shown = correct_silent(self._paths, snapshot)
            self._corrects_at = time.monotonic() + heartbeat.BEAT_S
        return self._shown

    def is_over(self) -> bool:
        """Return whether the run has ended, its coordinator has died, or its folder is gone."""
        snapshot = self.read()
        if snapshot is None or snapshot.status.is_final or not os.path.exists(self._paths.state):
            return True
        return has_lost_coordinator(snapshot)


def has_lost_coordinator(snapshot: RunSnapshot) -> bool:
    """Return whether the run is not over, but its coordinator was a process that is gone.

    A run with a job is judged by its scheduler (`backends.job_watch`): between two starts of the
    job it has no process anywhere.
    """
    is_judged_here = not snapshot.status.is_final and snapshot.job is None
    return is_judged_here and coordinator_of(snapshot).is_alive() is False


def coordinator_of(snapshot: RunSnapshot) -> ProcessIdentity:
    return ProcessIdentity(
        host=snapshot.host, boot_id=snapshot.boot_id, pid=snapshot.pid, start=snapshot.pid_start
    )


def is_open(snapshot: RunSnapshot) -> bool:
    """Return whether the run is live, or lost and not cleaned up yet."""
    if snapshot.status is Status.LOST:
        now = time.time()
        return snapshot.ended_at is None or any(at > now for at in snapshot.leases.values())
    return not snapshot.status.is_final


def is_being_closed(paths: RunPaths, snapshot: RunSnapshot) -> bool:
    """Return whether the coordinator of a run that is over still uses its folder (`on_end`)."""
    is_over = snapshot.status.is_final and snapshot.status is not Status.LOST
    if not is_over or not paths.reserve.exists():
        return False
    is_alive = coordinator_of(snapshot).is_alive()
    if is_alive is not None:
        return is_alive
    silent_s = heartbeat.silent_s(paths)
    return silent_s is not None and silent_s < heartbeat.SILENT_S


def is_out_of_sight(snapshot: RunSnapshot) -> bool:
    """Return whether only the heartbeat shows if the coordinator lives: it is on another host, and
    no scheduler knows."""
    return snapshot.job is None and is_on_other_host(snapshot)


def is_on_other_host(snapshot: RunSnapshot) -> bool:
    """Return whether the run's coordinator is on another host that shares this home."""
    return snapshot.host != socket.gethostname()


def control_socket(paths: RunPaths, snapshot: RunSnapshot) -> Path:
    """Return the socket of the run's coordinator, also if this shell has another runtime folder."""
    folder = snapshot.runtime_dir
    return Path(folder) / paths.control_socket.name if folder else paths.control_socket


def is_answered(paths: RunPaths) -> bool:
    """Return whether a coordinator answers for the run, whose state need not be readable."""
    from tfcluster.rundir import control

    with contextlib.suppress(OSError, ValueError):
        control.read_state(paths.control_socket, timeout_s=_ANSWER_S)
        return True
    return False


def runs(home_dir: Path | None = None) -> list[tuple[RunPaths, RunSnapshot]]:
    """Return all readable runs, oldest first."""
    return list_runs(home_dir).runs


def list_runs(home_dir: Path | None = None) -> RunListing:
    """Read the states of all runs, the damaged ones apart. Raises RunFolderError."""
    listing = RunListing()
    for folder in run_folders((home_dir or home()) / "runs"):
        paths = RunPaths(folder)
        try:
            listing.runs.append((paths, load(paths)))
        except DamagedRunError as error:
            if not error.may_be_new:
                listing.damaged.append(error)
    listing.runs.sort(key=lambda run: run[1].started_at)
    listing.damaged.sort(key=lambda error: error.changed_at)
    return listing


def run_folders(folder: Path) -> list[Path]:
    """Return the folders of runs in `folder`. Raises RunFolderError."""
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be read: {reason_of(error)}",
            fix="make it readable, or set TFCLUSTER_HOME to a folder of yours",
        ) from error


def delete(paths: RunPaths) -> None:
    """Remove the folder of a run that is over, and the socket of a killed coordinator.

    Another command may do the same meanwhile. Raises RunFolderError.
    """
    import shutil  # `ps` does not need it

    latest = paths.root.parent.parent / "latest"
    try:
        with contextlib.suppress(FileNotFoundError):  # another process removes it, too
            if latest.is_symlink() and latest.resolve() == paths.root.resolve():
                latest.unlink()
        while os.path.lexists(paths.root):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(paths.root)
        paths.control_socket.unlink(missing_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"{paths.root} cannot be deleted: {describe_error(error)}",
            fix=f"`sudo rm -r {shlex.quote(str(paths.root))}` deletes it",
        ) from error


def remove_old_copies() -> None:
    """Remove the copies of other machines' runs that no command has shown for `_COPY_KEPT_S`."""
    import shutil

    for folder in RunPaths.of_copy("any").root.parent.glob("*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _COPY_KEPT_S:
                shutil.rmtree(folder)


def resolve(run: str | None, *, live_only: bool = False) -> RunPaths:
    """Return the run that a user means by an id, its last four characters, a name or a spec file.

    None means the latest run, or with `live_only` the only live one. Of several runs of one name
    the latest is meant, with `live_only` the latest live one if there is one. Raises
    UnknownRunError (exit 2) if that names no run, or more than one.
    """
    listing = list_runs()
    known = listing.runs
    if run is None:
        if live_only:
            return _only_live(known)
        if not known:
            raise UnknownRunError("there is no run yet", fix="start one: `tfcluster up SPEC`")
        return known[-1][0]
    if matches := _find_matches(run, known):
        live = [entry for entry in matches if not entry[1].status.is_final]
        return (live if live and live_only else matches)[-1][0]
    for error in listing.damaged:
        if run == error.paths.run_id or (len(run) == 4 and error.paths.run_id.endswith(f"-{run}")):
            return error.paths
    names = {name for _, snapshot in known for name in (snapshot.run, snapshot.name)}
    raise UnknownRunError(f"no run is named {run!r}", fix=_fix_of_unknown(run, sorted(names)))


def resolve_all(run: str) -> list[RunPaths]:
    """Return all runs of one name or spec file, oldest first; else what `resolve` returns."""
    return [paths for paths, _ in _find_matches(run, runs())] or [resolve(run)]


def resolve_for_wait() -> RunPaths:
    """Return the run that `wait` means without a name.

    This is the only live one; if none is live, the latest that was started in the background and
    has not been waited for yet. Raises UnknownRunError (exit 2) if there is none, or several.
    """
    known = runs()
    if all(snapshot.status.is_final for _, snapshot in known):
        for paths, snapshot in reversed(known):
            if snapshot.background and not paths.waited.exists():
                return paths
    return _only_live(known)


def count_bytes(home_dir: Path) -> int:
    """Return the disk space of all runs, bytes; counting stops after `_COUNT_S` seconds."""
    until, total = time.monotonic() + _COUNT_S, 0
    for folder, _, names in os.walk(home_dir / "runs"):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
        if time.monotonic() > until:
            break
    return total


def _find_matches(
    run: str, known: Sequence[tuple[RunPaths, RunSnapshot]]
) -> list[tuple[RunPaths, RunSnapshot]]:
    """Return the runs that `run` means by the first kind of name that fits any."""
    for fits in _matchers(run):
        if matches := [entry for entry in known if fits(entry[1])]:
            return matches
    return []


def _matchers(run: str) -> list[Callable[[RunSnapshot], bool]]:
    spec = os.path.abspath(run)
    return [
        lambda snapshot: snapshot.run == run,
        lambda snapshot: len(run) == 4 and snapshot.run.endswith(f"-{run}"),
        lambda snapshot: snapshot.name == run,
        lambda snapshot: snapshot.spec is not None and os.path.abspath(snapshot.spec) == spec,
    ]


def _fix_of_unknown(run: str, names: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(run, names, n=3, cutoff=0.5)
    fix = f"did you mean {' or '.join(near)}?" if near else "`tfcluster ps -a` lists all runs."
    if RUN_ID.fullmatch(run):
        return f"{fix} Started on another machine? `tfcluster ps --backend NAME` asks its scheduler"
    return fix.removesuffix(".")


def _only_live(known: list[tuple[RunPaths, RunSnapshot]]) -> RunPaths:
    live = [entry for entry in known if not entry[1].status.is_final]
    if len(live) == 1:
        return live[0][0]
    if not live:
        lost = [snapshot.run for _, snapshot in known if is_open(snapshot)]
        raise UnknownRunError(
            "no run is live",
            fix=f"to clean up after a lost run: `tfcluster down {lost[-1]}`"
            if lost
            else "`tfcluster ps -a` lists all runs",
        )
    rows = "\n".join(f"  {snapshot.run}  {snapshot.status}" for _, snapshot in live)
    raise UnknownRunError(f"{len(live)} runs are live:\n{rows}", fix="name one of them")
