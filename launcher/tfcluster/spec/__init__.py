"""The spec: the user's JSON file, checked against a model and returned as a `ClusterSpec`."""
