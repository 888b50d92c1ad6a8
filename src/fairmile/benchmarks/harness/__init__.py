"""Code that all benchmarks share: settings, data, training on any device, scores."""
