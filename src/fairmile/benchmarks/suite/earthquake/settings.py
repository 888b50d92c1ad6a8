"""What can be set when the earthquake benchmark runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairmile.benchmarks.harness.settings import Schedule, TrainSettings, option

Split = Literal["location", "time"]
Lead = Literal["overlapping", "non-overlapping"]
Broken = Literal["refuse", "skip"]
Model = Literal["tft", "lstm", "hybrid", "persistence", "climatology"]
Loss = Literal["mse", "mae", "quantile"]
Missing = Literal["masked", "published"]
Scale = Literal["magnitude", "energy"]


@dataclass(frozen=True, kw_only=True)
class Settings(TrainSettings):
    """Those of the published benchmark where the data is real; sizes of made-up data have fields of their own."""

    south: float = option(32.0, "southern edge of the region in degrees")
    north: float = option(36.0, "northern edge of the region in degrees")
    west: float = option(-120.0, "western edge of the region in degrees")
    east: float = option(-114.0, "eastern edge of the region in degrees")
    pixel_degrees: float = option(0.1, "edge of a pixel in degrees")
    start: str = option("1950-01-01", "first day of the period, of real data")
    end: str = option("2019-12-31", "last day of the period, of real data")
    min_events: float = option(7.1, "keep a pixel with at least this many events above magnitude 3.29 ...")
    min_block_events: float = option(34.1, "... or with this many in the 3 x 3 pixels around it")
    max_locations: int = option(0, "maximum number of pixels, most active first; 0: no limit", least=0)
    broken: Broken = option("refuse", "what to do with unreadable rows of the catalog: refuse or skip")
    faults: str = option("", "file of fault labels, one row of integers per row of pixels; empty: none")
    scale: Scale = option("magnitude", "magnitude: m itself; energy: E^0.25, that is 10^(0.375 (m - 3.29))")
    split: Split = option("location", "location: validate at other pixels, as published; time: at later times")
    validation_share: float = option(
        0.2, "fraction of the locations or of the time used for validation", least=0, most=1
    )
    split_seed: int = option(
        0, "seed of the choice of validation locations, independent of the seed of the run", least=0
    )
    lead: Lead = option(
        "overlapping", "overlapping: the next fortnight, as published; non-overlapping: a whole window on"
    )
    missing: Missing = option(
        "masked", "missing observations: masked (not scored) or published (counted as predicted exactly)"
    )
    history: int = option(26, "fortnights of history that a model sees", least=1)
    horizon: int = option(26, "fortnights that a model forecasts", least=1)
    synthetic_years: int = option(8, "years of the synthetic catalog, used without data")
    synthetic_min_magnitude: float = option(2.0, "smallest magnitude of the synthetic catalog")
    synthetic_locations: int = option(
        60, "maximum number of pixels of the synthetic catalog, most active first", least=1
    )
    synthetic_seed: int = option(0, "seed of the synthetic catalog, independent of the seed of the run", least=0)
    model: Model = option(
        "tft", "model: tft, lstm, hybrid (of space and time), or without training persistence or climatology"
    )
    d_model: int = option(16, "width of the network; 160 as published")
    heads: int = option(4, "number of attention heads of tft and hybrid, as published")
    neighbours: int = option(8, "model=hybrid: number of nearest locations whose history the model sees", least=1)
    lstm_layers: int = option(1, "layers of the LSTM encoder and decoder; 2 as published")
    dropout: float = option(0.1, "dropout rate, as published", least=0, most=1)
    loss: Loss = option("mse", "loss: mse (as in NNSE), mae (as published) or quantile (0.1, 0.5 and 0.9)")
    residual: bool = option(True, "forecast the difference to the known part of each window; false as published")
    context: bool = option(True, "add the long history and the neighbours of a location as inputs; false as published")
    balance: bool = option(True, "weight locations by inverse variance, as the average does; false as published")
    focus: float = option(8.0, "weight of the scored steps in the loss; 1 as published", least=0)
    hide_place: float = option(
        0.0, "fraction of training windows with hidden static variables; 0 as published", least=0, most=1
    )
    tuning_share: float = option(
        0.1, "fraction of training data that selects the best epoch; 0: use validation data", least=0
    )
    parameters: str = option(
        "", "further prediction parameters to score, by published name, such as 2wk+7AVG, Mag Year Back 2wk+13"
    )
    epochs: int = option(2, "number of epochs")
    batch_size: int = option(256, "batch size per rank")
    eval_batch_size: int = option(1024, "batch size per rank in evaluation")
    learning_rate: float = option(3e-3, "peak learning rate")
    schedule: Schedule = option("cosine", "learning rate schedule: constant, steps, cosine, onecycle or plateau")
    warmup_epochs: float = option(0.5, "epochs of linear learning rate warm-up")
    clip_norm: float = option(1.0, "maximum norm of gradients; 0: no clipping")
