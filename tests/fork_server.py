"""A Python that has imported the launcher once and forks for every command: see `forked.py`.

Its only argument is a socket's descriptor. A request has four descriptors: the three standard
ones, and a pipe for the wait status. The answer is the process id.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import socket
import sys
import termios
from typing import Any, TextIO

MOST_BYTES = 1 << 17
Order = dict[str, Any]


def import_everything() -> None:
    """Import everything that a command may import; none of it may start a thread."""
    import tfcluster

    for module in pkgutil.walk_packages(tfcluster.__path__, "tfcluster."):
        # A broken module must fail only the command that needs it.
        with contextlib.suppress(Exception):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    for name in ("concurrent.futures.thread", "encodings.utf_8_sig"):
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a thread does not survive a fork"


def serve(control: socket.socket) -> Order:
    """Fork for each request and reap the forks; return in the forked processes only."""
    running: dict[int, tuple[int, int]] = {}
    """Map a pidfd to its process id and the pipe for its wait status."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready in running:
                poll.unregister(ready)
                pid, ended = running.pop(ready)
                _, status = os.waitpid(pid, 0)
                _tell(ended, status)
                os.close(ready)
                continue
            text, fds, *_ = socket.recv_fds(control, MOST_BYTES, 4)
            if not text:
                os._exit(0)  # the tests are over
            if (pid := os.fork()) == 0:
                order: Order = json.loads(text)
                return order | {"fds": fds[:3]}
            for fd in fds[:3]:
                os.close(fd)
            pidfd = os.pidfd_open(pid)
            running[pidfd] = pid, fds[3]
            poll.register(pidfd, select.POLLIN)
            control.send(str(pid).encode())


def _tell(ended: int, status: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the test has ended and reads no status
        os.write(ended, str(status).encode())
    os.close(ended)


def become(order: Order) -> None:
    """Make this process like a new one: descriptors, folder, environment, terminal."""
    for number, fd in enumerate(order["fds"]):
        os.dup2(fd, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if order["terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = order["argv"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        opened = _opened(number, getattr(sys, name))
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)


def _opened(number: int, before: TextIO) -> TextIO:
    """Open a standard stream like a new interpreter (create_stdio in CPython's pylifecycle.c)."""
    is_input, is_raw = number == 0, getattr(before, "write_through", False)
    stream = open(  # noqa: SIM115
        number, "rb" if is_input else "wb", buffering=0 if is_raw else -1, closefd=False
    )
    return io.TextIOWrapper(
        stream,
        encoding=before.encoding,
        errors=before.errors,
        newline="\n",
        write_through=is_raw,
        line_buffering=not is_raw and (number == 2 or stream.isatty()),
    )


if __name__ == "__main__":
    import_everything()
    gc.freeze()
    become(serve(socket.socket(fileno=int(sys.argv[1]))))
    # The rest is the same as in the installed script.
    from tfcluster.cli.main import entry

    entry()
    sys.exit()
