"""Drafts of cards from files, their formats and columns, and documents beside them."""
