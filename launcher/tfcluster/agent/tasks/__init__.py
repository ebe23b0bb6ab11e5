"""The agent's tasks: start, output, stop, and the stray processes that they leave."""
