"""Regression on an annealer, beside classical support vectors and least squares."""
