"""Compiled steps: what torch.compile makes of the operators of an eager trace."""
