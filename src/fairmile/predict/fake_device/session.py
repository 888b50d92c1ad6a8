"""Traces one request after another and writes down what was recorded."""

from __future__ import annotations

import json
import platform
from typing import Any

import torch

from fairmile.costs.steps import FORMAT
from fairmile.predict.fake_device import device, kernels, parallel, program
from fairmile.predict.fake_device.assumptions import parse_assumptions
from fairmile.predict.fake_device.dispatch import calibrate, recording
from fairmile.predict.fake_device.operators import OperatorRecorder
from fairmile.predict.fake_device.request import TraceRequest


class TraceSession:
    """The device of this process, on which requests are traced one after another."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.place = device.set_up()
        self.place.building = False
        self._is_calibrated = False

    def trace(self, request: TraceRequest) -> bytes:
        """Return the trace as the JSON document that `perf.steps.read_trace` reads; `Refused` says why not."""
        if not self._is_calibrated:  # not earlier: autograd works in no process that is forked after it
            calibrate()
            self._is_calibrated = True
        kernels.forget()
        parallel.begin(request.ranks)
        with recording() as recorder:
            self.place.notes = recorder.notes
            recorder.assume(parse_assumptions(request.assume or ()))
            built = program.build(request, recorder, self.place)
            steps = program.run(built, request, recorder)
            return document(recorder, built, steps, ranks=parallel.ranks(), compiled=request.compile or "")


def document(
    recorder: OperatorRecorder, built: program.TracedProgram, steps: int, *, ranks: int = 1, compiled: str = ""
) -> bytes:
    """Return what was recorded in the form that `perf.steps.read_trace` reads."""
    forms: dict[Any, str] = {}

    def spec(form: Any, storage: int) -> str:
        head = forms.get(form)
        if head is None:
            shape, strides, dtype = form
            named = str(dtype).removeprefix("torch.")
            fields = {"shape": list(shape), "strides": list(strides), "dtype": named, "storage": 0}
            head = forms[form] = _json(fields)[:-2]
        return f"{head}{storage}}}"

    names: dict[str, str] = {}
    tails: dict[int, str] = {}
    ops: list[str] = []
    for signature, phase, module, used, made in recorder.ops:
        tail = tails.get(signature.number)
        if tail is None:
            tail = tails[signature.number] = _json(
                {"name": signature.name, "arguments": signature.arguments, "keywords": signature.keywords}
            )[1:]
        if module not in names:
            names[module] = _json(module)
        inputs = ",".join([spec(form, at) for form, at in zip(signature.inputs, used, strict=True)])
        outputs = ",".join([spec(form, at) for form, at in zip(signature.outputs, made, strict=True)])
        ops.append(f'{{"phase":"{phase}","module":{names[module]},"inputs":[{inputs}],"outputs":[{outputs}],{tail}')
    storages = [
        {"size_bytes": size, "category": category, "module": module, "op": op}
        for size, category, (op, _part, module) in zip(
            recorder.sizes, recorder.categories(), recorder.made, strict=True
        )
    ]
    rest = {
        "steps": steps,
        "precision": built.precision,
        "training": built.training,
        "samples": built.samples,
        "parameters": sum(parameter.numel() for parameter in built.model.parameters()),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "notes": [*recorder.notes, *_assumption(recorder)],
        "stopped": recorder.stopped,
        "assumed": bool(recorder.assumed),
        "ranks": ranks,
        "compiled": compiled,
        "compiled_by": "inductor" if compiled else "",
    }
    whole = (
        f'{{"format":{FORMAT},"ops":[{",".join(ops)}],"storages":{_json(storages)},"events":{_json(recorder.events)},'
    )
    return (whole + _json(rest)[1:]).encode()


def _assumption(recorder: OperatorRecorder) -> list[str]:
    if not recorder.assumed:
        return []
    first, more = recorder.assumed[0], len(recorder.assumed) - 1
    places = f"{first} and {more:,} other place{'s' if more > 1 else ''}" if more else first
    words = recorder.assumptions.words
    return [f"shapes depend on values that are computed from weights ({places}): {words}"]


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
