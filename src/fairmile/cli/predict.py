"""`fairmile predict`: what a job will need and take, told without running it."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from fairmile.base.errors import UsageError
from fairmile.base.files import write_atomic
from fairmile.base.units import format_duration, format_size, parse_duration, parse_size
from fairmile.benchmarks.expected import measured_steps
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.out import Out, json_option
from fairmile.costs.devices import device_names
from fairmile.predict.fake_device.request import FORMS, PRECISIONS
from fairmile.predict.memory.largest_batch import LargestBatch
from fairmile.predict.memory.sharding import Layout, RankMemory
from fairmile.predict.predict import GPU, MemoryPrediction, TimePrediction
from fairmile.predict.scaling.curves import Goal, ScalingPrediction, ScalingRow, parse_gpus
from fairmile.reports.predict_page import memory_page, scaling_page, spread_words, time_page
from fairmile.workspace import Workspace

F = TypeVar("F", bound=Callable[..., Any])
_TOP = 8
_RANK_PARTS = (
    *("parameters", "gradients", "optimizer", "activations", "temporary"),
    *("buffers", "workspace", "slack", "context"),
)


@click.group(cls=LazyGroup)
def predict() -> None:
    """Tell before a job runs whether it fits, how long it takes, and how far it scales.

    TARGET is a benchmark, a model of the catalog, FILE.py:FUNCTION, or a description in YAML for
    those without code. FUNCTION returns an object with `model`, `loss` (called with the model, makes
    its inputs, returns a number), `optimizer` (called with parameters; None for inference) and
    `precision`. No GPU is needed.
    """


def _target(command: F) -> F:
    """Give a command a target and how it is run."""
    options: list[Callable[[F], F]] = [
        click.argument("target", metavar="TARGET"),
        click.option("-a", "arguments", multiple=True, metavar="NAME=VALUE", help="An argument; may be repeated."),
        click.option("--precision", type=click.Choice(PRECISIONS), help="Other than the target says."),
        click.option("--accumulate", type=click.IntRange(min=1), default=1, help="Batches per optimizer step."),
        click.option(
            "--checkpointing",
            is_flag=True,
            help="Compute activations again; of models with gradient_checkpointing_enable, and of descriptions.",
        ),
        click.option("--channels-last", is_flag=True, help="Lay images and volumes out so."),
        click.option("--optimizer-form", type=click.Choice(FORMS), help="How the optimizer goes over parameters."),
        click.option("--inference", is_flag=True, help="Forward only."),
    ]
    for each in reversed(options):
        command = each(command)
    return command


def _gpu(command: F) -> F:
    return click.option("--gpu", default=GPU, show_default=True, help="The kind of GPU; --list-gpus shows them.")(
        click.option("--list-gpus", is_flag=True, is_eager=True, expose_value=False, callback=_list_gpus)(command)
    )


def _list_gpus(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo("\n".join(device_names()))
        context.exit()


def _how(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what options say of a run, for the API; what they leave out the target decides."""
    how: dict[str, Any] = {"precision": options["precision"], "accumulate": options["accumulate"]}
    how["optimizer_form"] = options["optimizer_form"]
    for name in ("checkpointing", "channels_last"):
        how[name] = True if options[name] else None
    if options["inference"]:
        how["training"] = False
    return how


