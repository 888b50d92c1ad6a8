"""CosmoFlow: four cosmological parameters from the distribution of dark matter in a cube (MLPerf HPC)."""
