"""The coordinator: one loop that runs a plan, carries out supervision's decisions and gathers."""
