"""Errors, settings, files, commands, digests and units, independent of the domain."""
