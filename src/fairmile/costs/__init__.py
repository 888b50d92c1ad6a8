"""Cost models of devices, operators and collectives, for predictions and traces."""
