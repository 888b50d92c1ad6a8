"""Conversion of models, with a numerical proof that the result computes the same."""
