"""Files that an agent receives, sends and caches, in a process beside it."""
