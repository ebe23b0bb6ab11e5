"""The loop that runs a plan: it carries out supervision's decisions and gathers checkpoints."""
