"""One run from start to end: the coordinator that owns its state, its folder, its events."""
