"""Sweeps and tuning: thousands of runs from one small file."""
