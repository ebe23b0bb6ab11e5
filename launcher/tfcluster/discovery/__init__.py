"""Facts about this machine and its Pythons, and the planning of a spec with them."""
