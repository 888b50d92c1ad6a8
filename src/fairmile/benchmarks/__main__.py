"""`python -m fairmile.benchmarks NAME`: what a run of a benchmark executes, in a job or by hand."""

from __future__ import annotations

import atexit
import gc
import sys

from fairmile.benchmarks.program import main

if __name__ == "__main__":
    atexit.register(gc.freeze)  # a model and its modules take long to search, and the process ends
    sys.exit(main(sys.argv[1:]))
