"""The coordinator's end of a connection to an agent: frames, checked messages, files."""
