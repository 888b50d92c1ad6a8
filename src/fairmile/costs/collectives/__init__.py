"""Collective communication: cost formulas, measurements, and their comparison."""
