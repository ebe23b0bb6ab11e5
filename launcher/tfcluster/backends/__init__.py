"""Backends: how nodes are made and reached."""
