"""The record of a run: its specification, its folder on disk, and the ledger of all runs."""
