"""The coordinator's side of the agents: one hub, its orders, their reports and files."""
