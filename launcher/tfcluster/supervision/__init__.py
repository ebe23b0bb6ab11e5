"""Decides what becomes of a run, without I/O: inputs and times go in, decisions come out."""
