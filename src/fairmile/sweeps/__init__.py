"""Sweeps and studies: thousands of runs from one small file."""
