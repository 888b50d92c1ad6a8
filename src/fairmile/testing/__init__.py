"""Conformance suites for what others may implement; they need pytest."""
