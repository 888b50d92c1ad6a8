"""`fairmile predict`: memory, time and scaling of a job before it runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click

from fairmile.base.errors import UsageError
from fairmile.base.units import format_duration, format_size, parse_size, parse_time
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.options import DRY_RUN, SectionedCommand
from fairmile.cli.out import Out, json_output
from fairmile.costs.devices import device_names
from fairmile.costs.operators.calibrate import Calibrated
from fairmile.costs.operators.refine import Corrections
from fairmile.predict.characterization import Characterization
from fairmile.predict.fake_device.request import FORMS, MODES, PRECISIONS
from fairmile.predict.memory.account import MemoryAccount, SizeInterval
from fairmile.predict.memory.largest_batch import LargestBatch
from fairmile.predict.memory.sharding import Layout, RankMemory
from fairmile.predict.predict import GPU
from fairmile.predict.results import MemoryPrediction, TimePrediction
from fairmile.predict.scaling.curves import Goal, ScalingPrediction, ScalingRow, lost_words, parse_gpus
from fairmile.reports.predict_page import spread_words
from fairmile.workspace import Workspace

F = TypeVar("F", bound=Callable[..., Any])
_TOP = 8


class _PredictCommand(SectionedCommand):
    sections: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Step": (
            *("-a", "--precision", "--accumulate", "--ranks", "--checkpointing", "--channels-last"),
            *("--optimizer-form", "--inference", "--assume", "--batch-argument", "--allocator"),
        ),
        "GPU": ("--gpu", "--list-gpus", "--largest"),
        "Parallelism": (
            *("--data", "--zero", "--tensor", "--sequence-parallel"),
            *("--pipeline", "--micro-batches", "--offload"),
        ),
        "Input pipeline": ("--storage", "--sample-size", "--workers", "--decode"),
        "Scaling": ("--on", "--gpus", "--weak", "--batch", "--collectives", "--samples", "--price"),
    }


@click.group(cls=LazyGroup)
def predict() -> None:
    """Predict memory, time and scaling of a training step before it runs.

    TARGET is a benchmark, a model of the catalog, FILE.py:FUNCTION, or a YAML description.
    FUNCTION returns an object with `model`, `loss`, `optimizer` and `precision`. `loss(model)` creates
    the inputs and returns the loss. `optimizer(parameters)` returns the optimizer; None means inference.
    No GPU is needed.
    """


def _target_options(command: F) -> F:
    """Give a command a target and how it is run."""
    options: list[Callable[[F], F]] = [
        click.argument("target", metavar="TARGET"),
        click.option(
            "-a", "arguments", multiple=True, metavar="NAME=VALUE", help="Set an argument of the target; repeatable."
        ),
        click.option("--precision", type=click.Choice(PRECISIONS), help="Override the precision of the target."),
        click.option(
            "--accumulate",
            type=click.IntRange(min=1),
            metavar="N",
            default=1,
            show_default=True,
            help="Number of batches per optimizer step.",
        ),
        click.option(
            "--ranks",
            type=click.IntRange(min=1),
            metavar="N",
            help="Processes of a program that shards itself, as by fully_shard; one is predicted.  "
            "[default: WORLD_SIZE or 1]",
        ),
        click.option(
            "--checkpointing",
            is_flag=True,
            help="Recompute activations; for YAML descriptions and models with gradient_checkpointing_enable.",
        ),
        click.option("--channels-last", is_flag=True, help="Use channels-last memory format."),
        click.option("--optimizer-form", type=click.Choice(FORMS), help="Implementation of the optimizer step."),
        click.option(
            "--compile", type=click.Choice(MODES), help="Predict the step as compiled by torch.compile in this mode."
        ),
        click.option("--inference", is_flag=True, help="Predict the forward pass only."),
        click.option(
            "--assume",
            multiple=True,
            metavar="FACT",
            help="Declare what values that depend on weights decide: balanced-routing (all experts get as many words), "
            "selected=SHARE (of a mask); repeatable.  [default: random values decide]",
        ),
    ]
    for each in reversed(options):
        command = each(command)
    return command


def _gpu_options(command: F) -> F:
    return click.option("--gpu", default=GPU, show_default=True, help="GPU model; --list-gpus lists them.")(
        click.option(
            "--list-gpus",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_list_gpus,
            help="List the known GPU models and exit.",
        )(command)
    )


def _page_option(content: str) -> Callable[[F], F]:
    return click.option(
        "--output",
        "-o",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"Also write an HTML page with {content} to this file.",
    )


def _list_gpus(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo("\n".join(device_names()))
        context.exit()


def _trace_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that change how the target is run, for the API; None leaves it to the target."""
    fields: dict[str, Any] = {name: options[name] for name in ("precision", "accumulate", "optimizer_form")}
    fields["assume"] = options["assume"] or None
    fields["ranks"] = options["ranks"]
    for name in ("checkpointing", "channels_last"):
        fields[name] = True if options[name] else None
    if options["inference"]:
        fields["training"] = False
    if options["compile"]:
        fields["compile"] = options["compile"]
    return fields


