"""Predictions and benchmarks, as `fairmile predict` and `benchmark` give them.

A benchmark's code is executed to trace it, in a process of its own and without a GPU: that needs the right to start.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from fairmile.base.results import Result
from fairmile.web.parameters import AssetName, Id
from fairmile.web.routes import Routes, workspace_of

routes = Routes("predictions")
_Count = Annotated[int, Field(ge=1, le=1_000_000)]


class PredictionRequest(BaseModel):
    """What a prediction is about: a benchmark or a model of a catalog, with its arguments, on a GPU."""

    model_config = ConfigDict(extra="forbid")

    target: str = Field(min_length=1, max_length=500)
    gpu: str = Field("h200", max_length=100)
    arguments: dict[str, int | float | str | bool] = Field({}, max_length=50)


class ScalingRequest(BaseModel):
    """A training on several numbers of GPUs of a system."""

    model_config = ConfigDict(extra="forbid")

    target: str = Field(min_length=1, max_length=500)
    on: str = Field(max_length=200)
    gpus: list[_Count] = Field(min_length=1, max_length=50)
    mode: Literal["strong", "weak"] = "strong"
    batch: _Count | None = None
    arguments: dict[str, int | float | str | bool] = Field({}, max_length=50)


@routes.get("/api/benchmarks", result="fairmile.benchmarks.benchmarks:BenchmarkList")
def list_benchmarks(request: Request) -> Result:
    """Return the benchmarks, as `fairmile benchmark ls`."""
    return workspace_of(request).benchmarks.ls()


@routes.get("/api/benchmarks/{name}", result="fairmile.benchmarks.benchmarks:BenchmarkDetails")
def show_benchmark(request: Request, name: Id) -> Result:
    """Return the parameters, data and targets of a benchmark, as `fairmile benchmark show`."""
    return workspace_of(request).benchmarks.show(name)


@routes.post("/api/predict/memory", right="start", result="fairmile.predict.results:MemoryPrediction")
def predict_memory(request: Request, what: PredictionRequest) -> Result:
    """Predict whether a training fits into the memory of a GPU, as `fairmile predict memory`."""
    return workspace_of(request).predict.memory(
        _asset(request, what.target), gpu=what.gpu, arguments=what.arguments, progress=False
    )


@routes.post("/api/predict/time", right="start", result="fairmile.predict.results:TimePrediction")
def predict_time(request: Request, what: PredictionRequest) -> Result:
    """Predict the time of a step, as `fairmile predict time`."""
    return workspace_of(request).predict.time(
        _asset(request, what.target), gpu=what.gpu, arguments=what.arguments, progress=False
    )


@routes.post("/api/predict/scaling", right="start", result="fairmile.predict.scaling.curves:ScalingPrediction")
def predict_scaling(request: Request, what: ScalingRequest) -> Result:
    """Predict how a training scales over the GPUs of a system, as `fairmile predict scaling`."""
    arguments: dict[str, Any] = {"mode": what.mode, "batch": what.batch, "arguments": what.arguments}
    target = _asset(request, what.target)
    return workspace_of(request).predict.scaling(target, what.on, what.gpus, **arguments, progress=False)


def _asset(request: Request, name: AssetName) -> str:
    """Return the handle of an asset: a path, which the call would take as well, is none."""
    row, _ = workspace_of(request).catalog.resolve(name)
    return row.handle
