"""`python -m fairmile.costs.collectives`: measure collectives as one rank, or start the ranks here."""

from __future__ import annotations

import sys

from fairmile.base.garbage import search_rarely
from fairmile.costs.collectives.program import main

if __name__ == "__main__":
    search_rarely()
    sys.exit(main())
