"""Scaling studies: steps timed on a cluster or simulated networks, a model of the step."""
