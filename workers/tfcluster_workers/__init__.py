"""What runs inside a task, beside the user's script; imports nothing of the launcher."""
