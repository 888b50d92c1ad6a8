"""The fastest way to run a model: runtimes, precisions, batch sizes and threads, measured against each other."""
