"""Steps as other tools need them: with complete commands, and paths instead of names."""

from __future__ import annotations

import json
import os

from fairmile.flows.exchange import ExportedStep
from fairmile.flows.graph import is_wild, matches, placed
from fairmile.flows.plan import ASSET, Action, PlannedStep, Planner
from fairmile.flows.state import FlowState
from fairmile.runs.arguments import PARAMS
from fairmile.runs.record.commands import start_command
from fairmile.runs.record.spec import RunSpec


def exported_step(planned: PlannedStep, planner: Planner, state: FlowState) -> ExportedStep:
    """Return a step with its command filled in, the files it takes, and when it last ran."""
    node = planned.node
    step, spec = planner.flow.steps[node.step], planner.program(node).spec
    spec = spec.model_copy(update={"params": {**spec.params, **planned.params}})
    paths = {f"inputs.{name}": path for name, path in node.inputs.items()}
    argv = start_command(spec, {**paths, "python": "python", "source": "."})
    outputs = [placed(step.folder, each) for each in node.outputs]
    done = state.done.get(node.name)
    is_current = planned.action in (Action.SKIP, Action.RESTORE)
    elapsed_s = done.elapsed_s if done is not None else None
    started = done.at - (elapsed_s or 0.0) if done is not None else None
    inputs = _input_paths(planned, planner)
    files = [each for each in (*inputs, *outputs) if not is_wild(each)]
    sizes = {each: os.path.getsize(at) for each in files if os.path.isfile(at := os.path.join(planner.folder, each))}
    return ExportedStep(
        node.name,
        argv,
        node.needs,
        inputs,
        outputs,
        planned.on,
        step.folder,
        {**_of_run(spec), **planner.variables(node)},
        step.retries,
        step.timeout,
        started,
        elapsed_s,
        step.resources.cpus_per_task or 1,
        sizes,
        step.when or "done",
        step.backoff,
        spec.asset,
        node.step,
        done.run if done is not None and is_current else "",
        done.outputs if done is not None and is_current else {},
    )


def _of_run(spec: RunSpec) -> dict[str, str]:
    """Return the variables by which a program reads its parameters and its seed."""
    params = {PARAMS: json.dumps(spec.params)} if spec.params else {}
    return params | ({"FAIRMILE_SEED": str(spec.seed)} if spec.seed is not None else {})


def _input_paths(planned: PlannedStep, planner: Planner) -> list[str]:
    """Return the files that a step takes; a pattern stands for what its digests name, or for itself."""
    step = planner.flow.steps[planned.node.step]
    known = [path for path, digest in planned.inputs.items() if not digest.startswith(ASSET)]
    paths: dict[str, None] = {}
    for text in planned.node.inputs.values():
        path = placed(step.folder, text)
        named = [each for each in known if matches(path, each)] if is_wild(path) else [path]
        if not planned.inputs.get(text, "").startswith(ASSET):
            paths |= dict.fromkeys(named or [path])
    return list(paths)
