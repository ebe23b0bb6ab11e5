"""The first program in a pod: listens, and starts a process for each connection with the token.

It runs as `python -I -S pod_seat.py` from a volume, and imports nothing of tfcluster. A connection
is what `docker exec -i` is for a container, but does not pass through the API server or a kubelet:
who has the run's token gets a process whose stdin, stdout, stderr and exit code travel over it.

The server sends a nonce of 32 bytes. The client answers with HMAC-SHA256(token, nonce + "client")
and its own nonce, the server with HMAC-SHA256(token, that nonce + "server"). The client then sends
one line of JSON: ``{"argv": [...]}``, where "python" as the first word is this interpreter, or
``{"done": true}``. Frames follow, both ways: one byte of kind, four of length, the payload.

A connection that ends kills its process group, but no process that has left the group: the agent.
The agent becomes a child of this process, which gets the pod's SIGTERM and passes it on.
"""

from __future__ import annotations

import argparse
import contextlib
import hmac
import json
import os
import select
import signal
import socket
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

PORT = 7077
STDIN, STDOUT, STDERR, EXIT = b"0123"
"""The kinds of frames. An empty frame of stdin is its end; EXIT has a decimal number, which is
negative for a signal."""
HEADER = struct.Struct("!BI")
NONCE_BYTES = 32
NOBODY_CAME, NOT_FOUND = 1, 127
"""Exit codes: of this program without any connection, of a program that cannot be started."""
_CHUNK = 1 << 18
_LONGEST_ORDER = 1 << 20
_SIGN_IN_S = 10.0
_MOST_CONNECTIONS = 256
_SUBREAPER = 36


def main() -> NoReturn:
    """Serve until the end of the pod's work; exit with its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--token", default=os.path.join(os.path.dirname(__file__), "token"))
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--idle-s", type=float, default=1800.0)
    parser.add_argument("--collect-s", type=float, default=3600.0)
    parser.add_argument("--then", nargs=argparse.REMAINDER, default=[])
    options = parser.parse_args()
    sys.exit(Seat(options).run())


class Seat:
    """PID 1 of a pod.

    With a program (`--then`) it ends with that program: at once if that fails, else when a
    connection has sent ``done`` or `--collect-s` seconds have passed. Without one it ends when
    processes that outlived their connections, the agent, have ended; and if nobody with the token
    connects for `--idle-s` seconds.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._handlers: set[int] = set()
        self._code: int | None = None
        """The exit code to be: that of the program, or of the first process that failed."""
        self._adopted_any = self._is_terminated = self._is_done = False
        self._deadline: float | None = time.monotonic() + options.idle_s
        _become_subreaper()
        self._signals = _wake_on(signal.SIGCHLD, signal.SIGTERM)
        self._notes, self._note = os.pipe()
        """The pipe by which the processes of connections report to this one."""
        self._listener = _listen(options.port)
        self._program = 0
        if options.then:
            self._deadline = None
            self._program = _start(options.then, None)
        print(f"listening on port {self._listener.getsockname()[1]}", flush=True)  # noqa: T201

    def run(self) -> int:
        """Serve; return the exit code."""
        while True:
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            watched = [self._signals, self._notes, self._listener.fileno()]
            ready, _, _ = select.select(watched, [], [], left)
            if self._listener.fileno() in ready:
                self._accept()
            if self._notes in ready:
                self._take_notes(os.read(self._notes, 4096))
            if self._signals in ready:
                self._on_signals(os.read(self._signals, 4096))
            code = self._exit_code()
            if code is not None:
                return code

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            with connection:
                if len(self._handlers) < _MOST_CONNECTIONS:
                    self._handlers.add(self._fork_handler(connection))

    def _fork_handler(self, connection: socket.socket) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            self._listener.close()
            for descriptor in (self._signals, self._notes):
                os.close(descriptor)
            _serve(connection, self._options.token, self._note)
            code = 0
        except (OSError, ValueError) as error:
            sys.stderr.write(f"connection ended: {error}\n")
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
            self._note_end(pid, _exit_code(status))

    def _note_end(self, pid: int, code: int) -> None:
        if pid in self._handlers:
            self._handlers.discard(pid)
        elif self._options.then:
            if pid == self._program:
                self._code = code
                self._deadline = time.monotonic() + self._options.collect_s
        else:
            self._adopted_any = True
            self._code = self._code or code

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
            is_over = self._code is not None and (self._code or self._is_done or is_late)
            return _as_shell(self._code or 0) if is_over else None
        if is_late:
            sys.stderr.write(f"nobody connected for {self._options.idle_s:.0f} s\n")
            return NOBODY_CAME
        if self._is_terminated and not self._wards():
            # No agent is left that connections could lead to.
            for pid in _children(self._handlers) or self._handlers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        may_end = self._adopted_any or self._is_terminated
        if may_end and not self._handlers and not _children({os.getpid()}, dead=True):
            return _as_shell(self._code or 0) if self._adopted_any else _as_shell(-signal.SIGTERM)
        return None


def _serve(connection: socket.socket, token_file: str, note: int) -> None:
    """Serve one connection, in a process of its own. Raises OSError, ValueError."""
    connection.settimeout(_SIGN_IN_S)
    with open(token_file, "rb") as file:
        token = file.read().strip()
    nonce = os.urandom(NONCE_BYTES)
    connection.sendall(nonce)
    proof = _read_exactly(connection, NONCE_BYTES)
    client_nonce = _read_exactly(connection, NONCE_BYTES)
    if not hmac.compare_digest(proof, sign(token, nonce, b"client")):
        raise ValueError("it does not have the run's token")
    connection.sendall(sign(token, client_nonce, b"server"))
    order = json.loads(_read_line(connection))
    if order.get("done"):
        os.write(note, b"d")
        connection.sendall(frame(EXIT, b"0"))
        return
    os.write(note, b"c")
    os.close(note)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _Exchange(connection, order["argv"]).run()


