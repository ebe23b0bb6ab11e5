"""The first programs of containers and pods, which wait for a coordinator."""
