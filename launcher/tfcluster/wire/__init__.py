"""The coordinator's end of a connection to an agent: frames, validated messages, files."""
