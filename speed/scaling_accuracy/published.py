"""Readers of published scaling tables: vTrain's runs, Korthikanti's Megatron table, MLPerf HPC submissions."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scaling_accuracy.calibration import TransformerRun

from fairmile.base.errors import InvalidDocument, NotFound, Problem
from fairmile.predict.memory.descriptions import Transformer
from fairmile.predict.memory.sharding import Layout, Recompute

_VTRAIN = {
    "gpus": "# GPUs",
    "global": "global batch",
    "micro": "micro batch",
    "hidden": "hidden size",
    "heads": "attention heads",
    "layers": "# layers",
    "seq": "sequence length",
    "tensor": "tensor parallelism",
    "data": "data parallelism",
    "pipeline": "pipeline parallelism",
    "time": "iteration time (ms)",
}
MEGATRON_VOCABULARY = 51200
# Korthikanti et al. 2022, Table 3: hidden, heads, layers, tensor, pipeline, global batch, micro-batch, interleave.
MEGATRON_MODELS: Mapping[str, tuple[int, int, int, int, int, int, int, int]] = {
    "megatron-22B": (6144, 64, 48, 8, 1, 4, 4, 1),
    "gpt3-175B": (12288, 96, 96, 8, 8, 64, 1, 3),
    "turing-530B": (20480, 128, 105, 8, 35, 280, 1, 3),
    "megatron-1T": (25600, 160, 128, 8, 64, 512, 1, 1),
}


@dataclass(frozen=True)
class MegatronRow:
    """One row of Korthikanti's table; None where the paper gives no figure."""

    name: str
    mode: str  # "none", "seq", "sel", "seqsel", "full"
    model: Transformer
    layout: Layout
    iteration_time_s: float | None
    activation_bytes: float | None
    parameter_optimizer_bytes: float | None
    activation_percent: float | None


@dataclass(frozen=True)
class Submission:
    """One row of the MLPerf HPC summary; `accelerators` counts nodes where a submission has no accelerators."""

    round: str
    benchmark: str
    scaling: str
    submitter: str
    system: str
    accelerators: int
    instance: int | None  # accelerators that train one model; None where a weak-scaling row does not say
    accelerator: str
    global_batch: int
    epoch_s: float
    samples: int
    framework: str

    @property
    def family(self) -> str:
        """The machine's name without its size and software."""
        return re.split(r"[_-]", self.system)[0].lower()

    @property
    def division(self) -> str:
        return "open" if self.system.endswith("_open") else "closed"


def read_vtrain(path: Path, *, recompute: Recompute) -> list[TransformerRun]:
    """Read vTrain's measured runs; the table does not say what was recomputed: all on many nodes, nothing on one."""
    runs = []
    for line, row in _rows(path, _VTRAIN.values()):
        number = {name: _number(row, column, path, line) for name, column in _VTRAIN.items()}
        whole = {name: int(value) for name, value in number.items() if name != "time"}
        batches, rest = divmod(whole["global"], whole["data"] * whole["micro"])
        if rest or whole["gpus"] != whole["data"] * whole["tensor"] * whole["pipeline"]:
            raise _broken(path, line, "the degrees of parallelism do not fit the GPUs and the batch")
        model = Transformer(
            batch=whole["micro"],
            layers=whole["layers"],
            hidden=whole["hidden"],
            heads=whole["heads"],
            seq=whole["seq"],
            vocab=MEGATRON_VOCABULARY,
            positions=whole["seq"],
            attention="math",
            precision="pure_bf16",
            fp32_gradients=True,
        )
        layout = Layout(
            data=whole["data"],
            tensor=whole["tensor"],
            pipeline=whole["pipeline"],
            micro_batch=whole["micro"],
            micro_batches=batches,
            recompute=recompute,
        )
        runs.append(TransformerRun(model, layout, number["time"] / 1e3, name=f"{path.name}:{line}"))
    return runs


