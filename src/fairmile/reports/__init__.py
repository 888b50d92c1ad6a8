"""Reads runs and changes none: statistics, comparison, leaderboards, figures and pages."""
