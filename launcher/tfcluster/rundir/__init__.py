"""The run folder: its paths and events, the state they fold into, and the registry of all runs."""
