"""How an agent begins: configuration from stdin, the guard split off, one line back, then work.

The token comes over stdin because argv and the environment can be read by others, and the
environment goes on to the tasks.
"""

from __future__ import annotations

import os

READY = b"listening\n"


def main() -> None:
    """Started detached, in a session of its own, with pipes for stdin and stdout."""
    config_json = b""
    while data := os.read(0, 65536):
        config_json += data
    from tfcluster.agent.guard import split_off

    recorder, guard_alive = split_off()
    # Only now: what the guard does not need stays out of its memory.
    import json

    from tfcluster.agent.agent import Agent

    ready = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    agent = Agent(json.loads(config_json), recorder, guard_alive)
    os.write(ready, READY)
    os.close(ready)
    agent.run()
    os._exit(0)
