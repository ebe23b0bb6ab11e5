"""The relay: connects its stdin and stdout to a node's agent, which it starts if there is none.

A transport (ssh, `docker exec`) runs a relay, never the agent itself: an agent whose stdio *is*
the connection could not be reached again after the connection broke. The relay does not read
frames; the agent's magic marker shows the other side where noise ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping

from tfcluster.agent import Any, NoReturn, fencing
from tfcluster.agent.agent_config import AgentConfig, EndLostRun, NodeOrder, SlurmJob
from tfcluster.agent.message_fields import parse, replace
from tfcluster.agent.net.listener import process_of
from tfcluster.agent.net.private_folders import UnsafeFolderError, make_private, place_of
from tfcluster.agent.processes import (
    AGENT_NAME,
    REQUESTS,
    close_from,
    die_with_parent,
    set_process_name,
)
from tfcluster.agent.protocol import ProtocolError

_CHUNK = 1 << 18
_LOCK_S = 20.0
_CONTAINER_S = 10.0
LOCK = ".lock"
"""The suffix of the lock file beside an agent's socket; one relay at a time holds it."""
AGENT_GONE = 76
"""The exit code of a relay whose agent has provably ended."""
NOT_REACHED = 77
"""The exit code of a relay without an agent for any other reason, which is on stderr."""
UNSAFE_FOLDER = 79
"""The exit code of a relay whose folder of sockets other users can use."""
_NOT_STARTED = "the agent did not start; its output is on stderr"


class RelayError(Exception):
    """The relay has no agent to relay to."""


def main(message: dict[str, Any]) -> None:
    """Carry out a `NodeOrder`: relay to an agent until one side closes, or end a lost run.

    Exit with `NOT_REACHED`, and the reason on stderr, where there is no agent to relay to. The
    answer of `fencing.end_lost_run` is printed as a line of JSON.
    """
    try:
        order = parse(message, NodeOrder)
        if isinstance(order, EndLostRun):
            os.write(1, json.dumps(fencing.end_lost_run(order)).encode() + b"\n")
            return
        if not isinstance(order, AgentConfig):
            raise RelayError("the relay was given no order that it knows")
        config = with_local_paths(order)
        agent = reach_agent(config)
    except (RelayError, ProtocolError, UnsafeFolderError) as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(UNSAFE_FOLDER if isinstance(error, UnsafeFolderError) else NOT_REACHED)
    if config.is_tied:  # its end is the agent's, which reports such signals
        for number in REQUESTS:
            signal.signal(number, signal.SIG_IGN)
    silence_s = 0.0
    try:
        silence_s = join(agent, 0, 1)
    finally:
        if config.is_tied:
            _await_agent()
    if config.job is not None and silence_s >= (config.lease_s or 0.0):
        _watch_job(config.job)


def with_local_paths(config: AgentConfig) -> AgentConfig:
    """Return `config` with the names of sockets and locks as paths in a folder of this user.

    The folder is in /tmp because an agent outlives the session that started it: XDG_RUNTIME_DIR is
    removed with the user's last session, and TMPDIR may differ for each session.
    """
    runtime = place_of(f"/tmp/tfcluster-{os.getuid()}")
    names = {name: getattr(config, name) for name in ("socket", "ports_dir", "container_socket")}
    paths = {
        name: os.path.join(runtime, file_name) for name, file_name in names.items() if file_name
    }
    return replace(config, **paths)


def reach_agent(config: AgentConfig) -> socket.socket:
    """Connect to the run's agent on this node: with `starts` a new one, else the running one.

    The `former` agent is ended before a new one starts. Raises RelayError, also where nothing
    proves that it has ended and its lease may still hold.
    """
    starts, path = config.starts, config.socket
    if starts and config.former is not None:
        _end_previous(config, config.former)
    lock = _lock(path)
    try:
        try:
            running = _connect(path)
        except OSError:
            running = None
        if not starts and running is not None and config.is_tied:
            running.close()  # its own relay has lost its connection, but was not ended with it
            fencing.end(config.former or {})
            running = None
        if not starts:
            return running or _fail_to_join(config)
        if running is not None:
            # It never had a task: the connection failed while it was starting.
            with running:
                pid = process_of(running)
            if not pid or not fencing.end_process(pid):
                raise RelayError("another agent of this run is running and cannot be killed")
        if config.container_socket is not None:
            _start_agent_in_container(config, config.container_socket)
        else:
            _start_agent(config)
        return _connect(path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path + LOCK)
        os.close(lock)


