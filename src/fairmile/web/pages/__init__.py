"""Pages for people: one file for each noun."""
