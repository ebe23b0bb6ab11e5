"""Checkpoints: find what the chief has completely saved, bring it home, put it back.

Nothing here imports TensorFlow, and nothing knows a run: every path is an argument.
"""
