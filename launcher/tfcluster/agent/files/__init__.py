"""The agent's files: received, sent and cached by a process beside it."""
