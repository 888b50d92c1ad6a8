"""An exploration as a run: planned, measured in processes of its own, recorded."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

from fairmile.base.errors import RunFailed
from fairmile.base.quick_dataclass import dataclass
from fairmile.jobs.spec import Resources
from fairmile.models.convert.conversion import error_again, last_line
from fairmile.models.convert.request import NO_TELEMETRY
from fairmile.models.explore.energy import check_counted
from fairmile.models.explore.request import Exploring, refusal, refusal_anywhere
from fairmile.models.explore.results import CandidateDict, Exploration, ExplorationDict
from fairmile.runs.execute.capture import git_root
from fairmile.runs.record.run import Run
from fairmile.runs.record.spec import Input, MetricSpec, RunSpec
from fairmile.runs.runs import Runs

_PROGRAM = "fairmile.models.explore.program"
_RESULT = "exploration.json"
_PREPARING_S, _LOADING_S = 600.0, 60.0  # of a job: once, and for each combination


@dataclass(frozen=True)
class Place:
    """Where an exploration runs: on this machine, or as a job of a system."""

    system: str = ""
    resources: Resources = Resources()
    software: tuple[str, ...] = ()
    environment: str = ""

    def needs(self, asked: Exploring) -> Resources:
        """Return what the job asks for: what is stated, else what the combinations need."""
        given = self.resources.model_dump(exclude_defaults=True)
        count = len(asked.candidates(elsewhere=True))
        needs: dict[str, Any] = {"time_s": asked.time_s + _PREPARING_S + _LOADING_S * count}
        needs |= {"gpus_per_node": 1} if asked.device == "cuda" else {}
        needs |= {"cpus_per_task": max(asked.threads)} if asked.threads else {}
        return Resources(**{**needs, **given})


def plan_exploration(runs: Runs, asked: Exploring, model: str, place: Place) -> Exploration:
    """Return which combinations would be measured, why others would not, and the script of its job on a system."""
    if asked.best == "energy" and not place.system:
        check_counted(asked.device)
    rows: list[CandidateDict] = []
    for each in asked.candidates(elsewhere=bool(place.system)):
        reason = refusal_anywhere(each) if place.system else refusal(each)
        row: Any = {**dataclasses.asdict(each), "state": "refused" if reason else "planned", "verdict": ""}
        row |= {"reason": reason} if reason else {}
        rows.append(row)
    planned = sum(each["state"] == "planned" for each in rows)
    answer = f"would measure {planned} of {len(rows)} combinations"
    data: ExplorationDict = {
        "model": model, "best": asked.best, "decided": False, "answer": answer, "candidates": rows, "run": ""
    }  # fmt: skip
    if place.system:
        plan = runs.plan(_spec(runs, asked, model, place))
        if plan.refusal is not None:
            raise plan.refusal
        data["answer"] = f"{answer} on {place.system}, as far as its packages allow"
        data["script"] = plan.script
    return Exploration(data)


def explore_model(runs: Runs, asked: Exploring, model: str, place: Place, *, again: bool) -> Exploration:
    """Measure what is asked for in a run, and return the result; an earlier run of the same serves unless `again`.

    On a system the run is a job, whose end is awaited.
    """
    asked.candidates()  # too many are refused before a run
    if asked.best == "energy" and not place.system:
        check_counted(asked.device)
    run = runs.run(_spec(runs, asked, model, place), again=again)
    if place.system and not run.state.is_end:
        run = runs.wait(run.id)
    if place.system and runs.is_remote(place.system) and _RESULT in run.outputs:
        run.work.mkdir(parents=True, exist_ok=True)
        runs.bring_output(run, _RESULT, run.work / _RESULT)
    return read_exploration(runs, run, model)


def _spec(runs: Runs, asked: Exploring, model: str, place: Place) -> RunSpec:
    """Return the run of an exploration; its command names files by what they are to the run, not by where they lie."""
    request, is_remote = asked.model, bool(place.system) and runs.is_remote(place.system)
    files = {"source": request.source, "data": request.data}
    words = [f"{name}={{inputs.{name}}}" for name, path in files.items() if path]
    file, _, function = request.code.rpartition(":")
    code: tuple[str, ...] = (str(Path(file).absolute()),) if file.endswith(".py") else ()
    if code and is_remote:
        seen, code = _code_elsewhere(Path(code[0]))
        words.append(f"code={seen}:{function}")
    plain = dataclasses.replace(asked, model=dataclasses.replace(request, source="", data=""))
    title = Path(model).stem if Path(model).exists() else model.rpartition("/")[2].partition("@")[0]
    return RunSpec(
        name=re.sub(r"[^A-Za-z0-9._-]+", "-", f"explore-{title}")[:64],
        argv=("{python}", "-m", _PROGRAM, plain.to_json(), *words),
        inputs={name: Input(path=path) for name, path in files.items() if path},
        code=code,
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
        system=place.system,
        resources=place.needs(asked) if place.system else Resources(),
        software=place.software,
        environment=place.environment,
    )


def _code_elsewhere(file: Path) -> tuple[str, tuple[str, ...]]:
    """Return how a program elsewhere names code, and what of it travels; a benchmark is there as part of Fairmile."""
    own = Path(__file__).parents[3]
    if file.is_relative_to(own / "fairmile"):
        return ".".join(file.relative_to(own).with_suffix("").parts), ()
    root = git_root(str(file.parent))
    return os.path.relpath(file, root) if root else file.name, (str(file),)


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
