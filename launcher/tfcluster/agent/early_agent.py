"""The agent of a pod before a coordinator comes: it imports what the pod's task imports.

The seat (`pod_seat`) starts `main` from the bundle that the pod has on a volume. A relay that finds
this process gives it the run's configuration instead of starting an agent (`agent.relay`). Imports
take seconds, for which a coordinator that starts in another pod need not be waited for.
"""

from __future__ import annotations

import json
import os
import socket
import sys

from tfcluster.agent import Any, NoReturn
from tfcluster.agent.containers.pod_seat import BUNDLE, ORDERS, early_socket
from tfcluster.agent.foreign_json import parse_json_object, read_json_object
from tfcluster.agent.net.private_folders import make_folders

_AGAIN = (
    "import sys; sys.path.append(sys.argv[1]);"
    "from tfcluster.agent.early_agent import wait; wait(*sys.argv[2:])"
)
_BACKLOG = 8


def main(folder: str, node: str) -> NoReturn:
    """Listen, unpack the bundle, and wait with its code, for `agent.relay`."""
    path = early_socket()
    make_folders(os.path.dirname(path))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(_BACKLOG)  # a relay that comes from now on waits for this process
    listener.set_inheritable(True)
    orders = read_json_object(os.path.join(folder, ORDERS))
    code = _unpack(os.path.join(folder, BUNDLE), orders["digest"])
    order = json.dumps(orders["orders"][orders["of"][node]])
    argv = [sys.executable, "-I", "-S", "-c", _AGAIN, code, str(listener.fileno()), order]
    os.execv(sys.executable, argv)


def _unpack(bundle: str, digest: str) -> str:
    """Return the folder of the agent's code, where a relay would unpack it."""
    import zipfile

    from tfcluster.agent.bootstrap import install, is_intact

    os.umask(0o077)
    folder = os.path.join(os.path.expanduser("~/.cache/tfcluster"), "bundles", digest)
    if not is_intact(folder):
        with zipfile.ZipFile(bundle) as archive:
            install(folder, archive.extractall)
    return os.path.join(folder, "agent")


def wait(listener: str, order: str) -> NoReturn:
    """Begin the imports, wait for a relay, and become the agent that it asks for."""
    waiting = socket.socket(fileno=int(listener))
    waiting.set_inheritable(False)
    from tfcluster.agent.guard import fork_guard

    recorder, guard_alive = fork_guard()
    from tfcluster.agent import catalogue as msg
    from tfcluster.agent.entry import READY, serve
    from tfcluster.agent.processes import AGENT_NAME, discard_streams, raise_limit, set_process_name
    from tfcluster.agent.tasks.preloader import Preloader

    set_process_name(AGENT_NAME)
    preloader = Preloader(recorder)
    preloader.begin_early(msg.Preload.read(parse_json_object(order)))
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
