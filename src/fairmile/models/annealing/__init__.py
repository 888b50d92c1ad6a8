"""Regression as a quadratic problem in bits (a QUBO), for annealers and for simulated annealing on a CPU."""
