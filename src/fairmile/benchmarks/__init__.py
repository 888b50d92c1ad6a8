"""Benchmarks: recipes over all of it. A benchmark is a folder; `harness` is what their programs share.

What runs inside a job, `harness` and `suite`, needs nothing of Fairmile but `base` and `meter`.
"""
