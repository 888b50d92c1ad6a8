"""Live updates of pages: one file for each noun."""
