"""The first program in a pod: listens, and starts a process for each connection with the token.

It runs as a zip file of its own on a volume without tfcluster's package. A connection is
what `docker exec -i` is for a container, but does not pass through the API server or a kubelet:
anyone who has the run's token gets a process whose streams and exit code travel over it.

A connection that ends kills its process group, but no process that has left the group: the agent.
The agent becomes a child of this process, which gets the pod's SIGTERM and passes it on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import socket
import sys
import time

from tfcluster.agent.containers.pod_connection import SignIn, exit_code, serve, start, wake_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

PORT = 7077
IDLE_S = 1800.0
NOBODY_CAME = 75
"""The exit code of this program without any connection (EX_TEMPFAIL of sysexits.h)."""
MOST_CONNECTIONS = 256
MOST_UNPROVEN = 8
"""The connections without the token at any time; another one closes the oldest."""
_SUBREAPER = 36
_LATE_POLL_S = 1.0


def main() -> NoReturn:
    """Serve until the end of the pod's work; exit with its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--token", default=os.path.join(os.path.dirname(sys.argv[0]), "token"))
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--idle-s", type=float, default=IDLE_S)
    parser.add_argument("--linger-s", type=float, default=600.0)
    parser.add_argument("--collect-s", type=float, default=3600.0)
    parser.add_argument("--then", nargs=argparse.REMAINDER, default=[])
    options = parser.parse_args()
    sys.exit(Seat(options).run())


