"""The live view: a run's state as the lines that stand at the bottom of a terminal."""
