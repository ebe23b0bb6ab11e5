"""Joins this process's stdin and stdout to a node's agent, and starts the agent if it is absent.

A transport (ssh, `docker exec`) runs a relay, never the agent itself: an agent whose stdio *is*
the connection could not be reached again after the connection broke. The relay knows nothing of
frames; the agent's magic marker tells the other side where noise ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time

from tfcluster.agent.private import make_private, place_of
from tfcluster.agent.processes import close_from, name_this

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_CHUNK = 1 << 18
_END_S = 10.0


NAME = "tfcluster-agent"
"""Of the agent's process and of its guard's: their command line is the relay's."""
AGENT_GONE = 76
"""Exit code of a relay that was to join an agent, not to start one."""
_NOT_STARTED = "the agent did not start; what it said went to stderr"


class RelayError(Exception):
    """The agent is not there and does not start."""


def main(config: dict[str, Any]) -> None:
    """Relay until one side is at its end. `config` is the agent's (`agent.Agent`).

    Raises RelayError.
    """
    join(reach_agent(on_this_node(config)), 0, 1)


def on_this_node(config: dict[str, Any]) -> dict[str, Any]:
    """Names of sockets and locks become paths in a folder of this user.

    Not below XDG_RUNTIME_DIR, which goes with the user's last session, nor TMPDIR, which may be
    each session's own: an agent outlives the connection it was started over.
    """
    runtime = place_of(f"/tmp/tfcluster-{os.getuid()}")
    names = [name for name in ("socket", "ports_dir", "seat") if name in config]
    return {**config, **{name: os.path.join(runtime, config[name]) for name in names}}


def reach_agent(config: dict[str, Any]) -> socket.socket:
    """Connect to the run's agent on this node: with ``starts`` a fresh one, in the place of one
    that was given up; else the one that is there. Raises RelayError."""
    path = config["socket"]
    folder = os.path.dirname(path)
    make_private(folder)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two relays must not start two agents
        try:
            found = _connect(path)
        except OSError:
            found = None
        if not config.get("starts", True):
            if found is None:
                sys.stderr.write("its agent has gone\n")
                os._exit(AGENT_GONE)
            return found
        if found is not None:
            _end(found)
        _await_guard(path)
        if "seat" in config:
            _seat_agent(config)
        else:
            _start_agent(config)
        return _connect(path)
    finally:
        os.close(lock)


def _end(agent: socket.socket) -> None:
    """An agent that was given up: killed, and its guard then ends its tasks."""
    with agent:
        (pid,) = struct.unpack("i", agent.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _await_guard(path: str) -> None:
    """The guard of an agent that has gone ends what it had started, and removes its socket last;
    one that was killed with its agent never does."""
    deadline = time.monotonic() + _END_S
    while os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(0.02)


def _connect(path: str) -> socket.socket:
    agent = socket.socket(socket.AF_UNIX)
    try:
        agent.connect(path)
    except OSError:
        agent.close()
        raise
    return agent


def _seat_agent(config: dict[str, Any]) -> None:
    """The process that waits in this container becomes the agent (`agent.seat`)."""
    seat = _await_seat(config["seat"])
    code = __file__.rsplit(os.sep, 3)[0]
    seat.sendall(os.fsencode(code) + b"\n" + json.dumps(config).encode())
    seat.shutdown(socket.SHUT_WR)
    with seat.makefile("rb") as file:
        if not file.readline():
            raise RelayError(_NOT_STARTED)


def _await_seat(path: str) -> socket.socket:
    """The container may have started before its process listens."""
    deadline = time.monotonic() + _END_S
    while True:
        try:
            return _connect(path)
        except OSError as error:
            if time.monotonic() > deadline:
                raise RelayError("nothing waits in this container for an agent") from error
            time.sleep(0.01)


def _start_agent(config: dict[str, Any]) -> None:
    config_read, config_write = os.pipe()
    ready_read, ready_write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork():  # the agent must not be the child of a relay that may go at any time
            os._exit(0)
        _become_agent(config_read, ready_write)
    os.wait()
    os.close(config_read)
    os.close(ready_write)
    with open(config_write, "wb") as file:
        file.write(json.dumps(config).encode())
    with open(ready_read, "rb") as file:
        if not file.readline():
            raise RelayError(_NOT_STARTED)


def _become_agent(config: int, ready: int) -> NoReturn:
    """In a fork: to start Python anew, and to import all this again, takes twice the time."""
    try:
        os.dup2(config, 0)
        os.dup2(ready, 1)
        close_from(3)
        name_this(NAME)
        from tfcluster.agent.main import main as agent

        agent()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(1)


def join(agent: socket.socket, incoming: int, outgoing: int) -> None:
    """Copy both ways, with blocking writes, until either side closes."""
    with agent:
        while True:
            readable, _, _ = select.select([incoming, agent.fileno()], [], [])
            if incoming in readable:
                data = os.read(incoming, _CHUNK)
                if not data:
                    return
                agent.sendall(data)
            if agent.fileno() in readable:
                data = agent.recv(_CHUNK)
                if not data:
                    return
                view = memoryview(data)
                while view:
                    view = view[os.write(outgoing, view) :]
