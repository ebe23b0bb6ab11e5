"""Views of runs that need no server: the page of one run, the table that compares several."""
