"""`python -m fairmile.benchmarks NAME`: what a run of a benchmark executes, in a job or by hand."""

from __future__ import annotations

import sys

from fairmile.benchmarks.program import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
