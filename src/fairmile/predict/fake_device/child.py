"""The process that traces: reads requests, writes traces, or says in one line why not."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from fairmile.base.files import write_atomic
from fairmile.predict.fake_device.request import REFUSED, Refused, TraceRequest, answers
from fairmile.predict.fake_device.session import TraceSession


def main(argv: Sequence[str]) -> int:
    """Trace every request of the first file; 3 where one is refused.

    Each has a file of its own beside the second, which holds the refusal where there is no trace.
    """
    try:
        asked, answer = map(Path, argv)
        document = json.loads(asked.read_bytes())
        session = TraceSession()
    except Refused as refused:
        sys.stdout.write("\n" + _refusal_text(refused) + "\n")
        return REFUSED
    code = 0
    for each, path in zip(document, answers(answer, len(document)), strict=True):
        try:
            write_atomic(path, session.trace(TraceRequest(**each)))
        except Refused as refused:
            write_atomic(path, _refusal_text(refused).encode())
            code = REFUSED
    return code


def _refusal_text(refused: Refused) -> str:
    return json.dumps({"error": refused.sentence, "hint": refused.hint})
