"""The answers before a job runs: does it fit, how long does a step take, on how many GPUs is it worth it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fairmile.base.errors import UsageError
from fairmile.perf.compute.devices import Device, device
from fairmile.perf.compute.op_times import OpTimes, read_op_times
from fairmile.perf.compute.power import Energy, energy_of
from fairmile.perf.compute.refine import read_correction
from fairmile.perf.compute.step_time import StepTime, step_time
from fairmile.perf.memory.account import MemoryAccount, account
from fairmile.perf.memory.closed_forms import ClosedForm, Transformer, closed_form
from fairmile.perf.memory.footprints import batch_of, footprint_of
from fairmile.perf.memory.largest_batch import LargestBatch, largest_batch
from fairmile.perf.memory.options import AllocatorOptions, parse_allocator_options
from fairmile.perf.memory.sharding import Layout, ModelFootprint, RankMemory, rank_memory
from fairmile.perf.scaling.curves import Goal, ScalingPrediction, predict_scaling, predict_transformer_scaling
from fairmile.perf.scaling.data_parallel import OneGpuStep
from fairmile.perf.steps import Trace
from fairmile.perf.targets import Target, find_target
from fairmile.perf.tracing.trace import TraceRequest, trace_target
