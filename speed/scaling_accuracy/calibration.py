"""Constants of a machine, fitted to measured steps of transformers: twenty runs are enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from scaling_accuracy.fitting import fit_constants

from fairmile.base.errors import UsageError
from fairmile.predict.memory.descriptions import Transformer
from fairmile.predict.memory.sharding import Layout
from fairmile.predict.scaling.step import A100, NodeModel
from fairmile.predict.scaling.transformer import Constants, TransformerModel

# How far machines lie from the usual values, as standard deviations of logarithms.
_SPREADS = Constants(
    matrix_efficiency=0.08,
    rows_half=0.5,
    columns_half=0.2,
    inner_half=0.2,
    attention_efficiency=0.075,
    memory_bytes_per_s=0.15,
    kernel_s=0.35,
    layer_launch_s=0.5,
    collective_launch_s=0.5,
    collective_s=0.5,
    link_bytes_per_s=0.15,
    node_bytes_per_s=0.4,
    hop_s=0.5,
    hop_bytes_per_s=0.5,
    optimizer_bytes=0.25,
    step_s=0.5,
    fill_share=0.075,
)


@dataclass(frozen=True)
class TransformerRun:
    """A measured step."""

    model: Transformer
    layout: Layout
    step_time_s: float
    name: str = ""


def calibrate(
    runs: Sequence[TransformerRun], machine: NodeModel = A100, *, usual: Constants | None = None, overlap: float = 0.0
) -> Constants:
    """Return the constants that fit measured runs; the fewer there are, the more the usual values count."""
    if not runs:
        raise UsageError("there is no run to calibrate with", hint="give at least one, better twenty")
    names = [each.name for each in fields(Constants)]
    start = usual or Constants()

    def predict_s(values: Sequence[float]) -> list[float]:
        model = TransformerModel(Constants(**dict(zip(names, values, strict=True))), machine, overlap=overlap)
        return [model.step(run.model, run.layout).step_time_s for run in runs]

    found = fit_constants(
        [getattr(start, name) for name in names],
        [getattr(_SPREADS, name) for name in names],
        predict_s,
        [run.step_time_s for run in runs],
    )
    return Constants(**dict(zip(names, found, strict=True)))
