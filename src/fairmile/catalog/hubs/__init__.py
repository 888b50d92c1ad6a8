"""Hubs that are searched live: Hugging Face, Zenodo and OpenML, each through its own interface."""
