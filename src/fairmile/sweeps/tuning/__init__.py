"""Studies: sweeps whose next points depend on earlier results."""
