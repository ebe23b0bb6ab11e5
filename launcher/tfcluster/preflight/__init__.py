"""Checks before a start: node probes, the rules that judge their answers, and `doctor`."""
