"""What can be set when the earthquake benchmark runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairmile.benchmarks.harness.settings import Schedule, TrainSettings, option

Split = Literal["location", "time"]
Lead = Literal["overlapping", "non-overlapping"]
Broken = Literal["refuse", "skip"]
Model = Literal["tft", "lstm", "persistence", "climatology"]
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
    min_events: float = option(7.1, "keep a pixel with at least so many events above magnitude 3.29 ...")
    min_block_events: float = option(34.1, "... or with so many in the 3 x 3 pixels around it")
    max_locations: int = option(0, "keep only so many pixels, the most active ones; 0: all that pass the cut")
    broken: Broken = option("refuse", "what to do with rows of the catalog that cannot be read: refuse or skip")
    faults: str = option("", "file of fault labels, one row of whole numbers per row of pixels; empty: none")
    scale: Scale = option("magnitude", "magnitude: m itself; energy: E^0.25, that is 10^(0.375 (m - 3.29))")
    split: Split = option("location", "location: validate at other pixels, as published; time: at later times")
    validation_share: float = option(
        0.2, "part of the locations or of the time that is kept for validation", least=0, most=1
    )
    split_seed: int = option(0, "seed of the draw of validation locations; the same for all seeds of a model")
    lead: Lead = option(
        "overlapping", "overlapping: the next fortnight, as published; non-overlapping: a whole window on"
    )
    missing: Missing = option(
        "masked", "observations that are missing: masked: not scored; published: each counts as predicted exactly"
    )
    history: int = option(26, "fortnights that a model is shown")
    horizon: int = option(26, "fortnights that a model forecasts")
    synthetic_years: int = option(8, "years of the catalog that is made up where no data is given")
    synthetic_min_magnitude: float = option(2.0, "smallest magnitude of the made-up catalog")
    synthetic_locations: int = option(60, "pixels of the made-up catalog that are kept, the most active ones")
    synthetic_seed: int = option(0, "seed of the made-up catalog; the same for all seeds of a model")
    model: Model = option("tft", "tft, lstm, or one that needs no training: persistence or climatology")
    d_model: int = option(16, "width of the network; 160 as published")
    heads: int = option(4, "heads of attention of the tft, as published")
    lstm_layers: int = option(1, "layers of the LSTM encoder and decoder; 2 as published")
    dropout: float = option(0.1, "part of the activations that is dropped in training, as published", least=0, most=1)
    loss: Loss = option("mse", "mse, as NNSE counts; mae, as published; or quantile: 0.1, 0.5 and 0.9")
    residual: bool = option(True, "forecast what is added to the part of each window that is known; false as published")
    context: bool = option(True, "show the long history and the neighbours of a place, too; false as published")
    balance: bool = option(
        True, "weigh places by the inverse of their variance, as the average does; false as published"
    )
    focus: float = option(8.0, "how much more the steps that are scored count in the loss; 1 as published", least=0)
    hide_place: float = option(
        0.0, "part of the training windows whose static variables are hidden; 0 as published", least=0, most=1
    )
    tuning_share: float = option(
        0.1, "part of the training data that chooses the best epoch; 0: validation does", least=0
    )
    epochs: int = option(2, "passes over the training data")
    batch_size: int = option(256, "samples per step and rank")
    eval_batch_size: int = option(1024, "samples per step of evaluation and rank")
    learning_rate: float = option(3e-3, "peak learning rate")
    schedule: Schedule = option("cosine", "constant, steps, cosine, onecycle or plateau")
    warmup_epochs: float = option(0.5, "the learning rate rises in a line over so many epochs")
    clip_norm: float = option(1.0, "gradients are cut to this norm; 0: not")
