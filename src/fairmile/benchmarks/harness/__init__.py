"""What the programs of all benchmarks share: settings, data, training on any device, scores."""
