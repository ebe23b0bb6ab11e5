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
import socket
import sys
import time

from tfcluster.agent import fencing
from tfcluster.agent.net.listener import process_of
from tfcluster.agent.net.private_folders import make_private, place_of
from tfcluster.agent.processes import close_from, set_process_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_CHUNK = 1 << 18
_LOCK_S = 20.0
_SEAT_S = 10.0
LOCK = ".lock"
"""Ends the name of the file, beside an agent's socket, that one relay at a time holds."""


NAME = "tfcluster-agent"
"""Of the agent's process and of its guard's: their command line is the relay's."""
AGENT_GONE = 76
"""Exit code of a relay that was to join an agent of which it is proved that it has ended."""
NOT_REACHED = 77
"""Exit code of one that has no agent to relay to, for any other reason; stderr says which."""
_NOT_STARTED = "the agent did not start; what it said went to stderr"


class RelayError(Exception):
    """The agent is not there and does not start."""


def main(config: dict[str, Any]) -> None:
    """Relay until one side is at its end. `config` is the agent's (`agent.Agent`); with ``ends``
    the run's coordinator is gone, and a line of JSON tells what was ended (`lost_run.end`).

    Exits with `NOT_REACHED`, and says why on stderr, where there is no agent to relay to.
    """
    if config.get("ends"):
        from tfcluster.agent import fencing

        os.write(1, json.dumps(fencing.end_lost_run(config)).encode() + b"\n")
        return
    try:
        agent = reach_agent(on_this_node(config))
    except RelayError as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(NOT_REACHED)
    join(agent, 0, 1)


def on_this_node(config: dict[str, Any]) -> dict[str, Any]:
    """Names of sockets and locks become paths in a folder of this user.

    Not below XDG_RUNTIME_DIR, which goes with the user's last session, nor TMPDIR, which may be
    each session's own: an agent outlives the connection it was started over.
    """
    runtime = place_of(f"/tmp/tfcluster-{os.getuid()}")
    names = [name for name in ("socket", "ports_dir", "seat") if name in config]
    return {**config, **{name: os.path.join(runtime, config[name]) for name in names}}


def reach_agent(config: dict[str, Any]) -> socket.socket:
    """Connect to the run's agent on this node: with ``starts`` a fresh one, else the one that is
    there. ``former`` is who was there before (`fence.identity`); it ends before a fresh one starts.

    Raises RelayError, also where nothing proves that the former agent has ended and its lease
    may go on (not ``is_fenced``).
    """
    starts, path = config.get("starts", True), config["socket"]
    if starts and config.get("former") is not None:
        _end_former(config)
    lock = _lock(path)
    try:
        try:
            found = _connect(path)
        except OSError:
            found = None
        if not starts:
            return found or _join_later(config)
        if found is not None:
            _end_unknown(found)
        if "seat" in config:
            _start_agent_in_container(config)
        else:
            _start_agent(config)
        return _connect(path)
    finally:
        _unlock(path, lock)


def _lock(path: str) -> int:
    """A descriptor that keeps out other relays to the agent of this socket: two of them must not
    start two agents.

    Whoever clears the temporary folder removes the lock as well, and the next relay makes another
    one; so the lock is taken again until it is the one that others find. An agent that starts
    beside another one within the milliseconds that remain has no task: only one of the two knows
    the token of the coordinator's newest connection, and nobody greets the other.
    """
    name, deadline = path + LOCK, time.monotonic() + _LOCK_S
    while time.monotonic() < deadline:
        make_private(os.path.dirname(name))
        lock = os.open(name, os.O_RDONLY | os.O_CREAT, 0o600)
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(name).st_ino == os.fstat(lock).st_ino:
                return lock
        time.sleep(0.02)
        os.close(lock)
    raise RelayError(f"another relay holds {name} for {_LOCK_S:.0f} s")


def _unlock(path: str, lock: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path + LOCK)
    os.close(lock)


def _join_later(config: dict[str, Any]) -> NoReturn:
    """The agent to be joined does not listen: exit with `AGENT_GONE` where its end is proved."""
    former = config.get("former")
    if former is not None and fencing.have_ended(former, in_container="seat" in config):
        sys.stderr.write("its agent has gone\n")
        os._exit(AGENT_GONE)
    raise RelayError("its agent does not listen on its socket now")


def _end_former(config: dict[str, Any]) -> None:
    has_ended = fencing.end(config["former"])
    if has_ended is False:
        raise RelayError(
            f"its former agent has not ended {fencing.END_S:.0f} s after it was killed"
        )
    if has_ended is None and not config.get("is_fenced"):
        raise RelayError("nothing proves that its former agent has ended: its lease must end first")


def _end_unknown(agent: socket.socket) -> None:
    """One that the coordinator has never greeted, so without a task: the connection over which it
    was started had failed."""
    with agent:
        pid = process_of(agent)
    if not pid or not fencing.end_process(pid):
        raise RelayError("an agent of this run is there already, and cannot be ended")


def _connect(path: str) -> socket.socket:
    agent = socket.socket(socket.AF_UNIX)
    try:
        agent.connect(path)
    except OSError:
        agent.close()
        raise
    return agent


def _start_agent_in_container(config: dict[str, Any]) -> None:
    """The process that waits in this container becomes the agent (`agent.container_wait`)."""
    seat = _await_container(config["seat"])
    code = __file__.rsplit(os.sep, 3)[0]
    seat.sendall(os.fsencode(code) + b"\n" + json.dumps(config).encode())
    seat.shutdown(socket.SHUT_WR)
    with seat.makefile("rb") as file:
        if not file.readline():
            raise RelayError(_NOT_STARTED)


def _await_container(path: str) -> socket.socket:
    """The container may have started before its process listens."""
    deadline = time.monotonic() + _SEAT_S
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
        set_process_name(NAME)
        from tfcluster.agent.entry import main as agent

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
