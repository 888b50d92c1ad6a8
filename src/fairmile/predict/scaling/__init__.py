"""Steps on many GPUs, the best parallel layout, and how many GPUs pay off."""
