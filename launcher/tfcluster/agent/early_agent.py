"""The agent of a pod before a coordinator comes: it imports what the pod's task imports.

The seat forks it (`containers.pod_early`). A relay that finds this process gives it the run's
configuration instead of starting an agent (`agent.relay`). Imports take seconds, for which a
coordinator that starts in another pod need not be waited for.
"""

from __future__ import annotations

import os
import socket

from tfcluster.agent import Any, NoReturn
from tfcluster.agent.containers.pod_early import early_socket
from tfcluster.agent.foreign_json import parse_json_object
from tfcluster.agent.guard import fork_guard


def wait(waiting: socket.socket, order: dict[str, Any]) -> NoReturn:
    """Begin the imports, wait for a relay, and become the agent that it asks for."""
    recorder, guard_alive = fork_guard()
    from tfcluster.agent import catalogue as msg
    from tfcluster.agent.tasks.preloader import Preloader

    preloader = Preloader(recorder)
    preloader.begin_early(msg.Preload.read(order))
    from tfcluster.agent.entry import READY, serve
    from tfcluster.agent.processes import AGENT_NAME, discard_streams, raise_limit, set_process_name

    set_process_name(AGENT_NAME)
    config, relay = _await_config(waiting)
    os.unlink(early_socket())  # which tells the seat, too
    waiting.close()
    from tfcluster.agent.agent import Agent

    raise_limit(config.get("descriptors"))
    discard_streams(0, 1)
    agent = Agent(config, recorder, guard_alive, preloader=preloader)
    with relay:
        relay.sendall(READY)
    serve(agent)


def _await_config(waiting: socket.socket) -> tuple[dict[str, Any], socket.socket]:
    """Return the configuration that a relay sends in one line, and the relay."""
    while True:
        relay, _ = waiting.accept()
        line = b""
        while not line.endswith(b"\n") and (data := relay.recv(65536)):
            line += data
        if line.endswith(b"\n"):
            return parse_json_object(line), relay
        relay.close()
