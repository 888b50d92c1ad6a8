"""`python -m fairmile.perf.tracing REQUEST.json OUT.json`: trace what the request names, write the trace."""

from __future__ import annotations

import sys

from fairmile.perf.tracing.child import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
