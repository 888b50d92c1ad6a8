"""The process that traces: reads requests, writes traces, or says in one line why not."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from fairmile.base.files import write_atomic
from fairmile.perf.tracing.session import Session
from fairmile.perf.tracing.trace import REFUSED, Refused, TraceRequest, answers


def main(argv: Sequence[str]) -> int:
    """Trace every request of the first file into the second; 3 where one is refused."""
    try:
        asked, answer = map(Path, argv)
        document = json.loads(asked.read_bytes())
        requests = [TraceRequest(**each) for each in (document if isinstance(document, list) else [document])]
        session = Session()
        for request, path in zip(requests, answers(answer, len(requests)), strict=True):
            write_atomic(path, session.trace(request))
    except Refused as refused:
        sys.stdout.write("\n" + json.dumps({"error": refused.sentence, "hint": refused.hint}) + "\n")
        return REFUSED
    return 0
