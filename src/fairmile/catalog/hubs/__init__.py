"""Live search of Hugging Face, Zenodo and OpenML, each through its own interface."""
