"""The agent's entry point: read the configuration, fork the guard, report ready, run the loop.

The configuration comes over stdin because it has the token: other users can read argv, and the
tasks inherit the environment.
"""

from __future__ import annotations

import os

READY = b"listening\n"
REFUSED = b"refused "
"""Followed by one line of JSON with message and fix."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tfcluster.agent import NoReturn
    from tfcluster.agent.agent import Agent
    from tfcluster.agent.agent_config import AgentConfig
    from tfcluster.agent.tasks.host_network_spawner import HostNetworkSpawner


def main() -> None:
    """Run an agent in this process, which is detached and has pipes for stdin and stdout."""
    config_json = b""
    # A line, not up to the end: a child that the coordinator's process forks may hold the pipe.
    while not config_json.endswith(b"\n") and (data := os.read(0, 65536)):
        config_json += data
    from tfcluster.agent.guard import fork_guard

    recorder, guard_alive = fork_guard()
    # Imported after the fork: what the guard does not need stays out of its memory.
    import json

    from tfcluster.agent.agent_config import AgentConfig
    from tfcluster.agent.processes import discard_streams, raise_limit

    config = AgentConfig.read(json.loads(config_json))
    raise_limit(config.descriptors)
    host_spawner = _enter_network(config)
    from tfcluster.agent.agent import Agent

    ready = os.dup(1)
    discard_streams(0, 1)
    agent = Agent(config, recorder, guard_alive, host_spawner)
    os.write(ready, READY)
    os.close(ready)
    serve(agent)


def serve(agent: Agent) -> NoReturn:
    """Run an agent, and those of later runs as long as it stays warm; exit."""
    agent.run()
    while (next_run := agent.wait_for_next_run()) is not None:
        agent, peer = next_run
        with peer:
            peer.sendall(READY)
        agent.run()
    os._exit(0)


def _enter_network(config: AgentConfig) -> HostNetworkSpawner | None:
    """Move into a private or simulated network, if the agent has one.

    Return the spawner that stays outside it. Where the system refuses, write why to stdout and
    exit.
    """
    if not (config.is_private or config.namespaces):
        return None
    from tfcluster.agent.node import namespaces
    from tfcluster.agent.tasks.host_network_spawner import HostNetworkSpawner

    host_spawner = HostNetworkSpawner()
    try:
        if config.namespaces:
            namespaces.join_network(config.namespaces)
        else:
            namespaces.enter_private_network()
    except namespaces.PrivateNetworkRefused as refused:
        import json

        refusal = json.dumps({"message": refused.message, "fix": refused.fix})
        os.write(1, REFUSED + refusal.encode() + b"\n")
        os._exit(0)
    return host_spawner
