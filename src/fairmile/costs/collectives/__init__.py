"""Collective communication: what it costs by formula, what it costs here by measurement, and how both are compared."""
