"""Predictions before a job runs: memory, step time and scaling."""
