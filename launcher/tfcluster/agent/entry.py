"""How an agent begins: configuration from stdin, the guard split off, one line back, then work.

The token comes over stdin because argv and the environment can be read by others, and the
environment goes on to the tasks.
"""

from __future__ import annotations

import os

READY = b"listening\n"
REFUSED = b"refused "
"""Then a line of JSON: message and cure."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tfcluster.agent.tasks.host_network_spawner import HostNetworkSpawner


def main() -> None:
    """Started detached, in a session of its own, with pipes for stdin and stdout."""
    config_json = b""
    while data := os.read(0, 65536):
        config_json += data
    from tfcluster.agent.guard import fork_guard

    recorder, guard_alive = fork_guard()
    # Only now: what the guard does not need stays out of its memory.
    import json

    from tfcluster.agent.processes import raise_limit

    config = json.loads(config_json)
    raise_limit(config.get("descriptors"))
    outside = _enter_private_network() if config.get("network") == "private" else None
    from tfcluster.agent.agent import Agent

    ready = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    agent = Agent(config, recorder, guard_alive, outside)
    os.write(ready, READY)
    os.close(ready)
    agent.run()
    while (found := agent.next()) is not None:
        agent, peer = found
        with peer:
            peer.sendall(READY)
        agent.run()
    os._exit(0)


def _enter_private_network() -> HostNetworkSpawner:
    """What stays outside; where this system refuses, says so on stdout and ends."""
    from tfcluster.agent.node.namespaces import PrivateNetworkRefused, enter_private_network
    from tfcluster.agent.tasks.host_network_spawner import HostNetworkSpawner

    outside = HostNetworkSpawner()
    try:
        enter_private_network()
    except PrivateNetworkRefused as refused:
        import json

        words: dict[str, Any] = {"message": refused.message, "cure": refused.fix}
        os.write(1, REFUSED + json.dumps(words).encode() + b"\n")
        os._exit(0)
    return outside
