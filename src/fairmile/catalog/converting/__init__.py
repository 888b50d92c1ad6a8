"""Data sets in another format, read back and compared before they are published."""
