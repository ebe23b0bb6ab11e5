"""The agent's network: its socket, session with the coordinator and ports."""
