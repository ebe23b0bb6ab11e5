"""The tasks of an agent: start, output, stop, and what they leave running."""
