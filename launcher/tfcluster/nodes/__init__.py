"""The coordinator's side of the agents: the hub, orders, reports, remote folders and code sync."""
