"""What an agent knows of its node: cores, memory, namespaces, the preloading process."""
