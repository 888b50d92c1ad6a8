"""Whether a training starves: what its steps consume beside what storage and loaders deliver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass

_PAGE_BYTES = 4096


class LoadingDict(TypedDict):
    """`Loading` as JSON holds it."""

    wanted_per_s: float
    delivered_per_s: float | None  # None: nothing limits it
    limit: str
    is_input_bound: bool
    step_time_s: float
    share: float
    sentence: str


@dataclass(frozen=True)
class Loading:
    """What reading takes beside a step: `share` of the step's samples that arrive in time, 1 where all do."""

    wanted_per_s: float
    delivered_per_s: float
    limit: str  # what delivers least: "storage", "files" or "decoding"
    is_input_bound: bool
    step_time_s: float  # with the wait for input
    share: float
    sentence: str


def loading(
    step_time_s: float,
    samples_per_step: int,
    sample_bytes: float,
    storage: Mapping[str, float],
    *,
    workers: int = 1,
    decode_s: float = 0.0,
    files_per_sample: float = 1.0,
    readers: int = 1,
) -> Loading:
    """Compare what a step consumes with what the measured storage and the loader's workers deliver.

    `storage` holds what a storage evaluation found in a folder (`seq_read_bytes_per_s`, `file_read_per_s`,
    `random_read_per_s`); what is missing sets no limit. `decode_s` is one worker's time for one sample beside reading;
    `readers` processes, such as the ranks of a node, share the storage. Samples that lie many in a file have
    `files_per_sample` 0 and are read at random places.
    """
    if step_time_s <= 0 or samples_per_step < 1 or sample_bytes < 0 or workers < 1 or readers < 1:
        raise UsageError(
            f"cannot predict loading for a step of {step_time_s} s, {samples_per_step} samples of {sample_bytes} bytes "
            f"and {workers} workers",
            hint="use a time above 0, at least one sample and at least one worker",
        )
    limits: dict[str, float] = {}
    read = storage.get("seq_read_bytes_per_s")
    if read and sample_bytes:
        limits["storage"] = read / sample_bytes / readers
    opened = storage.get("file_read_per_s")
    if opened and files_per_sample > 0:
        limits["files"] = opened / files_per_sample / readers
    at_random = storage.get("random_read_per_s")
    if at_random and files_per_sample == 0 and sample_bytes <= _PAGE_BYTES:
        limits["files"] = at_random / readers
    if decode_s > 0:
        limits["decoding"] = workers / decode_s
    wanted = samples_per_step / step_time_s
    if not limits:
        return Loading(wanted, float("inf"), "", False, step_time_s, 1.0, "the input rate is unknown")
    limit = min(limits, key=lambda name: limits[name])
    delivered = limits[limit]
    is_bound = delivered < wanted
    share = min(delivered / wanted, 1.0)
    return Loading(
        wanted, delivered, limit, is_bound, step_time_s / share, share, _sentence(wanted, delivered, limit, is_bound)
    )


def _sentence(wanted: float, delivered: float, limit: str, is_bound: bool) -> str:
    what = {
        "storage": "storage delivers",
        "files": "the file system delivers",
        "decoding": "the data loader delivers",
    }[limit]
    if is_bound:
        remedy = {
            "storage": "move the data to faster storage, or read fewer bytes per sample",
            "files": "pack samples into larger files",
            "decoding": "use more workers",
        }[limit]
        return f"input-bound: a step consumes {wanted:.4g} samples/s, {what} {delivered:.4g}; {remedy}"
    return f"not input-bound: a step consumes {wanted:.4g} samples/s, {what} {delivered:.4g}"
