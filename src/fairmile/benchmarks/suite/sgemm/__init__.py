"""SGEMM: how long a matrix product takes, told from the fourteen parameters of its kernel."""
