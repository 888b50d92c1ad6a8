"""Models that can be trained, used and converted."""
