"""From a spec to what will be started: pure functions of values, no disk, no clock, no network."""