def read_megatron(path: Path) -> list[MegatronRow]:
    """Read Korthikanti's table of iteration times and memory."""
    columns = ("model", "mode", "iteration_time_s", "act_gib_per_gpu", "par_opt_gib_per_gpu", "act_percent_of_none")
    rows = []
    for line, row in _rows(path, columns):
        if row["model"] not in MEGATRON_MODELS:
            raise _broken(path, line, f"the model {row['model']!r} is not one of {', '.join(MEGATRON_MODELS)}")
        hidden, heads, layers, tensor, pipeline, batch, micro, interleave = MEGATRON_MODELS[row["model"]]
        modes: dict[str, Recompute] = {
            "none": "none",
            "seq": "none",
            "sel": "selective",
            "seqsel": "selective",
            "full": "full",
        }
        if row["mode"] not in modes:
            raise _broken(path, line, f"the mode {row['mode']!r} is not one of {', '.join(modes)}")
        model = Transformer(
            batch=micro,
            layers=layers,
            hidden=hidden,
            heads=heads,
            seq=2048,
            vocab=MEGATRON_VOCABULARY,
            positions=2048,
            attention="math",
            precision="pure_bf16",
            fp32_gradients=True,
        )
        layout = Layout(
            tensor=tensor,
            pipeline=pipeline,
            micro_batch=micro,
            micro_batches=batch // micro,
            interleave=interleave,
            recompute=modes[row["mode"]],
            sequence_parallel=row["mode"].startswith("seq"),
        )
        figures = [_optional(row, column, path, line) for column in columns[2:]]
        gib = [None if value is None else value * 2**30 for value in figures[1:3]]
        rows.append(MegatronRow(row["model"], row["mode"], model, layout, figures[0], gib[0], gib[1], figures[3]))
    return rows


def read_mlperf_hpc(path: Path) -> list[Submission]:
    """Read the summary of MLPerf HPC submissions."""
    columns = ("round", "benchmark", "scaling", "submitter", "system", "accelerators", "accelerator")
    figures = ("global_batch_size", "median_epoch_s", "train_samples", "framework")
    rows = []
    for line, row in _rows(path, (*columns, *figures)):
        count = int(_number(row, "accelerators", path, line)) or _nodes(row["system"])
        if not count:
            raise _broken(path, line, f"neither accelerators nor the name {row['system']!r} say how many there are")
        rows.append(
            Submission(
                round=row["round"],
                benchmark=row["benchmark"],
                scaling=row["scaling"],
                submitter=row["submitter"],
                system=row["system"],
                accelerators=count,
                instance=count if row["scaling"] == "strong" else _instance(row["system"]),
                accelerator=row["accelerator"],
                global_batch=int(_number(row, "global_batch_size", path, line)),
                epoch_s=_number(row, "median_epoch_s", path, line),
                samples=int(_number(row, "train_samples", path, line)),
                framework=row["framework"],
            )
        )
    return rows


def _nodes(system: str) -> int:
    found = re.search(r"_n?(\d+)(?:x|_|$)", system)
    return int(found[1]) if found else 0


def _instance(system: str) -> int | None:
    """Return how many accelerators one of many instances has, from names such as `22x128` or `10x128x4`."""
    found = re.search(r"_\d+x(\d+)(?:x(\d+))?(?:_|$)", system)
    return int(found[1]) * int(found[2] or 1) if found else None


def _rows(path: Path, columns: object) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and fields of each row under the header; lines that begin with `# source` or `# summary` go."""
    wanted = list(columns)  # type: ignore[call-overload]
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise NotFound(f"there is no table {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidDocument([Problem(f"cannot be read as text: {error}", file=str(path))]) from error
    start = 0
    while start < len(lines) and (not lines[start].strip() or re.match(r"# (source|summary)\b", lines[start])):
        start += 1
    if start >= len(lines):
        raise InvalidDocument([Problem("the table is empty", file=str(path))])
    header = next(csv.reader([lines[start]]))
    missing = [name for name in wanted if name not in header]
    if missing:
        raise _broken(path, start + 1, f"the columns {', '.join(missing)} are missing")
    for number, text in enumerate(lines[start + 1 :], start + 2):
        if not text.strip():
            continue
        values = next(csv.reader([text]))
        if len(values) != len(header):
            raise _broken(path, number, f"{len(values)} fields stand under {len(header)} columns")
        yield number, dict(zip(header, values, strict=True))


def _number(row: Mapping[str, str], column: str, path: Path, line: int) -> float:
    try:
        value = float(row[column])
    except ValueError:
        raise _broken(path, line, f"{column} is {row[column]!r}, expected a number") from None
    if not 0 <= value < float("inf"):
        raise _broken(path, line, f"{column} is {row[column]!r}, expected a number that is not negative")
    return value


def _optional(row: Mapping[str, str], column: str, path: Path, line: int) -> float | None:
    return _number(row, column, path, line) if row[column].strip() else None


def _broken(path: Path, line: int, message: str) -> InvalidDocument:
    return InvalidDocument([Problem(message, file=str(path), line=line)])
