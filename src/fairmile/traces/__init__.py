"""Traces of all ranks as one table of events: read, aligned in time, analysed, replayed, exported."""
