"""REST: one file for each noun."""
