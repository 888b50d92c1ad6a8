"""`python -m fairmile.perf.collectives`: measure collectives as one rank, or start the ranks here."""

from __future__ import annotations

import sys

from fairmile.perf.collectives.program import main

if __name__ == "__main__":
    sys.exit(main())
