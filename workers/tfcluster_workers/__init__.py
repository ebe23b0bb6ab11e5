"""The code that runs inside a task, next to the user's script; imports nothing of the launcher."""
