"""What a run is asked to be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from fairmile.base.patterns import compile_linear
from fairmile.base.specifications import Limits, Specification, check
from fairmile.jobs.launch import Launch
from fairmile.jobs.spec import Resources
from fairmile.runs.record.commands import is_inside
from fairmile.runs.record.values import COUPLED, Better, Value, is_job_part, is_onnx, split_coupled


class MetricSpec(Specification):
    """How a metric is found and judged."""

    pattern: str = ""  # finds it in the output: the group named `value`, or the first one; `step` is optional
    unit: str = ""
    better: Better = ""
    tolerance: Annotated[float, Limits(ge=0, finite=True)] | None = (
        None  # relative; within it a rerun counts as the same
    )

    @check("pattern")
    @classmethod
    def _is_a_pattern(cls, value: str) -> str:
        if value and not compile_linear(value.encode(errors="replace")).groups:
            raise ValueError(f"{value!r} has no group for the value")
        return value


class Input(Specification):
    """Something that goes in: a file or folder here, or an asset of the catalog."""

    path: str = ""
    asset: str = ""
    sha256: str = ""  # of the file, or the root of the tree

    @classmethod
    def named(cls, text: str, folder: Path) -> Input:
        """Return what a word means as input: a path that exists is a path, and so is what is written as one."""
        is_path = text.startswith(("/", ".", "~")) or text.endswith("/") or (folder / text).exists()
        return cls(path=text) if is_path else cls(asset=text)


class RunSpec(Specification):
    """One execution as it was asked for."""

    name: Annotated[str, Limits(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "run"
    argv: Annotated[tuple[str, ...], Limits(min_length=1)]
    coupled: bool = False  # the command is two programs, a solver and a model beside it: SOLVER… : MODEL…
    params: Mapping[str, Value] = {}
    reads_params: bool = False  # the program reads FAIRMILE_PARAMS, even if its files do not show it
    seed: int | None = None
    env: Mapping[str, str] = {}
    folder: str = ""  # where it runs; empty: `work` in the folder of the run
    subfolder: str = ""  # of its own folder, where the program starts
    code: tuple[str, ...] = ()  # files and folders that are the program, beside those that the command names
    inputs: Mapping[str, Input] = {}
    outputs: tuple[str, ...] = ()  # patterns in the folder it runs in; what they match is kept by digest
    metrics: Mapping[str, MetricSpec] = {}
    environment: str = ""
    system: str = ""  # empty: this machine, in this process
    resources: Resources = Resources()
    model_resources: Resources | None = None  # of the model beside a solver: both are one heterogeneous job
    software: tuple[str, ...] = ()
    launch: Launch | None = None
    needs: tuple[str, ...] = ()  # hardware and frameworks that are declared, such as `NVIDIA GPU`, `horovod`
    anyway: bool = False  # run even if one of them is missing, or the run is predicted not to fit
    timeout_s: Annotated[float, Limits(gt=0, finite=True)] | None = None
    watch_s: Annotated[float, Limits(ge=0, finite=True)] = 1.0  # period of the samples; 0: none
    asset: str = ""  # handle of the benchmark, model or workflow it executes
    dataset: str = ""
    group: str = ""  # runs that belong together: repeats, the points of a sweep
    tags: tuple[str, ...] = ()

    def _check_whole(self) -> None:
        if not self.coupled:
            if self.model_resources is not None:
                raise ValueError(f"model_resources need a coupled run: two programs, SOLVER… {COUPLED} MODEL…")
            return
        if not all(split_coupled(self.argv)):
            raise ValueError(f"a coupled run is two programs: write SOLVER… {COUPLED} MODEL…")
        if self.environment and self.system:
            raise ValueError("a coupled run on a system takes its software from that system: omit the environment")
        model = split_coupled(self.argv)[1]
        if self.model_resources is not None:
            if not self.system:
                raise ValueError("model_resources are those of a job: name a system")
            if is_onnx(model) or is_job_part(model):
                raise ValueError("with model_resources, the model is a program without options of a launcher before it")
        elif (self.resources.nodes or 1) > 1 and not is_job_part(model):
            raise ValueError(
                "the programs of a coupled run share the memory of one node: ask for nodes=1, or have the model in "
                "ranks of the same MPI job: mpirun -n 3 SOLVER : -n 1 python model.py"
            )

    @check("outputs")
    @classmethod
    def _outputs_stay_inside(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            if not is_inside(pattern):
                raise ValueError(
                    f"{pattern!r} is outside the folder of the run: use a pattern inside it, such as results/*.json"
                )
        return patterns

    @check("subfolder")
    @classmethod
    def _subfolder_stays_inside(cls, subfolder: str) -> str:
        if subfolder and not is_inside(subfolder):
            raise ValueError(f"{subfolder!r} is outside the folder of the run")
        return subfolder

    @check("params")
    @classmethod
    def _are_values_that_json_has(cls, params: Mapping[str, Value]) -> Mapping[str, Value]:
        for name, value in params.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} is {value}, which JSON has no number for: write it as text")
        return params
