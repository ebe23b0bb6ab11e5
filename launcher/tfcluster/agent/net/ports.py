"""Ports held for a whole run, so that no other process takes one between two attempts.

A port is bound exclusively and never listened on. Afterwards SO_REUSEPORT is set, so that a task
with TF_GRPC_REUSE_PORT=1 can bind and listen beside it, while every other process, also of a second
run of the same user, gets EADDRINUSE. (Binding *with* SO_REUSEPORT would let two runs share a port
unnoticed; measured.) The kernel lists no socket that does not listen, so a lock file names the
holder.

torch's TCPStore binds with SO_REUSEADDR and without SO_REUSEPORT. For it SO_REUSEADDR stays set,
with which Linux admits a second bind as long as no socket on the port listens: the lock file still
keeps other runs away, but not another program that asks for this very port.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import os
import socket
from collections.abc import Iterable, Sequence

from tfcluster.agent import Any
from tfcluster.agent import catalogue as msg
from tfcluster.agent.foreign_json import parse_json_object
from tfcluster.agent.guard import Recorder
from tfcluster.agent.net.private_folders import make_private
from tfcluster.agent.processes import IS_LINUX, command_line, first_environment

_DRAWS = 100
"""Ports that are drawn at most for a task: another run may keep one that it does not use now."""
_Held = tuple[int, socket.socket, int]
"""The port, the socket bound to it, and the descriptor that holds its lock file."""


class PortInUse(Exception):
    """A requested port is in use, as `report` describes."""

    def __init__(self, report: msg.PortTaken) -> None:
        super().__init__(f"port {report.port} is in use")
        self.report = report


class PortHolder:
    """The ports of one run on this node."""

    def __init__(self, folder: str | None, identity: dict[str, Any], recorder: Recorder) -> None:
        """Hold no port yet.

        `folder` has this user's lock files; None: in a private network no other run has ports.
        `identity` (pid, run_id and node) is written into each lock file.
        """
        self._folder, self._identity, self._recorder = folder, identity, recorder
        self._held: dict[str, _Held] = {}

    def hold(
        self, requested: list[msg.PortRequest], *, among: Sequence[int] = ()
    ) -> dict[str, int]:
        """Hold a port for each of `requested`; return task → port.

        Port 0 means: choose one, from the first to the last port of `among` if it has any. A task
        that requests the port it has keeps it, as it may be listening there. The tasks' other ports
        are released; a chosen port is never the earlier one, to which processes of the last attempt
        may still connect. Raises PortInUse, and then none of the other tasks holds a port.
        """
        tasks = [entry.task for entry in requested]
        requested = [e for e in requested if not self._has(e)]
        names = [entry.task for entry in requested]
        self.release([entry.task for entry in requested if entry.port])
        previous = [self._held.pop(name) for name in names if name in self._held]
        try:
            for entry in requested:
                self._hold_one(entry, _candidates(entry.port, among))
        except BaseException:
            self.release(names)
            raise
        finally:
            for held in previous:
                self._give_back(held)
        return {name: self._held[name][0] for name in tasks}

    def _has(self, requested: msg.PortRequest) -> bool:
        held = self._held.get(requested.task)
        return held is not None and held[0] == requested.port

    def _hold_one(self, requested: msg.PortRequest, candidates: Iterable[int]) -> None:
        """Hold the first free port of `candidates`; 0 is any that the kernel chooses."""
        port = requested.port
        with contextlib.ExitStack() as refused:
            for candidate in candidates:
                bound = _bind_exclusively(candidate)
                if bound is None:
                    continue
                chosen = bound.getsockname()[1]
                lock = self._lock(chosen)
                if lock is None:
                    if candidate:
                        bound.close()
                    else:
                        refused.enter_context(bound)  # the kernel must choose another one
                        port = chosen
                    continue
                if IS_LINUX:
                    reuses_address = int(requested.reuses_address)
                    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuses_address)
                    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                else:
                    bound.close()  # elsewhere SO_REUSEPORT set late does not admit a second bind
                self._held[requested.task] = (chosen, bound, lock)
                return
        holder = find_holder(port, self._folder)
        raise PortInUse(
            msg.PortTaken(task=requested.task, host=requested.host, port=port, **holder)
        )

    def _lock(self, port: int) -> int | None:
        """Return the descriptor that holds the port's lock file.

        Return -1 if no lock is needed, and None if another process has it.
        """
        if self._folder is None:
            return -1
        make_private(self._folder)
        path = _lock_file(self._folder, port)
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.stat(path).st_ino == os.fstat(fd).st_ino:
                    break
            except FileNotFoundError:
                pass  # its last holder removed it after it was opened here
            except BlockingIOError:
                os.close(fd)
                return None
            os.close(fd)
        os.ftruncate(fd, 0)
        os.write(fd, json.dumps({"port": port, **self._identity}).encode())
        self._recorder.add_file(path)
        return fd

    def release(self, tasks: list[str] | None = None) -> None:
        """Release the ports of `tasks`, or all (None); unknown names are ignored."""
        for task in list(self._held) if tasks is None else tasks:
            if task in self._held:
                self._give_back(self._held.pop(task))

    def _give_back(self, held: _Held) -> None:
        port, bound, lock = held
        bound.close()
        if self._folder is not None:
            path = _lock_file(self._folder, port)
            with contextlib.suppress(OSError):
                os.unlink(path)
            self._recorder.drop_file(path)
            os.close(lock)


def remove_left(folder: str, run_id: str, node: str) -> None:
    """Remove the lock files of a former agent of this run, whose guard was killed with it."""
    for path in glob.glob(os.path.join(glob.escape(folder), "*.json")):
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            record = parse_json_object(file.read())
            if (record.get("run_id"), record.get("node")) == (run_id, node):
                os.unlink(path)


def _candidates(port: int, among: Sequence[int]) -> Iterable[int]:
    """Return the ports to try: the requested one, or all of `among` from a random one on."""
    if port:
        return [port]
    if not among:
        return [0] * _DRAWS
    first, last = among
    start = first + int.from_bytes(os.urandom(4), "big") % (last - first + 1)
    return [*range(start, last + 1), *range(first, start)]


def _lock_file(folder: str, port: int) -> str:
    return os.path.join(folder, f"{port}.json")


def _bind_exclusively(port: int) -> socket.socket | None:
    """Bind the port on every address of both families; return None if it is taken."""
    for family, any_address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            held = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # a kernel without IPv6
        try:
            if family == socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            if port:
                # A port in TIME_WAIT is free. With port 0 the option could share a bound port.
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((any_address, port))
        except OSError as error:
            held.close()
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                continue  # IPv6 is switched off
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return None
            raise
        return held
    return None


def taken_by(port: int, folder: str | None) -> dict[str, Any] | None:
    """Return the holder of the port (see `find_holder`), or None if the port is free."""
    bound = _bind_exclusively(port)
    if bound is None:
        return find_holder(port, folder)
    bound.close()
    return None


def find_holder(port: int, folder: str | None) -> dict[str, Any]:
    """Return the {pid, command, run_id} of the port's holder, each None if unknown."""
    record = _read_lock_holder(_lock_file(folder, port)) if folder is not None else None
    if record is not None:
        return {**record, "command": command_line(record["pid"]) or None}
    pid = _pid_of_sockets(_inodes_on(port))
    if pid is None:
        return {"pid": None, "command": None, "run_id": None}
    return {"pid": pid, "command": command_line(pid) or None, "run_id": _run_id(pid)}


def _read_lock_holder(path: str) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            record = parse_json_object(file.read())
            pid = record.get("pid")
            return {"pid": pid, "run_id": record.get("run_id")} if isinstance(pid, int) else None
    return None


def _inodes_on(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table) as file:
            next(file)
            for line in file:
                fields = line.split()
                listens = fields[3] == "0A"
                if listens and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    return inodes


def _pid_of_sockets(targets: set[str]) -> int | None:
    if not targets:
        return None
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{fd}") in targets:
                        return int(pid)
    return None


def _run_id(pid: int) -> str | None:
    for variable in first_environment(pid):
        if variable.startswith(b"TFCLUSTER_RUN_ID="):
            return variable.partition(b"=")[2].decode(errors="replace")
    return None
