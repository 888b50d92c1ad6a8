"""Combines the results of a sweep: prints the mean loss of all its points."""

import json
import sys
from pathlib import Path

rows = json.loads(Path(sys.argv[1]).read_text())
print("mean loss", round(sum(row["metrics"]["loss"] for row in rows) / len(rows), 4))
