"""How a run is executed: here, in a pool, as a job, or on a machine that ssh reaches."""
