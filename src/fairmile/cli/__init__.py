"""The command line: parse, one API call, render."""
