"""Pages about runs that need no server: the report of one run, the comparison of several."""
