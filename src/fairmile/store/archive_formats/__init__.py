"""Readers of archives, one per format: they yield members one by one, with bounded memory."""
