"""The cluster that a run is in, as this process reaches it: its API server, and the pods' seats."""
