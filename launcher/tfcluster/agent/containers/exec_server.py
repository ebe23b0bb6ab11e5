"""The first program in a pod: starts a process for each connection that has the run's token.

A connection is what `docker exec -i` is for a container, but does not pass through the API server
or a kubelet. The server sends a nonce of 32 bytes. The client answers with HMAC-SHA256(token, nonce
+ "client") and its own nonce, the server with HMAC-SHA256(token, that nonce + "server"). The client
then sends one line of JSON, ``{"argv": [...], "is_alone": false}``, where "python" as the first
word is this interpreter; with `is_alone`, all that was started here before is killed first. Frames
follow, both ways: one byte of kind, four of length, the payload.

A connection that ends kills its process group, but no process that has left the group: the agent.
The agent becomes a child of this process, which gets the pod's SIGTERM and passes it on. The file
runs alone, without tfcluster's package.
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
NOT_FOUND = 127
"""The exit code of a program that cannot be started."""
SIGN_IN_S = 10
MOST_CONNECTIONS = 256
MOST_UNPROVEN = 8
"""The connections without the token at any time; another one closes the oldest."""
_CHUNK = 1 << 18
_LONGEST_ORDER = 1 << 20
_SUBREAPER = 36


def main() -> NoReturn:
    """Serve until the end of the pod's work; exit with its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--token", default=os.path.join(os.path.dirname(sys.argv[0]), "token"))
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--empty", help="a folder that the container before this one has filled")
    parser.add_argument("--then", nargs=argparse.REMAINDER, default=[])
    options = parser.parse_args()
    if options.empty:
        _empty(options.empty)
    sys.exit(ExecServer(options).run())


class ExecServer:
    """PID 1 of a pod's container.

    It ends at SIGTERM, once its agents have ended. With a program (`--then`) it ends with that: at
    once if it failed or the pod is ended, else when no connection is left, over which files may be
    fetched.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._handlers: set[int] = set()
        """The processes of connections that have signed in."""
        self._unproven: dict[int, SignIn] = {}
        """Descriptor → a connection that has not signed in yet, the oldest first."""
        self._code: int | None = None
        """The exit code of the program, once it has ended."""
        self._is_terminated = False
        _become_subreaper()
        self._signals = wake_on(signal.SIGCHLD, signal.SIGTERM)
        self._listener = _listen(options.port)
        self._program = start(options.then, None) if options.then else 0
        print(f"listening on port {self._listener.getsockname()[1]}", flush=True)  # noqa: T201

    def run(self) -> int:
        """Serve; return the exit code."""
        while True:
            watched = [self._signals, self._listener.fileno(), *self._unproven]
            late = [caller.ends_at for caller in self._unproven.values()]
            wait_s = max(0.0, min(late) - time.monotonic()) if late else None
            ready, _, _ = select.select(watched, [], [], wait_s)
            self._sign_in(ready)
            if self._listener.fileno() in ready:
                self._accept()
            if self._signals in ready:
                self._on_signals(os.read(self._signals, 4096))
            code = self._exit_code()
            if code is not None:
                return code

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
            for descriptor in (self._signals, *self._unproven):
                os.close(descriptor)
            serve(connection)
            code = 0
        except (OSError, ValueError) as error:
            sys.stderr.write(f"connection ended: {error!r}\n")
        finally:
            os._exit(code)

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
            self._handlers.discard(pid)
            if pid == self._program:
                self._code = exit_code(status)

    def _wards(self) -> set[int]:
        """Return the processes that get the pod's SIGTERM: the program, or each guard and agent.

        A guard, the parent of its agent, ignores the signal.
        """
        if self._program:
            return {self._program}
        guards = _children({os.getpid()}) - self._handlers
        return guards | _children(guards)

    def _exit_code(self) -> int | None:
        """Return the code to exit with now, or None."""
        if self._program:
            is_over = self._code is not None
            may_end = self._code or self._is_terminated or not self._handlers
            return _as_shell(self._code or 0) if is_over and may_end else None
        if not self._is_terminated:
            return None
        if not self._wards():  # no agent is left that connections could lead to
            for pid in _children(self._handlers) or self._handlers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self._handlers or _children({os.getpid()}, dead=True):
            return None
        return _as_shell(-signal.SIGTERM)


class SignIn:
    """A connection whose caller has not proven yet that it has the run's token.

    It never blocks, and costs the exec server a socket and 96 bytes. A process would cost a
    megabyte of the memory of the pod, which any other pod that reaches the port could use up.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Send the nonce. Raises OSError."""
        self.connection = connection
        self.ends_at = time.monotonic() + SIGN_IN_S
        self._nonce, self._received = os.urandom(NONCE_BYTES), b""
        connection.setblocking(False)
        connection.send(self._nonce)

    def is_proven(self, token_file: str) -> bool:
        """Read what has come, and answer a proof; return whether that was one.

        Raises OSError, and ValueError for a wrong proof.
        """
        data = self.connection.recv(2 * NONCE_BYTES - len(self._received))
        if not data:
            raise ConnectionError("the client closed it")
        self._received += data
        if len(self._received) < 2 * NONCE_BYTES:
            return False
        proof, client_nonce = self._received[:NONCE_BYTES], self._received[NONCE_BYTES:]
        with open(token_file, "rb") as file:
            token = file.read().strip()
        if not hmac.compare_digest(proof, sign(token, self._nonce, b"client")):
            raise ValueError("it does not have the run's token")
        self.connection.send(sign(token, client_nonce, b"server"))
        self.connection.setblocking(True)
        return True


def serve(connection: socket.socket) -> None:
    """Serve a connection that has signed in, in a process of its own. Raises OSError, ValueError.

    The process ends if the order takes too long.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SIGN_IN_S)
    order = json.loads(_read_line(connection))
    if order.get("is_alone"):
        _kill_others()
    signal.alarm(0)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _Exchange(connection, order["argv"]).run()