class _Exchange:
    """A process and the connection that its streams travel over.

    Nothing is read from one side while the other side takes nothing, so memory stays constant.
    """

    def __init__(self, connection: socket.socket, argv: list[str]) -> None:
        self._wake = _wake_on(signal.SIGCHLD)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._connection, self._received = connection, bytearray()
        stdin, self._stdin = os.pipe()
        self._stdout, stdout = os.pipe()
        self._stderr, stderr = os.pipe()
        self._pid = _start(argv, (stdin, stdout, stderr))
        for descriptor in (stdin, stdout, stderr):
            os.close(descriptor)
        for descriptor in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(descriptor, False)
        connection.setblocking(False)
        self._outputs = {self._stdout: STDOUT, self._stderr: STDERR}
        self._to_process, self._to_client = bytearray(), bytearray()
        self._ends_stdin = False
        self._code: int | None = None

    def run(self) -> None:
        """Copy until the process has ended and its output is sent, or the connection has ended."""
        try:
            while self._code is None or self._outputs or self._to_client:
                self._turn()
        except ConnectionError:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)

    def _turn(self) -> None:
        socket_fd = self._connection.fileno()
        reads = [self._wake]
        reads += [] if self._to_process else [socket_fd]
        reads += [] if self._to_client else [*self._outputs]
        writes = [self._stdin] if self._to_process else []
        writes += [socket_fd] if self._to_client else []
        readable, writable, _ = select.select(reads, writes, [])
        if self._wake in readable:
            os.read(self._wake, 4096)
            self._reap()
        if socket_fd in readable:
            self._receive()
        for output in [each for each in self._outputs if each in readable]:
            self._take_output(output)
        if self._to_client and (socket_fd in writable or not writes):
            self._send()
        if self._to_process and self._stdin in writable:
            self._write_stdin()

    def _receive(self) -> None:
        data = self._connection.recv(_CHUNK)
        if not data:
            raise ConnectionError("closed")
        self._received += data
        while len(self._received) >= HEADER.size:
            kind, size = HEADER.unpack_from(self._received)
            end = HEADER.size + size
            if kind != STDIN or size > _LONGEST_ORDER:
                raise ConnectionError("an unknown frame")
            if len(self._received) < end:
                return
            self._to_process += self._received[HEADER.size : end]
            self._ends_stdin = self._ends_stdin or size == 0
            del self._received[:end]
        if not self._to_process:
            self._close_stdin_at_end()

    def _write_stdin(self) -> None:
        try:
            del self._to_process[: os.write(self._stdin, self._to_process)]
        except BlockingIOError:
            return
        except OSError:  # it does not read any more
            self._to_process.clear()
            self._ends_stdin = True
        if not self._to_process:
            self._close_stdin_at_end()

    def _close_stdin_at_end(self) -> None:
        if self._ends_stdin and self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

    def _take_output(self, output: int) -> bool:
        """Read once; return whether there may be more."""
        try:
            data = os.read(output, _CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._to_client += frame(self._outputs[output], data)
        else:
            del self._outputs[output]
            os.close(output)
        return bool(data)

    def _send(self) -> None:
        with contextlib.suppress(BlockingIOError):
            del self._to_client[: self._connection.send(self._to_client)]

    def _reap(self) -> None:
        """Note the end of the process; what it has written by now is all of its output.

        A process that has left the group, the agent, may keep the pipes open.
        """
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        self._code = _exit_code(status)
        for output in [*self._outputs]:
            while self._take_output(output):
                pass
            self._outputs.pop(output, None)
        self._to_client += frame(EXIT, b"%d" % self._code)


def sign(token: bytes, nonce: bytes, role: bytes) -> bytes:
    """Return the proof that `role` has the token."""
    return hmac.new(token, nonce + role, "sha256").digest()


def frame(kind: int, payload: bytes) -> bytes:
    """Return a frame."""
    return HEADER.pack(kind, len(payload)) + payload


def _start(argv: list[str], streams: tuple[int, int, int] | None) -> int:
    """Start a program as the leader of a session of its own; return its pid."""
    words = [sys.executable, *argv[1:]] if argv[0] == "python" else argv
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        for target, stream in enumerate(streams or ()):
            os.dup2(stream, target)
        os.execvp(words[0], words)
    except OSError as error:
        os.write(2, f"{words[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_FOUND)


def _listen(port: int) -> socket.socket:
    """Listen for IPv4 and IPv6, as far as the pod has both."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128
            )
    return socket.create_server(("", port), backlog=128)


def _wake_on(*numbers: int) -> int:
    """Return a descriptor that yields the number of each of these signals."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read


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


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the client closed it")
        data += piece
    return data


def _read_line(connection: socket.socket) -> bytes:
    """Read one line, byte by byte: the bytes after it are frames."""
    line = b""
    while not line.endswith(b"\n"):
        if len(line) > _LONGEST_ORDER:
            raise ValueError("its order is too long")
        line += _read_exactly(connection, 1)
    return line


def _exit_code(status: int) -> int:
    """Return the exit code in a wait status; negative for a signal."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _as_shell(code: int) -> int:
    """Return an exit code as a shell shows it: 128 + the number of a signal."""
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    main()
