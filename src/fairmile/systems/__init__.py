"""Machines as data: what they have, how their scheduler speaks, which modules each framework needs."""