def _arguments(given: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"-a {each!r} sets no argument", hint="write -a NAME=VALUE, as -a batch=64")
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    """Return numbers, true, false, null and lists as what they look like, anything else as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@predict.command()
@_target
@_gpu
@click.option("--largest", is_flag=True, help="Find the largest batch that fits.")
@click.option("--batch-argument", default="", metavar="NAME", help="Which argument is the batch, for --largest.")
@click.option("--allocator", default="", metavar="TEXT", help="What PYTORCH_CUDA_ALLOC_CONF says.")
@click.option("--data", type=click.IntRange(min=1), default=1, help="Replicas of the model.")
@click.option("--zero", type=click.IntRange(0, 3), default=0, help="ZeRO stage; 3 is FSDP.")
@click.option("--tensor", type=click.IntRange(min=1), default=1, help="Ranks that share each layer.")
@click.option("--sequence-parallel", is_flag=True, help="They share the rest of the layers, too.")
@click.option("--pipeline", type=click.IntRange(min=1), default=1, help="Stages of the model.")
@click.option("--micro-batches", type=click.IntRange(min=1), default=1, help="Parts of a step of one replica.")
@click.option("--offload", type=click.Choice(["host", "nvme"]), help="Where the optimizer's state is kept.")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write a page with the time line, too.")
@json_option
def memory(out: Out, target: str, arguments: Sequence[str], gpu: str, largest: bool, **options: Any) -> int:
    """Tell how much memory a step needs.

    The exit code is 0 where it fits, 1 where the GPU has too little, and 2 where that cannot be told: of
    a step that depends on the values of tensors the least that it takes is printed all the same.

    \b
    Examples:
      fairmile predict memory step.py:build -a batch=64
      fairmile predict memory gpt.yaml --gpu a100-80gb --data 8 --zero 3
    """
    predictions, how = Workspace.open().predict, {**_how(options), "allocator": options["allocator"]}
    if largest:
        if options["output"] is not None or _layout(options) is not None:
            raise UsageError("--largest seeks the batch of one GPU", hint=_without(options))
        return _tell_largest(out, predictions.largest_batch(
            target, gpu=gpu, arguments=_arguments(arguments), batch_argument=options["batch_argument"],
            tell=out.say if sys.stderr.isatty() else lambda _: None, **how
        ))  # fmt: skip
    found = predictions.memory(target, gpu=gpu, arguments=_arguments(arguments), layout=_layout(options), **how)
    if options["output"] is not None:
        write_atomic(options["output"], memory_page(found))
    if out.as_json:
        out.data(found.as_dict())
    else:
        _tell_memory(out, found)
    if found.fits is None:
        if out.as_json:
            out.say(f"it cannot be told whether it fits: {found.stopped}")
        return 2
    return 0 if found.fits else 1


def _without(options: Mapping[str, Any]) -> str:
    if options["output"] is not None:
        return "ask without --output; a page of that batch is drawn without --largest"
    return "ask without ways to spread it, as --data or --zero"


def _layout(options: Mapping[str, Any]) -> Layout | None:
    names = ("data", "zero", "tensor", "sequence_parallel", "pipeline", "micro_batches")
    given = {name: options[name] for name in names}
    if options["offload"]:
        given["optimizer_on"] = options["offload"]
    return Layout(**given) if given != {name: getattr(Layout(), name) for name in names} else None


def _tell_memory(out: Out, found: MemoryPrediction) -> None:
    said = found.as_dict()
    if found.rank is not None and found.layout is not None:
        _tell_rank(out, found, found.rank, found.layout)
        return
    pairs = [(name.replace("_", " "), format_size(size)) for name, size in said["breakdown"].items() if size]
    out.table(("part of the peak", "size"), pairs)
    used = f"{format_size(found.device_used_bytes)} of {format_size(found.gpu.memory_bytes)}"
    lines = [("allocated", format_size(said["peak_allocated_bytes"]) + _between(said.get("allocated_span")))]
    lines.append(("reserved", format_size(said["peak_reserved_bytes"]) + _between(said.get("reserved_span"))))
    lines.append(("device", used + _between(said.get("device_span"))))
    if (peak := said.get("peak")) is not None:
        lines.append(("peak", f"in step {peak['step'] + 1}, {peak['phase']}: {peak['op']} {peak['module']}".rstrip()))
    if said.get("out_of_memory"):
        lines.append(("ends with", said["out_of_memory"]))
    answer = {True: "yes", False: "no", None: "cannot be told"}[found.fits]
    lines.append(("fits", f"{answer}, on {found.gpu.name} with a batch of {found.batch}"))
    if found.stopped:
        lines.append(("at least", f"all of this is the least that it takes, since {found.stopped}"))
    if squeeze := found.squeeze:
        lines.append(("", squeeze))
    lines += [("note", note) for note in said.get("notes", ())]
    out.items(lines)


def _between(span: Mapping[str, Any] | None) -> str:
    """Return the least and the most that is to be expected, where that is known."""
    if not span:
        return ""
    return f"  ({format_size(span['low'])} {'to ' + format_size(span['high']) if span['high'] else 'or more'})"


def _tell_rank(out: Out, found: MemoryPrediction, rank: RankMemory, layout: Layout) -> None:
    """Tell what the fullest rank holds, and of the unspread step only how much that would be."""
    parts = {name: getattr(rank, f"{name}_bytes") for name in _RANK_PARTS}
    out.table(
        ("part of the fullest rank", "size"), [(name, format_size(round(size))) for name, size in parts.items() if size]
    )
    lines = [(name, format_size(round(getattr(rank, f"{name}_bytes")))) for name in ("allocated", "reserved")]
    lines.append(("device", f"{format_size(found.device_used_bytes)} of {format_size(found.gpu.memory_bytes)}"))
    outside = (("host", rank.host_bytes), ("NVMe", rank.nvme_bytes))
    lines += [(f"kept on {name}", format_size(round(size))) for name, size in outside if size]
    lines.append(("not spread", f"{format_size(found.found.device_used_bytes)} on one GPU"))
    each = f"each of {layout.ranks} ranks ({spread_words(layout)})" if layout.ranks > 1 else spread_words(layout)
    answer = "yes" if found.fits else "no"
    lines.append(("fits", f"{answer}, on {found.gpu.name} with a batch of {found.batch} a replica: {each}"))
    if squeeze := found.squeeze:
        lines.append(("", squeeze))
    out.items([*lines, *(("note", note) for note in found.notes)])


def _tell_largest(out: Out, found: LargestBatch) -> int:
    if out.as_json:
        out.data(dataclasses.asdict(found))
        return 0
    taken = found.account
    ends = " or more: larger ones are not tried" if found.too_large is None else ""
    pairs = [("largest batch", f"{found.batch:,}{ends}")]
    pairs.append(("device", f"{format_size(taken.device_used_bytes)} of {format_size(taken.device_bytes)}"))
    if taken.squeeze:
        pairs.append(("fits", taken.squeeze))
    if found.too_large is not None and found.too_large.out_of_memory:
        pairs.append(("one more", found.too_large.out_of_memory))
    out.items([*pairs, *(("note", note) for note in taken.notes)])
    return 0


@predict.command()
@_target
@_gpu
@click.option("--storage", metavar="RUN", help="Feed it from storage that `fairmile benchmark storage` measured.")
@click.option("--sample-size", default="0", metavar="SIZE", help="Bytes of one sample as it is stored.")
@click.option("--workers", type=click.IntRange(min=1), default=1, help="Processes that load samples.")
@click.option("--decode", default="0s", metavar="TIME", help="What one of them takes for a sample beside reading.")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write a page with the roofline, too.")
@json_option
def time(out: Out, target: str, arguments: Sequence[str], gpu: str, **options: Any) -> None:
    """Tell how long a step takes, what bounds it, and its energy.

    \b
    Examples:
      fairmile predict time step.py:build -a batch=64 --gpu h100 --sample-size 150KB --decode 1ms
    """
    workspace = Workspace.open()
    found = workspace.predict.time(
        target,
        gpu=gpu,
        arguments=_arguments(arguments),
        storage=_storage(workspace, options["storage"]),
        sample_bytes=_size(options["sample_size"]),
        workers=options["workers"],
        decode_s=parse_duration(options["decode"]),
        **_how(options),
    )
    if options["output"] is not None:
        write_atomic(options["output"], time_page(found))
    if out.as_json:
        out.data(found.as_dict())
        return
    _tell_time(out, found)


def _size(text: str) -> int:
    return parse_size(int(text) if text.isdecimal() else text)


def _storage(workspace: Workspace, reference: str | None) -> Mapping[str, float] | None:
    """Return what the first folder of a storage evaluation delivers."""
    if reference is None:
        return None
    metrics = workspace.runs.get(reference).metrics
    starts = [f"{name.rpartition('.')[0]}." for name in metrics if name.startswith("storage.")]
    if not starts:
        raise UsageError(f"run {reference} measured no storage", hint="`fairmile benchmark storage FOLDER` does")
    start = starts[0]
    return {name.removeprefix(start): metric.value for name, metric in metrics.items() if name.startswith(start)}


def _tell_time(out: Out, found: TimePrediction) -> None:
    step = found.paced
    out.table(
        ("operator", "calls", "time", "of the step", "bound", "from"),
        [
            (
                line.name,
                line.count,
                format_duration(line.device_s),
                f"{line.device_s / step.step_time_s:.1%}",
                line.bound,
                line.how,
            )
            for line in step.top[:_TOP]
        ],
    )
    between = "{} to {}".format(*map(format_duration, found.interval_s))
    if found.bound == "input" and step.high_s <= step.step_time_s:
        between = f"as given for its input; {format_duration(found.step.step_time_s)} were that there in time"
    pairs = [
        ("step", f"{format_duration(found.step_time_s)}  ({between})"),
        ("samples", f"{found.batch / found.step_time_s:,.1f} a second with a batch of {found.batch}"),
        ("bound by", found.bound),
        ("device", f"works {step.utilisation:.0%} of the time on {step.device}"),
        ("arithmetic", f"{step.flops / 1e12:.4g} Tflop, {step.flops / step.step_time_s / 1e12:.3g} Tflop/s"),
        ("memory", f"{format_size(step.moved_bytes)} moved, {format_size(step.least_bytes)} at least"),
    ]
    if found.energy is not None:
        energy = found.energy
        pairs.append(
            (
                "energy",
                f"{energy.joules:.3g} J a step, {energy.low_j:.3g} to {energy.high_j:.3g}, {energy.power_w:.0f} W",
            )
        )
    if found.input is not None:
        pairs.append(("input", found.input.sentence))
    out.items([*pairs, *(("note", note) for note in step.notes)])


@predict.command()
@_target
@click.option("--on", required=True, metavar="SYSTEM[:PARTITION]", help="The machine; `fairmile system ls` shows them.")
@click.option("--gpus", default="1..64", show_default=True, metavar="COUNTS", help="1..4096 (doubling) or 1,2,8.")
@click.option("--weak", is_flag=True, help="The batch of one GPU stays the same, not that of the step.")
@click.option("--batch", type=click.IntRange(min=1), help="Of the whole step, with --weak of one GPU.")
@click.option("--batch-argument", default="", metavar="NAME", help="Which argument is the batch.")
@click.option("--samples", type=float, help="Tell time, GPU-hours and energy of so many samples in all.")
@click.option("--price", type=float, metavar="AMOUNT", help="Of a GPU-hour, in any currency; with --samples.")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write a page with the curves, too.")
@json_option
def scaling(out: Out, target: str, arguments: Sequence[str], on: str, gpus: str, **options: Any) -> None:
    """Tell on how many GPUs of a system it is worth it, and how to spread the model over them.

    \b
    Examples:
      fairmile predict scaling gpt.yaml --on jupiter --gpus 64..4096 --batch 1024
    """
    found = Workspace.open().predict.scaling(
        target,
        on,
        parse_gpus(gpus),
        mode="weak" if options["weak"] else "strong",
        batch=options["batch"],
        arguments=_arguments(arguments),
        batch_argument=options["batch_argument"],
        goal=Goal(options["samples"], options["price"]),
        **_how(options),
    )
    if options["output"] is not None:
        write_atomic(options["output"], scaling_page(found, title=f"{target} on {on}"))
    if out.as_json:
        out.data({"target": target, "on": on, **found.as_dict()})
        return
    _tell_scaling(out, found)


def _tell_scaling(out: Out, found: ScalingPrediction) -> None:
    out.table(
        ("GPUs", "batch", "step", "samples/s", "efficiency", "communication", "memory", "energy/sample", "how"),
        [_scaling_row(row) for row in found.rows],
    )
    if any(row.wall_s is not None for row in found.rows):
        out.table(
            ("GPUs", "time in all", "GPU-hours", "energy", "cost"),
            [_cost_row(row) for row in found.rows if row.plan is not None],
        )
    if found.worth_up_to is None:
        out.say("not possible on any of these numbers of GPUs")
    else:
        beyond = [row for row in found.rows if row.gpus > found.worth_up_to]
        end = ", the most that were asked for" if not beyond else ""
        if beyond and all(row.plan is None for row in beyond):
            end = ", beyond which there is no plan"
        out.say(f"worth it up to {found.worth_up_to:,} GPUs{end}: efficiency stays at {found.threshold:.0%} or above")
    for note in found.notes:
        out.say(f"note: {note}")


def _scaling_row(row: ScalingRow) -> tuple[str, ...]:
    said, plan = row.as_dict(), row.plan
    if plan is None:
        return (f"{row.gpus:,}", f"{row.global_batch:,}", "", "", "", "", "", "", row.reason)
    energy = f"{row.energy_per_sample_j:.3g} J" if row.energy_per_sample_j is not None else ""
    return (
        f"{row.gpus:,}",
        f"{row.global_batch:,}",
        format_duration(plan.step_time_s),
        f"{said['samples_per_s']:,.1f}",
        f"{row.efficiency:.0%}" if row.efficiency is not None else "",
        f"{said['communication_share']:.0%}",
        format_size(said["memory_bytes"]),
        energy,
        spread_words(plan.layout),
    )


def _cost_row(row: ScalingRow) -> tuple[str, ...]:
    """Return what all samples take on so many GPUs; energy is that of GPUs at full power."""
    return (
        f"{row.gpus:,}",
        format_duration(row.wall_s or 0.0),
        f"{row.gpu_hours or 0.0:,.3g}" if (row.gpu_hours or 0.0) < 1000 else f"{row.gpu_hours:,.0f}",
        f"{row.energy_j / 3.6e6:,.4g} kWh" if row.energy_j is not None else "",
        f"{row.cost:,.2f}" if row.cost is not None else "",
    )


@predict.command()
@click.argument("targets", metavar="[TARGET]...", nargs=-1)
@click.option(
    *("--for", "lasting"),
    default="120s",
    show_default=True,
    metavar="TIME",
    help="How long it may take in all, some seconds to begin and to end aside.",
)
@click.option("--device", default="cuda", show_default=True, metavar="NAME", help="cuda, cuda:1 or cpu.")
@click.option("--gpu", default="", help="What kind of GPU that is.  [default: what this machine has]")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write the table there, not to the workspace.")
@click.option("--dry-run", is_flag=True, help="Say how many operators would be measured; measure nothing.")
@json_option
def calibrate(out: Out, targets: Sequence[str], lasting: str, dry_run: bool, **options: Any) -> None:
    """Measure operators on this machine's GPU once; predictions for it then go by them first.

    The operators of each TARGET come first, then a general list; a table goes on where it ended. What was
    not measured is still told by the table that comes along, where there is one for that kind of GPU.
    Tracing targets, listing operators and starting to measure come off the time, at most three quarters of it.

    \b
    Examples:
      fairmile predict calibrate --dry-run
      fairmile predict calibrate --device cpu --for 2s -o cpu.csv
    """
    done = Workspace.open().predict.calibrate(
        targets, for_s=parse_duration(lasting), device_name=options["device"], gpu=options["gpu"],
        file=options["output"], dry_run=dry_run,
    )  # fmt: skip
    if out.as_json:
        out.data(dataclasses.asdict(done))
        return
    if dry_run:
        out.say(f"would measure {done.left:,} operators")
        return
    out.say(
        f"{done.rows:,} operators, {done.measured:,} of them new, {done.failed:,} failed, {done.left:,} not reached"
    )


@predict.command()
@click.option("--dry-run", is_flag=True, help="Say what would be learnt; keep nothing.")
@json_option
def learn(out: Out, dry_run: bool) -> None:
    """Learn from the runs of the workspace: how fast its own GPUs really are, by kind of operator.

    Benchmarks that trained on one GPU count. Predictions of time then follow them, no farther than they prove.

    \b
    Examples:
      fairmile predict learn
    """
    workspace = Workspace.open()
    ledger = workspace.runs
    runs = (ledger.get(row.id) for row in ledger.rows() if row.state == "done")
    steps = measured_steps(runs, workspace.predict)
    learnt = [workspace.predict.learn(gpu, found, dry_run=dry_run) for gpu, found in steps.items()]
    if out.as_json:
        out.data({"corrections": [dataclasses.asdict(each) for each in learnt], "dry_run": dry_run})
        return
    rows = [
        (each.device, kind, f"{factor:.3f}", len(each.runs)) for each in learnt for kind, factor in each.factors.items()
    ]
    out.table(("gpu", "operators", "factor", "runs"), rows)
    if not learnt:
        out.say("no run of a benchmark on a single GPU tells its speed yet")
