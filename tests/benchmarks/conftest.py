"""Where these tests begin."""

from elsewhere import elsewhere

__all__ = ["elsewhere"]  # a fixture, for every file
