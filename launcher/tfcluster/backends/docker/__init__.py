"""The backend `docker`: one container per task, started through the `docker` client."""
