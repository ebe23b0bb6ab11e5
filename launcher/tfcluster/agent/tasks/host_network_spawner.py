"""A process that stays in the host's network to start `prepare`, while the agent's is private.

`prepare` may download, which tasks in a private network cannot. An unprivileged process cannot
return to its former network, so this one is forked before the agent enters the private one. It
forks `prepare` twice, so that the agent, a subreaper, inherits it, and watches, stops and reaps it
like every task.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time

from tfcluster.agent import NoReturn
from tfcluster.agent import catalogue as msg
from tfcluster.agent.processes import close_from, die_with_parent, discard_streams
from tfcluster.agent.tasks.task import become_task

_NUMBER = struct.Struct(">I")
_DESCRIPTORS = 3


class HostNetworkSpawner:
    """The agent's end; create it in the only thread, before the agent enters a private network."""

    def __init__(self) -> None:
        self._link, theirs = socket.socketpair()
        agent = os.getpid()
        if os.fork() == 0:
            self._link.close()
            _serve(theirs, agent)
        theirs.close()

    def fork(self, task: msg.TaskOrder, output: int, events: int) -> tuple[int, int]:
        """Start a process in the host's network, like `task.fork_and_exec`. Raises OSError."""
        failed_read, failed_write = os.pipe()
        try:
            order = json.dumps(vars(task)).encode()
            fds = [output, events, failed_write]
            socket.send_fds(self._link, [_NUMBER.pack(len(order))], fds)
            self._link.sendall(order)
            answer = self._link.recv(_NUMBER.size, socket.MSG_WAITALL)
        finally:
            os.close(failed_write)
        if len(answer) < _NUMBER.size:
            os.close(failed_read)
            raise ConnectionError("the process that starts `prepare` in the host's network is gone")
        return _NUMBER.unpack(answer)[0], failed_read

    def close(self) -> None:
        """End the process; nothing can be started in the host's network any more."""
        self._link.close()


def _serve(line: socket.socket, agent: int) -> NoReturn:
    try:
        die_with_parent(agent)
        # Above all the agent's pipe to its guard, which must close when the agent ends.
        discard_streams(0, 1)
        end = os.dup2(line.detach(), 3)
        close_from(end + 1)
        line = socket.socket(fileno=end)
        while True:
            head, fds, _flags, _address = socket.recv_fds(line, _NUMBER.size, _DESCRIPTORS)
            if not head:
                break
            for fd in fds:
                os.set_inheritable(fd, False)
            order = line.recv(_NUMBER.unpack(head)[0], socket.MSG_WAITALL)
            _fork_twice(line, msg.TaskOrder.read(json.loads(order)), fds, agent)
            for fd in fds:
                os.close(fd)
    finally:
        os._exit(0)


def _fork_twice(line: socket.socket, task: msg.TaskOrder, fds: list[int], agent: int) -> None:
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return
    between = os.getpid()
    try:
        pid = os.fork()
        if pid:
            line.sendall(_NUMBER.pack(pid))
            return
        while os.getppid() == between:  # until the agent has inherited it
            time.sleep(0.0005)
        output, events, failed = fds
        become_task(task, output, events, failed, agent)
    finally:
        with contextlib.suppress(OSError):
            os._exit(0)
