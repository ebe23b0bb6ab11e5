"""Saves of several tasks to one path: whole files, folders of the chief alone, other files."""
