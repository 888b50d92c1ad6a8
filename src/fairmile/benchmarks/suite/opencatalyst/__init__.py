"""OpenCatalyst: energies and forces of molecules on metal surfaces."""
