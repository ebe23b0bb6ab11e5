"""What this machine and its Pythons are like: the one impure step that planning needs."""