def _kill_others() -> None:
    """Kill all that the exec server has started, but for this process, and wait for its end."""
    while True:
        tree = {os.getppid()}
        while more := _children(tree) - tree - {os.getpid()}:
            tree |= more
        if tree == {os.getppid()}:
            return
        for pid in tree - {os.getppid()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


class _Exchange:
    """A process and the connection that its streams travel over.

    Nothing is read from one side while the other side takes nothing, so memory stays constant.
    """

    def __init__(self, connection: socket.socket, argv: list[str]) -> None:
        self._wake = wake_on(signal.SIGCHLD)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._connection, self._received = connection, bytearray()
        stdin, self._stdin = os.pipe()
        self._stdout, stdout = os.pipe()
        self._stderr, stderr = os.pipe()
        self._pid = start(argv, (stdin, stdout, stderr))
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
            if self._stdin >= 0:  # else the process does not read any more
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
        self._code = exit_code(status)
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


def start(argv: list[str], streams: tuple[int, int, int] | None) -> int:
    """Start a program as the leader of a session of its own; return its pid."""
    words = [sys.executable, *argv[1:]] if argv[0] == "python" else argv
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        if (write := signal.set_wakeup_fd(-1)) >= 0:  # `wake_on`
            os.close(write)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it
        for target, stream in enumerate(streams or ()):
            os.dup2(stream, target)
        os.execvp(words[0], words)
    except OSError as error:
        os.write(2, f"{words[0]}: {error}\n".encode())
    finally:
        os._exit(NOT_FOUND)


def wake_on(*numbers: int) -> int:
    """Return a descriptor that yields the number of each of these signals."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read


def _read_line(connection: socket.socket) -> bytes:
    """Read one line, byte by byte: the bytes after it are frames."""
    line = b""
    while not line.endswith(b"\n"):
        if len(line) > _LONGEST_ORDER:
            raise ValueError("its order is too long")
        piece = connection.recv(1)
        if not piece:
            raise ConnectionError("the client closed it")
        line += piece
    return line


def exit_code(status: int) -> int:
    """Return the exit code in a wait status; negative for a signal."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


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
    children = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if int(parent) in parents and (dead or state != b"Z"):
                    children.add(int(name))
    return children


def _as_shell(code: int) -> int:
    """Return an exit code as a shell shows it: 128 + the number of a signal."""
    return code if code >= 0 else 128 - code


def _empty(folder: str) -> None:
    """Remove what is in a folder: files in memory count towards the limit of the container."""
    import shutil

    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


if __name__ == "__main__":
    main()
