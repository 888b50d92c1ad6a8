"""Plan and engine of parallel, multi-source, resumable, verified transfers."""
