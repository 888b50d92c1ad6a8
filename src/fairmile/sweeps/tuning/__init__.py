"""Tuning: a sweep whose next points are chosen by what the last ones gave."""
