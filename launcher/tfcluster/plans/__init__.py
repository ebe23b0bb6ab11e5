"""The plan of a run and its attempts, from a spec: pure functions, no disk, clock or network."""
