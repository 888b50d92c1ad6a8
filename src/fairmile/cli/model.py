"""`fairmile model`: describe, convert, explore, package and export model files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import click

from fairmile.base.errors import UsageError
from fairmile.base.units import format_size, parse_time
from fairmile.cli.job_options import place_options, spec_from
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.options import DRY_RUN, SectionedCommand
from fairmile.cli.out import Out, json_output
from fairmile.envs.containers import RUNTIMES as CONTAINERS
from fairmile.jobs.spec import Resources
from fairmile.models.convert.conversion import Conversion
from fairmile.models.convert.request import TARGETS, function_words, rounding_words
from fairmile.models.explore.request import CRITERIA, DEVICES, PRECISIONS, RUNTIMES
from fairmile.models.explore.results import Exploration, exploration_columns, exploration_row, unpredicted_reasons
from fairmile.models.formats.description import ModelDescription, TensorSpec
from fairmile.models.huggingface import HubFolder
from fairmile.models.packaging import BASE, ModelPackage
from fairmile.runs.record.values import parse_params
from fairmile.workspace import Workspace

_SHOWN_WEIGHTS = 12
_SHOWN_OPERATORS = 12
_OF_A_JOB = (
    *("on", "software", "variant", "partition", "account", "qos", "gpus_per_node", "cpus_per_task", "memory", "option"),
    "job_time",
)


class _Explore(SectionedCommand):
    sections: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Combinations": ("--runtime", "--precision", "--batch", "--threads", "--device"),
        "Measurement": ("--best", "--data", "--max-loss", "--time", "--seed", "--again"),
        "Model": ("--code", "--weights", "--param", "--input", "--trust-pickle"),
        "System and resources": (
            *("--on", "--job-time", "--account", "--partition", "--qos", "--gpus-per-node", "--cpus-per-task"),
            *("--memory", "--software", "--environment", "--option"),
        ),
    }


@click.group(cls=LazyGroup)
def model() -> None:
    """Describe, convert, explore, package and export model files.

    FILE|NAME is the path of a model file or folder, or the name of a model in the catalog.
    """


@model.command(short_help="Describe a model file: format, inputs, outputs, parameters.")
@click.argument("name", metavar="FILE|NAME")
@click.option("--weights", is_flag=True, help="List all weights with their types and shapes.")
@json_output(ModelDescription)
def show(name: str, weights: bool, out: Out) -> int:
    """Describe a model file: format, inputs, outputs, parameters, operators.

    The format is recognised by content. No framework is imported and nothing of the file is executed.

    \b
    Example:
      fairmile model show tides.onnx
    """
    described = Workspace.open(on_progress=out.progress).models.describe(name)
    out.show(described, lambda each: _print_description(each, weights, out))
    return 0


@model.command(short_help="Convert a model and prove that it computes the same.")
@click.argument("name", metavar="FILE|NAME")
@click.option(
    "--to",
    required=True,
    metavar="FORMAT",
    help=f"Format: {', '.join(TARGETS)}.",
)
@click.option("-o", "--out", "target", metavar="FILE", help="File to write.  [default: named after the model]")
@click.option("--code", default="", metavar="FILE.py:FUNCTION", help="Code that builds the model; or MODULE:CLASS.")
@click.option("--weights", default="", metavar="RUN|FILE", help="Weights of a model in the catalog.")
@click.option("-p", "--param", "params", multiple=True, metavar="NAME=VALUE", help="Argument of the code; repeatable.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=TYPE[SIZES]",
    help="Describe an input, as x=float32[batch,3]; repeatable.",
)
@click.option("--data", default="", metavar="FILE", help="Also compare on inputs from this .npy or .npz file.")
@click.option(
    "--validate-on",
    default="",
    metavar="RUN",
    help="Compare and score on the validation data of this benchmark run.  [default: the run of --weights]",
)
@click.option("--map", default="", metavar="FILE", help="Names and layouts in TensorFlow, as YAML or JSON.")
@click.option(
    "--environment",
    default="",
    metavar="ENV",
    help="Environment with TensorFlow and Keras, for savedmodel.  [default: one is built]",
)
@click.option("--trust-pickle", is_flag=True, help="Load a pickle, which can execute any code.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the inputs to compare on.")
@click.option("--replace", is_flag=True, help="Overwrite an existing file.")
@DRY_RUN
@json_output(Conversion)
def convert(
    name: str,
    to: str,
    target: str | None,
    params: tuple[str, ...],
    replace: bool,
    dry_run: bool,
    out: Out,
    **how: Any,
) -> int:
    """Convert a model to another format and prove that it computes the same.

    Source and result are compared on several inputs: other batch sizes, zeros, large values. They must be the same
    function in float64, and the result must round no worse than the source. Otherwise nothing is published, the exit
    code is 1, and the worst inputs are kept in the run.

    \b
    Examples:
      fairmile model convert tides.onnx --to pytorch
      fairmile model convert tides.onnx --to openvino -o tides.xml --dry-run
    """
    converted = Workspace.open(on_progress=out.progress).models.convert(
        name, to, out=target, params=parse_params(params), replace=replace, dry_run=dry_run, **how
    )
    out.show(converted, lambda each: _print_conversion(each, out))
    return 0 if converted.proof is None or converted.holds else 1


@model.command(cls=_Explore, short_help="Measure the best way to run a model: runtime, precision, batch size, threads.")
@click.argument("name", metavar="FILE|NAME")
@click.option(
    "--runtime",
    default="",
    metavar="NAMES",
    help=f"Runtimes: {', '.join(RUNTIMES)}.  [default: all that are installed]",
)
@click.option(
    "--precision", default="fp32", show_default=True, metavar="NAMES", help=f"Precisions: {', '.join(PRECISIONS)}."
)
@click.option("--batch", default="", metavar="SIZES", help="Batch sizes.  [default: 1,8,32]")
@click.option("--threads", default="", metavar="COUNTS", help="Numbers of threads.  [default: all cores]")
@click.option("--device", type=click.Choice(DEVICES), default="cpu", show_default=True, help="Device to run on.")
@click.option("--best", type=click.Choice(CRITERIA), default="latency", show_default=True, help="What to rank by.")
@click.option(
    "--data",
    default="",
    metavar="FILE",
    help="Run on these rows (.npy or .npz); an array `targets` adds the accuracy loss.",
)
@click.option(
    "--max-loss",
    type=float,
    default=0.01,
    show_default=True,
    help="Largest loss of a recommended combination: accuracy, relative RMSE, or outputs.",
)
@click.option(
    "--time",
    "time_s",
    default="2m",
    show_default=True,
    metavar="TIME",
    callback=lambda _, __, text: parse_time(text),
    help="Time limit of the measurements.",
)
@click.option("--code", default="", metavar="FILE.py:FUNCTION", help="Code that builds the model; or MODULE:CLASS.")
@click.option("--weights", default="", metavar="RUN|FILE", help="Weights of a model in the catalog.")
@click.option("-p", "--param", "params", multiple=True, metavar="NAME=VALUE", help="Argument of the code; repeatable.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=TYPE[SIZES]",
    help="Describe an input, as x=float32[batch,3]; repeatable.",
)
@click.option("--trust-pickle", is_flag=True, help="Load a pickle, which can execute any code.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the inputs and of the measurement order.")
@click.option("--again", is_flag=True, help="Measure again, even if an earlier run measured the same.")
@place_options
@click.option(
    "--job-time",
    metavar="TIME",
    help="Time limit of the job.  [default: --time, 10 minutes, and 1 minute for each combination]",
)
@click.option("--environment", default="", metavar="ENV", help="Environment to run in on the system.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write an HTML page with figures to this file.",
)
@DRY_RUN
@json_output(Exploration)
def explore(
    name: str,
    runtime: str,
    precision: str,
    batch: str,
    threads: str,
    params: tuple[str, ...],
    output: Path | None,
    out: Out,
    **options: Any,
) -> int:
    """Measure which runtime, precision, batch size and number of threads run a model best.

    Each combination runs in a process of its own on a fixed set of cores. Measurements alternate until the ranking
    is certain or the time runs out. Combinations that lose more than allowed are measured, but not recommended.

    With --on it is a job on a system, and Fairmile waits for the result.

    \b
    Examples:
      fairmile model explore tides.onnx --batch 1,8,32 --dry-run
      fairmile model explore tides.onnx --on jureca --partition dc-gpu --device cuda --dry-run
      fairmile model explore cosmoflow --precision fp32,bf16 --best throughput --dry-run
    """
    workspace = Workspace.open(on_progress=out.progress)
    explored = workspace.models.explore(
        name,
        runtime=_words(runtime),
        precision=_words(precision),
        batch=_numbers("--batch", batch),
        threads=_numbers("--threads", threads),
        params=parse_params(params),
        **_placed(options),
    )
    out.show(explored, lambda each: _print_exploration(each, out))
    if output is not None and explored.run:
        out.say(f"wrote {workspace.reports.write_page(explored, output)}")
    return 0 if explored.data["decided"] or not explored.run else 1


def _placed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an exploration with those of its job as the resources that they state."""
    job = spec_from({name: options.get(name) for name in _OF_A_JOB} | {"time": options["job_time"]})
    rest = {name: value for name, value in options.items() if name not in _OF_A_JOB}
    if options["on"] == "laptop":
        if job.resources != Resources() or job.software or options["environment"]:
            raise UsageError("options for a job need a system", hint="name one with --on, or omit them")
        return rest
    return {**rest, "system": options["on"], "resources": job.resources, "software": job.software}


