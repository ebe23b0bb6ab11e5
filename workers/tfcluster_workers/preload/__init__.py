"""Imports TensorFlow once for all tasks of a node and forks the tasks."""