class Seat:
    """PID 1 of a pod.

    With a program (`--then`) it ends with that program: at once if that fails, else when a
    connection has sent ``done``, `--collect-s` seconds have passed, or the pod is ended. Without
    one it ends at SIGTERM, once its agents have ended; if nobody leaves an agent for `--idle-s`
    seconds; and `--linger-s` seconds after the end of its agents, processes that outlived their
    connections. In that time the files in the pod can still be fetched.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._handlers: set[int] = set()
        """The processes of connections that have signed in."""
        self._unproven: dict[int, SignIn] = {}
        """Descriptor → a connection that has not signed in yet, the oldest first."""
        self._code: int | None = None
        """The exit code to be: that of the program, or of the first process that failed."""
        self._adopted_any = self._is_terminated = self._is_done = False
        self._deadline: float | None = time.monotonic() + options.idle_s
        _become_subreaper()
        self._signals = wake_on(signal.SIGCHLD, signal.SIGTERM)
        self._program = 0
        self._notes, self._note = os.pipe()
        """The processes of connections report to this one through them."""
        self._listener = _listen(options.port)
        if options.then:
            self._deadline = None
            self._program = start(options.then, None)
        print(f"listening on port {self._listener.getsockname()[1]}", flush=True)  # noqa: T201

    def run(self) -> int:
        """Serve; return the exit code."""
        while True:
            watched = [self._signals, self._notes, self._listener.fileno(), *self._unproven]
            ready, _, _ = select.select(watched, [], [], self._wait_s())
            self._sign_in(ready)
            if self._listener.fileno() in ready:
                self._accept()
            if self._notes in ready:
                self._take_notes(os.read(self._notes, 4096))
            if self._signals in ready:
                self._on_signals(os.read(self._signals, 4096))
            code = self._exit_code()
            if code is not None:
                return code

    def _wait_s(self) -> float | None:
        """Return the time until something is to be done although nothing happens."""
        now, waits_s = time.monotonic(), []
        if self._deadline is not None:
            left_s = self._deadline - now
            waits_s.append(left_s if left_s > 0 else _LATE_POLL_S)
        waits_s += [max(0.0, each.ends_at - now) for each in self._unproven.values()]
        return min(waits_s, default=None)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            if len(self._unproven) == MOST_UNPROVEN:
                self._unproven.pop(next(iter(self._unproven))).connection.close()
            try:
                self._unproven[connection.fileno()] = SignIn(connection)
            except OSError:
                connection.close()

    def _sign_in(self, ready: list[int]) -> None:
        """Serve the connections that have proven to have the token; end those that are late."""
        now = time.monotonic()
        for descriptor, caller in [*self._unproven.items()]:
            is_proven = False
            try:
                if descriptor in ready:
                    is_proven = caller.is_proven(self._options.token)
                if not is_proven and now < caller.ends_at:
                    continue
            except (OSError, ValueError) as error:
                sys.stderr.write(f"connection ended: {error!r}\n")
            del self._unproven[descriptor]
            with caller.connection as connection:
                if is_proven and len(self._handlers) < MOST_CONNECTIONS:
                    self._handlers.add(self._fork_handler(connection))

    def _fork_handler(self, connection: socket.socket) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            self._listener.close()
            for descriptor in (self._signals, self._notes, *self._unproven):
                os.close(descriptor)
            serve(connection, self._note)
            code = 0
        except (OSError, ValueError) as error:
            sys.stderr.write(f"connection ended: {error!r}\n")
        finally:
            os._exit(code)

    def _take_notes(self, notes: bytes) -> None:
        self._is_done = self._is_done or b"d" in notes
        if not self._options.then:
            self._deadline = None

    def _on_signals(self, numbers: bytes) -> None:
        if signal.SIGTERM in numbers:
            self._is_terminated = True
            for pid in self._wards():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._note_end(pid, exit_code(status))

    def _note_end(self, pid: int, code: int) -> None:
        if pid in self._handlers:
            self._handlers.discard(pid)
            is_used = self._handlers or self._adopted_any or self._has_agents()
            if self._deadline is None and not (is_used or self._options.then):
                self._deadline = time.monotonic() + self._options.idle_s
        elif self._options.then:
            if pid == self._program:
                self._code = code
                self._deadline = time.monotonic() + self._options.collect_s
        else:
            self._adopted_any = True
            self._code = self._code or code

    def _has_agents(self) -> bool:
        """Return whether a process is left that a coordinator has started, or that ends."""
        return bool(_children({os.getpid()}, dead=True))

    def _wards(self) -> set[int]:
        """Return the processes that get the pod's SIGTERM: the program, or each guard and agent.

        A guard, the parent of its agent, ignores the signal.
        """
        if self._options.then:
            return {self._program}
        guards = _children({os.getpid()}) - self._handlers
        return guards | _children(guards)

    def _exit_code(self) -> int | None:
        """Return the code to exit with now, or None."""
        is_late = self._deadline is not None and time.monotonic() >= self._deadline
        if self._options.then:
            is_left = is_late and not self._handlers  # else its files are being fetched
            may_end = self._code or self._is_done or self._is_terminated or is_left
            return _as_shell(self._code or 0) if self._code is not None and may_end else None
        if is_late and not self._adopted_any:
            sys.stderr.write(f"nobody connected for {self._options.idle_s:.0f} s\n")
            return NOBODY_CAME
        if self._is_terminated and not self._wards():
            # No agent is left that connections could lead to.
            for pid in _children(self._handlers) or self._handlers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        may_end = self._adopted_any or self._is_terminated
        if not may_end or self._handlers or self._has_agents():
            return None
        if self._is_terminated or is_late:
            return _as_shell(self._code or 0) if self._adopted_any else _as_shell(-signal.SIGTERM)
        if self._deadline is None:
            self._deadline = time.monotonic() + self._options.linger_s
        return None


def _listen(port: int) -> socket.socket:
    """Listen for IPv4 and IPv6, as far as the pod has both."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128
            )
    return socket.create_server(("", port), backlog=128)


def _become_subreaper() -> None:
    """Adopt orphans even where this is not PID 1: pods may share one process namespace."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def _children(parents: set[int], *, dead: bool = False) -> set[int]:
    """Return the living children of these processes; with `dead` also those not reaped yet."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if int(parent) in parents and (dead or state != b"Z"):
                    found.add(int(name))
    return found


def _as_shell(code: int) -> int:
    """Return an exit code as a shell shows it: 128 + the number of a signal."""
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    main()
