"""StemDL: the space group of a crystal from its electron diffraction patterns."""
