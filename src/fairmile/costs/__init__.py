"""What things cost: devices, operators and collectives. Predictions and traces both build on it."""
