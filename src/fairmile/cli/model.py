"""`fairmile model`: describe model files."""

from __future__ import annotations

import click

from fairmile.base.units import format_size
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.out import Out, json_output
from fairmile.models.formats.description import ModelDescription, TensorSpec
from fairmile.workspace import Workspace

_SHOWN_WEIGHTS = 12
_SHOWN_OPERATORS = 12


@click.group(cls=LazyGroup)
def model() -> None:
    """Describe model files.

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
