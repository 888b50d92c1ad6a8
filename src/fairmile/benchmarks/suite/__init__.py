"""The benchmarks that come along, one folder each."""
