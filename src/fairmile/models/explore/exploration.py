"""An exploration as a run: planned, measured in processes of its own, recorded."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

from fairmile.base.errors import RunFailed
from fairmile.models.convert.conversion import error_again, last_line
from fairmile.models.convert.request import NO_TELEMETRY
from fairmile.models.explore.request import Exploring, refusal
from fairmile.models.explore.results import CandidateDict, Exploration
from fairmile.runs.record.run import Run
from fairmile.runs.record.spec import Input, MetricSpec, RunSpec
from fairmile.runs.runs import Runs

_PROGRAM = "fairmile.models.explore.program"
_RESULT = "exploration.json"


def plan_exploration(asked: Exploring, model: str) -> Exploration:
    """Return which combinations would be measured, and why others would not."""
    rows: list[CandidateDict] = []
    for each in asked.candidates():
        reason = refusal(each)
        row: Any = {**dataclasses.asdict(each), "state": "refused" if reason else "planned", "verdict": ""}
        row |= {"reason": reason} if reason else {}
        rows.append(row)
    planned = sum(each["state"] == "planned" for each in rows)
    answer = f"would measure {planned} of {len(rows)} combinations"
    return Exploration(
        {"model": model, "best": asked.best, "decided": False, "answer": answer, "candidates": rows, "run": ""}
    )


def explore_model(runs: Runs, asked: Exploring, model: str, *, again: bool) -> Exploration:
    """Measure what is asked for in a run, and return the result; an earlier run of the same serves unless `again`."""
    asked.candidates()  # too many are refused before a run
    request = asked.model
    inputs = {"source": Input(path=request.source)} if request.source else {}
    if request.data:
        inputs["data"] = Input(path=request.data)
    code = request.code.rpartition(":")[0]
    title = Path(model).stem if Path(model).exists() else model.rpartition("/")[2].partition("@")[0]
    spec = RunSpec(
        name=re.sub(r"[^A-Za-z0-9._-]+", "-", f"explore-{title}")[:64],
        argv=(sys.executable, "-m", _PROGRAM, asked.to_json()),
        inputs=inputs,
        code=(str(Path(code).absolute()),) if code.endswith(".py") else (),
        outputs=(_RESULT,),
        metrics={
            "latency": MetricSpec(unit="s", better="lower"),
            "throughput": MetricSpec(unit="1/s", better="higher"),
            "size": MetricSpec(unit="bytes", better="lower"),
        },
        env=dict(NO_TELEMETRY),
        seed=request.seed,
        watch_s=0,  # what samples the machine would take time from what is measured
        tags=("exploration",),
    )
    return read_exploration(runs, runs.run(spec, again=again), model)


def read_exploration(runs: Runs, run: Run, model: str) -> Exploration:
    """Return what the run of an exploration measured; errors of its program are raised here."""
    file = run.work / _RESULT
    written: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    if "error" in written:
        raise error_again(written["error"])
    if not written:
        raise RunFailed(f"the exploration failed: {last_line(runs, run)}", hint=f"fairmile runs log {run.id}")
    content: Any = {**written, "model": model, "run": run.id}
    return Exploration(content)
