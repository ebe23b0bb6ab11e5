"""The agent's network: its socket and session with the coordinator, ports, reachability."""
