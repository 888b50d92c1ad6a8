"""The benchmarks, one folder each."""
