"""The run folder: its paths, its events, the state they fold into, and the registry of all runs."""
