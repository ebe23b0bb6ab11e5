"""Tasks in containers: one for each task, started through the `docker` client."""