def _parse_arguments(texts: Sequence[str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"-a {text!r} is not NAME=VALUE", hint="write -a NAME=VALUE, such as -a batch=64")
        arguments[name] = _parse_value(value)
    return arguments


def _parse_value(text: str) -> Any:
    """Return numbers, true, false, null and lists as what they look like, anything else as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@predict.command(cls=_PredictCommand)
@_target_options
@_gpu_options
@click.option("--largest", is_flag=True, help="Find the largest batch that fits.")
@click.option("--batch-argument", default="", metavar="NAME", help="Argument that sets the batch size, for --largest.")
@click.option("--allocator", default="", metavar="TEXT", help="Value of PYTORCH_CUDA_ALLOC_CONF.")
@click.option(
    "--data",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Degree of data parallelism (number of replicas).",
)
@click.option(
    "--zero", type=click.IntRange(0, 3), metavar="N", default=0, show_default=True, help="ZeRO stage; 3 is FSDP."
)
@click.option(
    "--tensor",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Degree of tensor parallelism.",
)
@click.option("--sequence-parallel", is_flag=True, help="Enable sequence parallelism among the tensor-parallel ranks.")
@click.option(
    "--pipeline",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Number of pipeline stages.",
)
@click.option(
    "--micro-batches",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Number of micro-batches per step and replica.",
)
@click.option("--offload", type=click.Choice(["host", "nvme"]), help="Offload the optimizer state.")
@_page_option("the memory timeline")
@json_output(MemoryPrediction, LargestBatch)
def memory(out: Out, target: str, arguments: Sequence[str], gpu: str, largest: bool, **options: Any) -> int:
    """Predict the GPU memory of a training step.

    Exit code: 0 if the step fits, 1 if it does not, 2 if that cannot be determined, because the step could
    be traced only in part.

    \b
    Examples:
      fairmile predict memory step.py:build -a batch=64
      fairmile predict memory gpt.yaml --gpu a100-80gb --data 8 --zero 3
    """
    workspace, layout = Workspace.open(), _parse_layout(options)
    predictions = workspace.predict
    how = {"arguments": _parse_arguments(arguments), "allocator": options["allocator"], **_trace_fields(options)}
    if largest:
        if options["output"] is not None or layout is not None:
            raise UsageError("--largest applies to one GPU, without a page", hint=_remove_hint(options))
        batch = predictions.largest_batch(target, gpu=gpu, batch_argument=options["batch_argument"], **how)
        out.show(batch, lambda batch: _print_largest(out, batch))
        return 0
    prediction = predictions.memory(target, gpu=gpu, layout=layout, **how)
    if options["output"] is not None:
        workspace.reports.write_page(prediction, options["output"])
    out.show(prediction, lambda prediction: _print_memory(out, prediction))
    if prediction.fits is None:
        if out.as_json:
            out.say(f"cannot determine whether it fits: {prediction.stopped}")
        return 2
    return 0 if prediction.fits else 1


def _remove_hint(options: Mapping[str, Any]) -> str:
    if options["output"] is not None:
        return "remove --output, then write a page for that batch without --largest"
    return "remove the options that shard the model, such as --data or --zero"


def _parse_layout(options: Mapping[str, Any]) -> Layout | None:
    names = ("data", "zero", "tensor", "sequence_parallel", "pipeline", "micro_batches")
    given = {name: options[name] for name in names}
    if options["offload"]:
        given["optimizer_on"] = options["offload"]
    return Layout(**given) if given != {name: getattr(Layout(), name) for name in names} else None


def _print_memory(out: Out, prediction: MemoryPrediction) -> None:
    if prediction.rank is not None and prediction.layout is not None:
        _print_rank(out, prediction, prediction.rank, prediction.layout)
        return
    estimate = prediction.estimate
    account = estimate if isinstance(estimate, MemoryAccount) else None
    parts = [(name.replace("_", " "), format_size(size)) for name, size in estimate.breakdown.items() if size]
    out.table(("part of the peak", "size"), parts)

    def interval(limits: SizeInterval | None) -> str:
        if limits is None:
            return ""
        end = "or more" if prediction.stopped else f"to {format_size(limits.high)}"
        return f"  ({format_size(limits.low)} {end})"

    used = f"{format_size(prediction.device_used_bytes)} of {format_size(prediction.gpu.memory_bytes)}"
    lines = [
        (
            "allocated",
            format_size(estimate.peak_allocated_bytes) + interval(account.allocated_span if account else None),
        ),
        ("reserved", format_size(estimate.peak_reserved_bytes) + interval(account.reserved_span if account else None)),
        ("device", used + interval(account.device_span if account else None)),
    ]
    if account is not None:
        peak = account.peak
        call = f"{peak.op} {peak.module}".strip()
        where = ": ".join(filter(None, (peak.phase, call)))  # a peak between two calls has neither
        lines.append(("peak", ", ".join(filter(None, (f"in step {peak.step + 1}", where)))))
        if account.out_of_memory:
            lines.append(("ends with", account.out_of_memory))
    answer = {True: "yes", False: "no", None: "cannot determine"}[prediction.fits]
    lines.append(("fits", f"{answer}, on {prediction.gpu.name} with a batch of {prediction.batch}"))
    if prediction.stopped:
        lines.append(("lower bound", f"the step was traced only in part: {prediction.stopped}"))
    if squeeze := prediction.squeeze:
        lines.append(("", squeeze))
    out.items([*lines, *(("note", note) for note in prediction.notes)])


def _print_rank(out: Out, prediction: MemoryPrediction, rank: RankMemory, layout: Layout) -> None:
    """Print what the fullest rank holds, and how much the unsharded step would use."""
    parts = [(name, format_size(round(size))) for name, size in rank.breakdown.items() if size]
    out.table(("part of the fullest rank", "size"), parts)
    lines = [(name, format_size(round(getattr(rank, f"{name}_bytes")))) for name in ("allocated", "reserved")]
    used = f"{format_size(prediction.device_used_bytes)} of {format_size(prediction.gpu.memory_bytes)}"
    lines.append(("device", used))
    offloaded = (("host", rank.host_bytes), ("NVMe", rank.nvme_bytes))
    lines += [(f"offloaded to {name}", format_size(round(size))) for name, size in offloaded if size]
    lines.append(("unsharded", f"{format_size(prediction.estimate.device_used_bytes)} on one GPU"))
    each = f"each of {layout.ranks} ranks ({spread_words(layout)})" if layout.ranks > 1 else spread_words(layout)
    answer = "yes" if prediction.fits else "no"
    lines.append(("fits", f"{answer}, on {prediction.gpu.name} with a batch of {prediction.batch} a replica: {each}"))
    if squeeze := prediction.squeeze:
        lines.append(("", squeeze))
    out.items([*lines, *(("note", note) for note in prediction.notes)])


def _print_largest(out: Out, largest: LargestBatch) -> None:
    account = largest.account
    end = " or more (larger batches were not tried)" if largest.too_large is None else ""
    pairs = [("largest batch", f"{largest.batch:,}{end}")]
    pairs.append(("device", f"{format_size(account.device_used_bytes)} of {format_size(account.device_bytes)}"))
    if account.squeeze:
        pairs.append(("fits", account.squeeze))
    if largest.too_large is not None and largest.too_large.out_of_memory:
        pairs.append(("one more", largest.too_large.out_of_memory))
    out.items([*pairs, *(("note", note) for note in account.notes)])


@predict.command(cls=_PredictCommand)
@_target_options
@_gpu_options
@click.option(
    "--storage", metavar="RUN", help="Run of `fairmile benchmark storage` that measured where the samples are."
)
@click.option("--sample-size", default="0", metavar="SIZE", help="Stored size of one sample, such as 150KB.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Number of data loader processes.",
)
@click.option("--decode", default="0s", metavar="TIME", help="Time for one worker to decode a sample, such as 1ms.")
@_page_option("the roofline")
@json_output(TimePrediction)
def time(out: Out, target: str, arguments: Sequence[str], gpu: str, **options: Any) -> None:
    """Predict how long a step takes, what bounds it, and its energy.

    \b
    Examples:
      fairmile predict time step.py:build -a batch=64 --sample-size 150KB --decode 5ms
    """
    workspace = Workspace.open()
    prediction = workspace.predict.time(
        target,
        gpu=gpu,
        arguments=_parse_arguments(arguments),
        storage=options["storage"],
        sample_bytes=_parse_bytes(options["sample_size"]),
        workers=options["workers"],
        decode_s=parse_time(options["decode"]),
        **_trace_fields(options),
    )
    if options["output"] is not None:
        workspace.reports.write_page(prediction, options["output"])
    out.show(prediction, lambda prediction: _print_time(out, prediction))


def _parse_bytes(text: str) -> int:
    return parse_size(int(text) if text.isdecimal() else text)


def _print_time(out: Out, prediction: TimePrediction) -> None:
    step = prediction.paced
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
    interval = "{} to {}".format(*map(format_duration, prediction.interval_s))
    if prediction.bound == "input" and step.high_s <= step.step_time_s:
        interval = f"set by its input; {format_duration(prediction.step.step_time_s)} without waiting for it"
    pairs = [
        ("step", f"{format_duration(prediction.step_time_s)}  ({interval})"),
        ("samples", f"{prediction.batch / prediction.step_time_s:,.1f} a second with a batch of {prediction.batch}"),
        ("bound by", prediction.bound),
        ("device", f"busy {step.utilisation:.0%} of the time on {step.device}"),
        ("arithmetic", f"{step.flops / 1e12:.4g} Tflop, {step.flops / step.step_time_s / 1e12:.3g} Tflop/s"),
        ("memory", f"{format_size(step.moved_bytes)} moved, lower bound {format_size(step.least_bytes)}"),
    ]
    if (energy := prediction.energy) is not None:
        interval = f"{energy.low_j:.3g} to {energy.high_j:.3g}"
        pairs.append(("energy", f"{energy.joules:.3g} J a step, {interval}, {energy.power_w:.0f} W"))
    if prediction.input is not None:
        pairs.append(("input", prediction.input.sentence))
    out.items([*pairs, *(("note", note) for note in step.notes)])


@predict.command(cls=_PredictCommand)
@_target_options
@click.option(
    "--on", required=True, metavar="SYSTEM[:PARTITION]", help="System to scale on; `fairmile system ls` lists them."
)
@click.option(
    "--gpus", default="1..64", show_default=True, metavar="COUNTS", help="Numbers of GPUs: 1..4096 (doubling) or 1,2,8."
)
@click.option("--weak", is_flag=True, help="Weak scaling: keep the batch per GPU, not the global batch.")
@click.option(
    "--batch", type=click.IntRange(min=1), metavar="N", help="Global batch size; with --weak, batch size per GPU."
)
@click.option("--batch-argument", default="", metavar="NAME", help="Argument that sets the batch size.")
@click.option(
    "--collectives",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Times of collectives measured there, by `fairmile benchmark collectives -o FILE` or nccl-tests.",
)
@click.option("--samples", type=float, help="Predict time, GPU-hours and energy to train on this many samples.")
@click.option("--price", type=float, metavar="AMOUNT", help="Price of a GPU-hour in any currency; needs --samples.")
@_page_option("the scaling curves")
@json_output(ScalingPrediction)
def scaling(out: Out, target: str, arguments: Sequence[str], on: str, gpus: str, **options: Any) -> None:
    """Predict how training scales over the GPUs of a system, with the fastest layout for each count.

    \b
    Examples:
      fairmile predict scaling gpt.yaml --on jupiter --gpus 64..4096 --batch 1024
    """
    workspace = Workspace.open()
    prediction = workspace.predict.scaling(
        target,
        on,
        parse_gpus(gpus),
        mode="weak" if options["weak"] else "strong",
        batch=options["batch"],
        arguments=_parse_arguments(arguments),
        batch_argument=options["batch_argument"],
        collectives=options["collectives"],
        goal=Goal(options["samples"], options["price"]),
        **_trace_fields(options),
    )
    if options["output"] is not None:
        workspace.reports.write_page(prediction, options["output"], title=f"{target} on {on}")
    out.show(prediction, lambda prediction: _print_scaling(out, prediction))


@predict.command(cls=_PredictCommand)
@_target_options
@_gpu_options
@click.option("--on", default="", metavar="SYSTEM[:PARTITION]", help="Also predict weak scaling on this system.")
@click.option(
    "--gpus", default="1..64", show_default=True, metavar="COUNTS", help="Numbers of GPUs: 1..4096 (doubling) or 1,2,8."
)
@click.option("--sample-size", default="0", metavar="SIZE", help="Stored size of one sample, such as 150KB.")
@click.option(
    "--measured",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="JSON lines with measured steps of this target, to show beside the predictions.",
)
@_page_option("everything that was predicted")
@json_output(Characterization)
def characterize(out: Out, target: str, arguments: Sequence[str], gpu: str, **options: Any) -> None:
    """Predict memory, roofline, input needs, communication and scaling, beside what was measured.

    \b
    Examples:
      fairmile predict characterize step.py:build -a batch=16 --sample-size 150KB -o step.html
    """
    workspace = Workspace.open()
    found = workspace.predict.characterize(
        target,
        gpu=gpu,
        arguments=_parse_arguments(arguments),
        system=options["on"],
        gpus=parse_gpus(options["gpus"]),
        sample_bytes=_parse_bytes(options["sample_size"]),
        measured=options["measured"],
        **_trace_fields(options),
    )
    if options["output"] is not None:
        workspace.reports.write_page(found, options["output"])
    out.show(found, lambda found: _print_characterization(out, found))


def _print_characterization(out: Out, found: Characterization) -> None:
    out.items(found.facts())
    if rows := found.comparison():
        table = [
            (row["quantity"], f"{row['predicted']:.4g}", f"{row['measured']:.4g}", f"{row['off']:+.1%}") for row in rows
        ]
        out.table(("quantity", "predicted", "measured", "off by"), table)


def _print_scaling(out: Out, prediction: ScalingPrediction) -> None:
    rows = prediction.rows
    out.table(
        ("GPUs", "batch", "step", "samples/s", "efficiency", "lost to", "memory", "energy/sample", "layout"),
        [_scaling_row(row) for row in rows],
    )
    if any(row.wall_s is not None for row in rows):
        out.table(
            ("GPUs", "total time", "GPU-hours", "energy", "cost"),
            [_cost_row(row) for row in rows if row.plan is not None],
        )
    if prediction.worth_up_to is None:
        out.say("no layout fits on any of these numbers of GPUs")
    else:
        beyond = [row for row in rows if row.gpus > prediction.worth_up_to]
        end = "" if beyond else ", the largest number requested"
        if beyond and all(row.plan is None for row in beyond):
            end = ", beyond which no layout fits"
        efficiency = f"efficiency stays at {prediction.threshold:.0%} or above"
        count = f"{prediction.worth_up_to:,} GPU{'' if prediction.worth_up_to == 1 else 's'}"
        out.say(f"worth it up to {count}{end}: {efficiency}")
    for note in prediction.notes:
        out.say(f"note: {note}")


def _scaling_row(row: ScalingRow) -> tuple[str, ...]:
    plan = row.plan
    if plan is None:
        return (f"{row.gpus:,}", f"{row.global_batch:,}", "", "", "", "", "", "", row.reason)
    energy = f"{row.energy_per_sample_j:.3g} J" if row.energy_per_sample_j is not None else ""
    return (
        f"{row.gpus:,}",
        f"{row.global_batch:,}",
        format_duration(plan.step_time_s),
        f"{row.samples_per_s:,.1f}",
        f"{row.efficiency:.0%}" if row.efficiency is not None else "",
        lost_words(row.lost),
        format_size(round(plan.memory.device_bytes)),
        energy,
        spread_words(plan.layout),
    )


def _cost_row(row: ScalingRow) -> tuple[str, ...]:
    """Return the cost of training on all samples; energy is that of GPUs at full power."""
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
    "--for", "lasting", default="120s", show_default=True, metavar="TIME", help="Time limit of the whole measurement."
)
@click.option(
    "--device", default="cuda", show_default=True, metavar="NAME", help="Device to measure: cuda, cuda:1 or cpu."
)
@click.option("--gpu", default="", help="GPU model of the device.  [default: detected]")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), help="Write the table to this file instead of the workspace."
)
@DRY_RUN
@json_output(Calibrated)
def calibrate(out: Out, targets: Sequence[str], lasting: str, dry_run: bool, **options: Any) -> None:
    """Measure operators on this machine's GPU, so that predictions use measured times.

    Measures the operators of each TARGET first, then a general list. A later call extends the table.
    Operators that were not measured use the built-in table of that GPU model, if there is one.

    \b
    Examples:
      fairmile predict calibrate --dry-run
      fairmile predict calibrate --device cpu --for 2s -o cpu.csv
    """
    calibrated = Workspace.open().predict.calibrate(
        targets, for_s=parse_time(lasting), device_name=options["device"], gpu=options["gpu"],
        file=options["output"], dry_run=dry_run,
    )  # fmt: skip
    out.show(calibrated, lambda calibrated: out.say(_calibrated_text(calibrated, dry_run)))


def _calibrated_text(calibrated: Calibrated, dry_run: bool) -> str:
    return f"would measure {calibrated.left:,} operators" if dry_run else calibrated.summary()


@predict.command()
@DRY_RUN
@json_output(Corrections)
def learn(out: Out, dry_run: bool) -> None:
    """Correct predicted operator times using the runs of this workspace.

    Uses benchmark runs that trained on a single GPU. Later time predictions apply the corrections.

    \b
    Examples:
      fairmile predict learn
    """
    out.show(
        Workspace.open().predict.learn_from_runs(dry_run=dry_run),
        lambda corrections: _print_corrections(out, corrections),
    )


def _print_corrections(out: Out, corrections: Corrections) -> None:
    rows = [
        (each.device, kind, f"{factor:.3f}", len(each.runs))
        for each in corrections
        for kind, factor in each.factors.items()
    ]
    out.table(("gpu", "operators", "factor", "runs"), rows)
    if not corrections:
        out.say("no corrections: no run of a benchmark on a single GPU measured its speed yet")
