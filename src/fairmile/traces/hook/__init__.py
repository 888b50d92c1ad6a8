"""The recorder inside an unmodified program: Python imports sitecustomize.py at its start, which waits for torch."""
