"""Conformance suites for plug-ins; they need pytest."""
