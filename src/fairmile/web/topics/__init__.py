"""What pages follow live: one file for each noun."""
