"""Models in another format, with a numerical proof that they still compute the same."""