def _words(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _numbers(option: str, text: str) -> list[int]:
    words = _words(text)
    wrong = next((each for each in words if not each.isdecimal()), None)
    if wrong is not None:
        raise UsageError(f"{option} {wrong!r} is not a whole number", hint=f"as in {option} 1,8,32")
    return [int(each) for each in words]


def _print_exploration(explored: Exploration, out: Out) -> None:
    out.heading(explored.summary())
    measured = [each for each in explored.candidates if each["state"] == "measured"]
    if measured:
        columns = exploration_columns(explored)
        out.table(columns, [exploration_row(explored, each, columns) for each in measured])
        machine = explored.data["machine"]
        where = machine["gpu"] or machine["name"]
        load = f"load {machine['load'][0]:.1f} to {machine['load'][-1]:.1f} on {machine['cores']} cores"
        if explored.warning:
            out.item(out.colour("warning: ", "yellow"), explored.warning)
        for what, reason in unpredicted_reasons(explored).items():
            out.item(f"{what}: ", reason)
        out.say(f"{explored.data['rounds']} rounds on {where}, {load}; run {explored.run}")
    else:
        planned = [each for each in explored.candidates if each["state"] == "planned"]
        out.table(
            ["runtime", "precision", "batch", "threads"],
            [[each["runtime"], each["precision"], each["batch"], each["threads"] or "all"] for each in planned],
        )
    reasons = {(each["runtime"], each["precision"], each.get("reason", "")): each for each in explored.candidates}
    for (runtime, precision, reason), each in reasons.items():
        if each["state"] == "refused":
            out.item(f"{runtime} {precision}: ", reason)
    if "script" in explored.data:
        out.line()
        out.document(explored.data["script"])


def _print_conversion(converted: Conversion, out: Out) -> None:
    proof = converted.proof
    if proof is None:
        out.line(converted.summary())
        return
    out.heading(f"{converted.source} → {converted.file}" if converted.holds else f"{converted.source}: not published")
    largest = "outputs of another shape, or not finite" if proof["largest"] is None else f"{proof['largest']:.1e}"
    facts = [
        ("way", converted.way),
        ("verdict", "the same within tolerance" if proof["holds"] else "not the same"),
        ("function", function_words(proof)),
        ("rounding", rounding_words(proof)),
        ("largest", f"{largest} relative, by {proof['judge']}"),
        ("typical", "" if proof["typical"] is None else f"{proof['typical']:.1e}"),
        ("tolerance", f"{proof['tolerance']:.1e}: {proof['tolerance_from']}"),
        ("second opinion", proof["second_opinion"]),
        ("worst inputs", converted.worst),
        ("sha256", converted.sha256),
        ("run", converted.run),
        ("card", converted.card),
    ]
    out.items([(label, value) for label, value in facts if value])
    out.line()
    for note in converted.notes:
        out.say(f"note: {note}")
    columns = {"largest": "largest", "typical": "typical"}
    if proof["function"] is not None:
        columns |= {"function": "in float64", "source_error": "source rounds", "result_error": "result rounds"}
    cases: list[dict[str, Any]] = [dict(each) for each in proof["cases"]]
    rows = [[each["inputs"], *(_difference(each[name]) for name in columns)] for each in cases]
    out.table(["inputs", *columns.values()], rows)
    if scores := proof.get("scores"):
        out.line()
        cells = [[name, f"{each['source']:.9g}", f"{each['result']:.9g}"] for name, each in scores.items()]
        out.table(["score", "source", "result"], cells)


def _difference(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


@model.command(short_help="Write a model as a folder for Hugging Face, or upload it.")
@click.argument("name", metavar="FILE|NAME")
@click.option(
    "-o",
    "--out",
    "folder",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write the files into this folder.",
)
@click.option("--upload", default="", metavar="ORG/NAME", help="Upload the folder to this repository, with HF_TOKEN.")
@click.option("--trust-pickle", is_flag=True, help="Export a pickle, which can execute any code.")
@click.option("--replace", is_flag=True, help="Write into a folder that is not empty.")
@DRY_RUN
@json_output(HubFolder)
def export(name: str, folder: Path, upload: str, trust_pickle: bool, replace: bool, dry_run: bool, out: Out) -> int:
    """Write a model as a folder that the Hugging Face hub and its libraries read: README.md and the files.

    Weights of PyTorch become safetensors. --upload sends the folder with the hub's own client.

    \b
    Example:
      fairmile model export tides.onnx -o hub
    """
    exported = Workspace.open(on_progress=out.progress).models.export(
        name, folder, upload=upload, trust_pickle=trust_pickle, replace=replace, dry_run=dry_run
    )
    out.show(exported, lambda each: _print_exported(each, upload if dry_run else "", out, dry_run=dry_run))
    return 0


@model.command(short_help="Write a folder that builds a container image of a model.")
@click.argument("name", metavar="FILE|NAME")
@click.option(
    "-o",
    "--out",
    "folder",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write the files into this folder.",
)
@click.option(
    "--runtime", default="podman", show_default=True, metavar="NAME", help=f"One of: {', '.join(CONTAINERS.names())}."
)
@click.option("--base", default=BASE, show_default=True, metavar="IMAGE", help="Image to start from, with Python.")
@click.option(
    "--no-install",
    "install",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Install nothing; the base image must have all packages.",
)
@click.option("--data", default="data", show_default=True, metavar="FOLDER", help="Data folder to bind at /data.")
@click.option("--trust-pickle", is_flag=True, help="Package a pickle, which can execute any code.")
@click.option("--replace", is_flag=True, help="Write into a folder that is not empty.")
@DRY_RUN
@json_output(ModelPackage)
def package(name: str, folder: Path, out: Out, dry_run: bool, **how: Any) -> int:
    """Write a folder that builds a container image of a model, and print the commands to build and run it.

    The image holds the model and the packages that run it, but no data: bind a folder at /data. The model reads
    inputs.npz there and writes predictions.npz.

    \b
    Examples:
      fairmile model package tides.onnx -o image --dry-run
      fairmile model package tides.onnx -o image --runtime apptainer --data measured
    """
    packaged = Workspace.open(on_progress=out.progress).models.package(name, folder, dry_run=dry_run, **how)
    out.show(packaged, lambda each: _print_package(each, out, dry_run=dry_run))
    return 0


def _print_package(packaged: ModelPackage, out: Out, *, dry_run: bool) -> None:
    for each in packaged.files:
        out.line(f"{'would write' if dry_run else 'wrote   '} {packaged.folder}/{each}")
    if dry_run:
        out.line()
        out.line(packaged.text.rstrip())
    out.line()
    for each in packaged.shell_lines():
        out.line(each)
    for each in packaged.notes:
        out.item("note: ", each)


def _print_exported(exported: HubFolder, upload: str, out: Out, *, dry_run: bool) -> None:
    for each in exported.files:
        out.line(f"{'would write' if dry_run else 'wrote   '} {exported.folder}/{each}")
    if upload:
        out.line(f"would upload to {upload}")
    if exported.url:
        out.line(f"uploaded {exported.url}")


def _print_description(described: ModelDescription, all_weights: bool, out: Out) -> None:
    out.heading(f"{described.path}  ({described.title})")
    facts = [
        ("framework", described.framework),
        ("producer", described.producer),
        ("size", format_size(described.size_bytes)),
        ("parameters", "" if described.parameters is None else f"{described.parameters:,}"),
        ("opset", ", ".join(f"{name} {version}" for name, version in described.opset.items())),
        ("operators", _some([f"{name} {count}" for name, count in described.operators.items()], _SHOWN_OPERATORS)),
        *described.details.items(),
        ("sha256", described.digest),
        ("card", described.card),
    ]
    out.items([(name, value) for name, value in facts if value])
    _print_tensors("input", described.inputs, out)
    _print_tensors("output", described.outputs, out)
    _print_tensors("weight", described.weights if all_weights else described.weights[:_SHOWN_WEIGHTS], out)
    hidden = len(described.weights) - _SHOWN_WEIGHTS
    if hidden > 0 and not all_weights:
        out.say(f"and {hidden:,} more weights; list all with --weights")
    if described.imports:
        out.line()
        out.items([("imports", ", ".join(described.imports))])
    for warning in described.warnings:
        out.item(out.colour("warning: ", "yellow"), warning)


def _print_tensors(noun: str, tensors: tuple[TensorSpec, ...], out: Out) -> None:
    if tensors:
        out.line()
        out.table([noun, "type", "shape"], [[each.name, each.type, each.shape_text()] for each in tensors])


def _some(texts: list[str], most: int) -> str:
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more
