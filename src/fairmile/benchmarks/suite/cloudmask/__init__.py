"""CloudMask: the pixels of satellite scenes that are cloud, told from nine channels by a U-Net."""
