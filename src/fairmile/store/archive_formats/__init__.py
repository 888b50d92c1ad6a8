"""Readers of one archive format each: they give members one after the other, with bounded memory."""
