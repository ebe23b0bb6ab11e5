"""How an agent is reached: its socket, the relay to it, its session, the ports it holds."""
