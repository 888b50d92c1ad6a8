"""The kernels of a tunable matrix product: which settings exist, and how long each takes by a model of the GPU.

The settings are those of the published table, all 241,600. Their measured times cannot be made; the model has what
decides them on the GPU of the table: tiles, occupancy, memory traffic, coalescing, bank conflicts, spilled registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
VALUES: dict[str, tuple[int, ...]] = {
    "MWG": (16, 32, 64, 128), "NWG": (16, 32, 64, 128), "KWG": (16, 32), "MDIMC": (8, 16, 32), "NDIMC": (8, 16, 32),
    "MDIMA": (8, 16, 32), "NDIMB": (8, 16, 32), "KWI": (2, 8), "VWM": (1, 2, 4, 8), "VWN": (1, 2, 4, 8),
    "STRM": (0, 1), "STRN": (0, 1), "SA": (0, 1), "SB": (0, 1),
}  # fmt: skip
PARAMETERS = tuple(VALUES)
RUNS = 4
_SIZE = 2048  # rows and columns of the matrices
_LOCAL_BYTES = 48 << 10
_MOST_THREADS = 1024

# A GTX 680: eight multiprocessors with 192 cores at 1.006 GHz.
_PROCESSORS, _FLOPS, _DRAM_BYTES_PER_S, _L2_BYTES_PER_S = 8, 3.09e12, 192e9, 512e9
_WARPS, _BLOCKS, _REGISTERS, _REGISTERS_PER_THREAD = 64, 16, 65536, 63
# Least, quartiles and most of all settings: by the model in seconds, and as published (mean of four runs) in ms.
_QUANTILES = (
    (8.20568218e-3, 13.3), (15.93243286e-3, 40.7), (28.2049994e-3, 69.8), (120.47074516e-3, 228.4),
    (668.93371683e-3, 3341.5),
)  # fmt: skip
_REPEAT_NOISE = 0.004  # of ln(time), from run to run


def all_settings() -> Array:
    """Return the 241,600 settings that the GPU of the table can run, as rows of 14 whole numbers."""
    grid = np.meshgrid(*(np.array(each, np.int16) for each in VALUES.values()), indexing="ij")
    every = np.stack([axis.ravel() for axis in grid], axis=1)
    return every[is_possible(every)]


def is_possible(settings: Array) -> Array:
    """Tell which settings are possible: tiles divide evenly, threads and local memory suffice."""
    s = _columns(settings)
    threads = s["MDIMC"] * s["NDIMC"]
    local_bytes = 4 * s["KWG"] * (s["SA"] * s["MWG"] + s["SB"] * s["NWG"])
    # Threads are laid out anew to fill local memory; a layout that does not divide them is impossible.
    a_rows, b_rows = threads // s["MDIMA"], threads // s["NDIMB"]
    divided = [
        (s["KWG"], s["KWI"]), (s["MWG"], s["MDIMC"] * s["VWM"]), (s["NWG"], s["NDIMC"] * s["VWN"]),
        (s["MWG"], s["MDIMA"] * s["VWM"]), (s["NWG"], s["NDIMB"] * s["VWN"]), (s["KWG"], a_rows), (s["KWG"], b_rows),
    ]  # fmt: skip
    possible = (threads <= _MOST_THREADS) & (local_bytes <= _LOCAL_BYTES)
    for whole, part in divided:
        possible &= (part > 0) & (whole % np.maximum(part, 1) == 0)
    return np.asarray(possible)


def model_times(settings: Array, seed: int) -> Array:
    """Return four made-up run times of each setting in milliseconds: the model, brought to the published quantiles."""
    # A monotone map: the model alone decides which setting is faster than which.
    known, published = zip(*_QUANTILES, strict=True)
    calibrated = np.interp(np.log(_model_seconds(settings)), np.log(known), np.log(published))
    noise = np.random.default_rng(seed).normal(0, _REPEAT_NOISE, (len(settings), RUNS))
    times: Array = np.exp(calibrated[:, None] + noise)
    return times


def _model_seconds(settings: Array) -> Array:
    """Return how long the slowest of computing, local, cached and global memory takes, and a part of the rest."""
    s = _columns(settings)
    rows, columns = s["MWG"] / s["MDIMC"], s["NWG"] / s["NDIMC"]  # of one thread
    products, threads = rows * columns, s["MDIMC"] * s["NDIMC"]
    warps = np.maximum(threads / 32, 1)
    registers = 20 + products + rows + columns + s["KWI"] / 2
    spilled = np.maximum(registers - _REGISTERS_PER_THREAD, 0)
    resident = _resident_blocks(threads, warps, registers, s)
    hidden = 1 - np.exp(-resident * warps * np.minimum(products, 8) / 48)  # latency that other work hides
    blocks = (_SIZE / s["MWG"]) * (_SIZE / s["NWG"])
    at_once = _PROCESSORS * resident
    waves = np.ceil(blocks / at_once) * at_once / blocks

    inner = _SIZE**3
    conflicts_a = np.where(s["STRM"] == 1, 1.0, np.minimum(rows / s["VWM"], 8.0) ** 0.6)
    conflicts_b = np.where(s["STRN"] == 1, 1.0, np.minimum(columns / s["VWN"], 8.0) ** 0.6)
    loads = rows / s["VWM"] * np.where(s["SA"] == 1, conflicts_a, 2.5 * conflicts_a)
    loads += columns / s["VWN"] * np.where(s["SB"] == 1, conflicts_b, 1.8)  # threads of a warp read the same of B
    instructions = products + 1.5 * loads + 6 / s["KWI"] + 2
    computing = 2 * inner / _FLOPS * instructions / products

    wide_a = np.minimum(s["MDIMA"] * s["VWM"] * 4 / 128, 1.0)
    wide_b = np.minimum(s["NDIMB"] * s["VWN"] * 4 / 128, 1.0)
    tile_a, tile_b = 4 * inner / s["NWG"], 4 * inner / s["MWG"]
    direct_a = 4 * inner / columns / np.minimum(s["NDIMC"], 4) * conflicts_a
    direct_b = 4 * inner / rows / np.minimum(s["MDIMC"], 16)
    cached = np.where(s["SA"] == 1, tile_a / wide_a, direct_a) + np.where(s["SB"] == 1, tile_b / wide_b, direct_b)
    spill_bytes = 8 * spilled * inner / products / np.minimum(s["KWI"], 4)
    away = np.clip(spilled * threads * resident * 4 / 65536, 0.1, 1.5)  # of what is spilled, beyond the caches
    dram = tile_a * 0.35 + tile_b * 0.35 + spill_bytes * away
    parts = np.stack([computing, (cached + spill_bytes) / _L2_BYTES_PER_S, dram / _DRAM_BYTES_PER_S])
    seconds: Array = (parts.max(0) + 0.3 * (parts.sum(0) - parts.max(0))) * waves / np.maximum(hidden, 0.05)
    return seconds


def _resident_blocks(threads: Array, warps: Array, registers: Array, s: dict[str, Array]) -> Array:
    """Return how many groups of threads share a multiprocessor."""
    local_bytes = np.maximum(4 * s["KWG"] * (s["SA"] * s["MWG"] + s["SB"] * s["NWG"]), 1)
    by_registers = _REGISTERS // (np.minimum(registers, _REGISTERS_PER_THREAD + 1) * threads)
    limits = [np.full(len(threads), _BLOCKS), _WARPS // warps, by_registers, _LOCAL_BYTES // local_bytes]
    return np.asarray(np.maximum(np.minimum.reduce(limits), 1))


def _columns(settings: Array) -> dict[str, Array]:
    return dict(zip(PARAMETERS, settings.astype(np.int32).T, strict=True))
