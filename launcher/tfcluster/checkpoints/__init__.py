"""Checkpoints: find complete ones of the chief, gather them in the run folder, put them back.

Nothing here imports TensorFlow, and nothing knows a run: every path is an argument.
"""