def _lock(path: str) -> int:
    """Lock this socket's lock file, so that two relays do not start two agents.

    A cleaner of the temporary folder may remove the lock file, and the next relay creates another
    one; so the lock is taken again until the file at that path is the locked one. If two agents
    still start within the remaining milliseconds, one of them never gets a task: only one has the
    token of the coordinator's newest connection, and no hello reaches the other.
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
    raise RelayError(f"another relay has held {name} for {_LOCK_S:.0f} s")


def _fail_to_join(config: AgentConfig) -> NoReturn:
    """Exit with `AGENT_GONE` if the agent has provably ended, else raise RelayError."""
    previous, in_container = config.former, config.container_socket is not None
    if previous is not None and fencing.have_ended(previous, in_container=in_container):
        sys.stderr.write("the run's agent on this node has ended\n")
        os._exit(AGENT_GONE)
    raise RelayError("the run's agent on this node does not answer on its socket")


def _end_previous(config: AgentConfig, former: Mapping[str, Any]) -> None:
    has_ended = fencing.end(former)
    if has_ended is False:
        raise RelayError(
            f"the previous agent is still alive {fencing.END_S:.0f} s after it was killed"
        )
    if has_ended is None and not config.is_fenced:
        raise RelayError("the previous agent may still run: its lease must expire first")
    if config.ports_dir:
        from tfcluster.agent.net.ports import remove_left

        remove_left(config.ports_dir, config.run_id, config.node)


def _connect(path: str) -> socket.socket:
    agent = socket.socket(socket.AF_UNIX)
    try:
        agent.connect(path)
    except OSError:
        agent.close()
        raise
    return agent


def _start_agent_in_container(config: AgentConfig, path: str) -> None:
    """Turn the process that waits in this container into the agent (`container_wait`)."""
    waiting = _await_container(path)
    code = __file__.rsplit(os.sep, 3)[0]
    waiting.sendall(os.fsencode(code) + b"\n" + config.to_line())
    waiting.shutdown(socket.SHUT_WR)
    with waiting.makefile("rb") as file:
        if not file.readline():
            raise RelayError(_NOT_STARTED)


def _await_container(path: str) -> socket.socket:
    """Connect to the container's first process, which may not listen yet."""
    deadline = time.monotonic() + _CONTAINER_S
    while True:
        try:
            return _connect(path)
        except OSError as error:
            if time.monotonic() > deadline:
                raise RelayError("no process in this container waits for an agent") from error
            time.sleep(0.01)


def _start_agent(config: AgentConfig) -> None:
    config_read, config_write = os.pipe()
    ready_read, ready_write = os.pipe()
    is_tied, parent = config.is_tied, os.getpid()
    if os.fork() == 0:
        os.setsid()
        if is_tied:
            die_with_parent(parent)
        elif os.fork():  # the agent must not be the child of a relay, which may end at any time
            os._exit(0)
        _become_agent(config_read, ready_write)
    if not is_tied:
        os.wait()
    os.close(config_read)
    os.close(ready_write)
    with open(config_write, "wb") as file:
        file.write(config.to_line())
    with open(ready_read, "rb") as file:
        if not file.readline():
            raise RelayError(_NOT_STARTED)


def _become_agent(config: int, ready: int) -> NoReturn:
    """Run the agent in this fork: a new Python that imports all again takes twice the time."""
    try:
        os.dup2(config, 0)
        os.dup2(ready, 1)
        close_from(3)
        set_process_name(AGENT_NAME)
        from tfcluster.agent.entry import main as agent

        agent()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(1)


def _await_agent() -> None:
    """Wait for the end of an agent that this relay has started, if it has.

    It removes its files, and a scheduler kills at once what remains of a step after this process.
    """
    deadline = time.monotonic() + fencing.END_S
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.01)


def _watch_job(job: SlurmJob) -> None:
    """Have the scheduler start the job again if the coordinator is gone with its node."""
    from tfcluster.agent.node import slurm_job

    for number in REQUESTS:
        signal.signal(number, signal.SIG_DFL)
    slurm_job.watch(job.id, job.restarts, connection=0)


def join(agent: socket.socket, incoming: int, outgoing: int) -> float:
    """Copy both ways, with blocking writes, until either side closes.

    Return the seconds since the last bytes from `incoming`.
    """
    heard_at = time.monotonic()
    with agent:
        while True:
            readable, _, _ = select.select([incoming, agent.fileno()], [], [])
            if incoming in readable:
                data = os.read(incoming, _CHUNK)
                heard_at = time.monotonic()
                if not data:
                    return 0.0
                agent.sendall(data)
            if agent.fileno() in readable:
                data = agent.recv(_CHUNK)
                if not data:
                    return time.monotonic() - heard_at
                view = memoryview(data)
                while view:
                    view = view[os.write(outgoing, view) :]
