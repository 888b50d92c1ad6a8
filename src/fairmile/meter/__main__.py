"""`python -m fairmile.meter --include` prints the folder of the C header and the Fortran module."""

from __future__ import annotations

import sys

from fairmile.meter import include


def main(words: list[str]) -> int:
    """Print what was asked for and return the exit code."""
    if words != ["--include"]:
        sys.stderr.write("usage: python -m fairmile.meter --include\n")
        return 2
    sys.stdout.write(f"{include()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
