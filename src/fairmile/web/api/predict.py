"""Predictions and benchmarks, as `fairmile predict` and `benchmark` give them.

A description is data, and closed forms answer. A benchmark's code is executed to trace it, in a process of its own and
without a GPU: that needs the right to start work.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fairmile.base.results import Result
from fairmile.predict.memory.sharding import Layout
from fairmile.predict.predict import TargetOrDescription
from fairmile.predict.results import MemoryPrediction, TimePrediction
from fairmile.predict.scaling.curves import MOST_GPUS, Goal, ScalingPrediction
from fairmile.web.parameters import AssetName, Id
from fairmile.web.routes import Routes, identity_of, workspace_of

routes = Routes("predictions")
Count = Annotated[int, Field(ge=1, le=MOST_GPUS)]
Arguments = Annotated[dict[str, int | float | str | bool], Field(max_length=50)]


class _Question(BaseModel):
    model_config = ConfigDict(extra="forbid")

    target: str = Field("", max_length=500, description="a benchmark, or a model of a catalog that one trains")
    description: dict[str, Any] | None = Field(None, max_length=100, description="a model in a few fields")
    arguments: Arguments = {}

    @model_validator(mode="after")
    def _is_about_one(self) -> _Question:
        if bool(self.target) == (self.description is not None):
            raise ValueError("set either target or description")
        return self


class LayoutRequest(BaseModel):
    """How a model is spread over ranks."""

    model_config = ConfigDict(extra="forbid")

    data: Count = 1
    zero: int = Field(0, ge=0, le=3)
    tensor: Count = 1
    pipeline: Count = 1
    micro_batches: Count = 1
    sequence_parallel: bool = False


class MemoryRequest(_Question):
    """A training step on a GPU, or on the ranks of a layout."""

    gpu: str = Field("h200", max_length=100)
    layout: LayoutRequest | None = None


class TimeRequest(_Question):
    """A training step on a GPU."""

    gpu: str = Field("h200", max_length=100)


class ScalingRequest(_Question):
    """A training on several numbers of GPUs of a system."""

    on: str = Field(max_length=200)
    gpus: list[Count] = Field(min_length=1, max_length=50)
    mode: Literal["strong", "weak"] = "strong"
    batch: Annotated[int, Field(ge=1, le=10**9)] | None = None
    samples: float | None = Field(None, gt=0, le=1e18, description="to train on: gives time, GPU-hours and energy")


@routes.get("/api/benchmarks", result="fairmile.benchmarks.benchmarks:BenchmarkList")
def list_benchmarks(request: Request) -> Result:
    """Return the benchmarks, as `fairmile benchmark ls`."""
    return workspace_of(request).benchmarks.ls()


@routes.get("/api/benchmarks/{name}", result="fairmile.benchmarks.benchmarks:BenchmarkDetails")
def show_benchmark(request: Request, name: Id) -> Result:
    """Return the parameters, data and targets of a benchmark, as `fairmile benchmark show`."""
    return workspace_of(request).benchmarks.show(name)


@routes.post("/api/predict/memory", right="read", result="fairmile.predict.results:MemoryPrediction")
def predict_memory(request: Request, what: MemoryRequest) -> MemoryPrediction:
    """Predict whether a training fits into the memory of a GPU, as `fairmile predict memory`.

    A target, unlike a description, needs the right to start work: its code is executed.
    """
    layout = Layout(**what.layout.model_dump()) if what.layout is not None else None
    about = subject_of(request, what)
    return workspace_of(request).predict.memory(
        about, gpu=what.gpu, arguments=what.arguments, layout=layout, progress=False
    )


@routes.post("/api/predict/time", right="read", result="fairmile.predict.results:TimePrediction")
def predict_time(request: Request, what: TimeRequest) -> TimePrediction:
    """Predict the time of a step, as `fairmile predict time`.

    A target, unlike a description, needs the right to start work: its code is executed.
    """
    about = subject_of(request, what)
    return workspace_of(request).predict.time(about, gpu=what.gpu, arguments=what.arguments, progress=False)


@routes.post("/api/predict/scaling", right="read", result="fairmile.predict.scaling.curves:ScalingPrediction")
def predict_scaling(request: Request, what: ScalingRequest) -> ScalingPrediction:
    """Predict how a training scales over the GPUs of a system, as `fairmile predict scaling`.

    A target, unlike a description, needs the right to start work: its code is executed.
    """
    how: dict[str, Any] = {"mode": what.mode, "batch": what.batch, "arguments": what.arguments}
    how["goal"] = Goal(samples=what.samples)
    about = subject_of(request, what)
    return workspace_of(request).predict.scaling(about, what.on, what.gpus, **how, progress=False)


def subject_of(request: Request, what: _Question) -> TargetOrDescription:
    """Return what a question is about; only who may start work has code executed."""
    if what.description is not None:
        return what.description
    identity_of(request).require("start")
    return _asset(request, what.target)


def _asset(request: Request, name: AssetName) -> str:
    """Return the handle of an asset: a path, which the call would take as well, is none."""
    row, _ = workspace_of(request).catalog.resolve(name)
    return row.handle
