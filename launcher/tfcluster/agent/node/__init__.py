"""Facts about an agent's node: cores, memory, GPUs, network namespaces."""
