"""What goes into a program that is recorded: Python imports sitecustomize.py at its start, which waits for torch."""
