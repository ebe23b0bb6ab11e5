"""Prepares and reads the data sets of the jobs: TFDS data sets and synthetic digits."""
