"""Packages for benchmark committees, made from recorded runs."""
