"""Scaling studies: steps timed on simulated networks, a model of the step, predictions."""
