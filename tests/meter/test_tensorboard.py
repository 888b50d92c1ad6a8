"""TensorBoard event files: what TensorBoard and PyTorch write is read, what is written TensorBoard reads."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmile.base import tfrecord
from fairmile.base.tfrecord import crc32c, field, integer, record
from fairmile.meter import tensorboard
from fairmile.meter.tensorboard import Scalar, event_file, find_event_files, read_scalars

pytestmark = pytest.mark.filterwarnings("ignore")
SCALARS = [Scalar("loss", 1 / (step + 1), step, 1_794_890_000.5 + step) for step in range(5)]
SCALARS += [Scalar("größe/µ", -3.5, 1 << 40, 1_794_890_000.0), Scalar("rate", math.inf, 0, 1_794_890_000.0)]


def _single(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _write(folder: Path, scalars: list[Scalar], name: str = "events.out.tfevents.1.host") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_bytes(event_file(scalars, created_s=1_794_890_000.0))
    return file


def test_tensorboard_reads_what_is_written(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    _write(tmp_path, SCALARS)
    accumulator = accumulators.EventAccumulator(str(tmp_path)).Reload()
    assert set(accumulator.Tags()["scalars"]) == {"loss", "größe/µ", "rate"}
    assert [(each.wall_time, each.step, each.value) for each in accumulator.Scalars("loss")] == [
        (each.at_s, each.step, _single(each.value)) for each in SCALARS[:5]
    ]
    assert accumulator.Scalars("größe/µ")[0].step == 1 << 40
    assert accumulator.Scalars("rate")[0].value == math.inf


def test_what_pytorch_writes_is_read(tmp_path: Path) -> None:
    writers = pytest.importorskip("torch.utils.tensorboard")
    with writers.SummaryWriter(str(tmp_path / "logs")) as writer:
        for step in range(3):
            writer.add_scalar("loss", 0.5**step, step, walltime=1000.0 + step)
            writer.add_scalar("double", 0.1, step, new_style=True, double_precision=True)
        writer.add_scalars("accuracy", {"train": 0.75, "validation": 0.5}, 7)
        writer.add_histogram("weights", numpy.array([1.0, 2.0]), 1)
        writer.add_text("note", "no number", 1)
    scalars, notes = read_scalars(find_event_files(tmp_path))
    assert notes == []
    by_tag: dict[str, list[Scalar]] = {}
    for each in scalars:
        by_tag.setdefault(each.tag, []).append(each)
    assert [(each.value, each.step, each.at_s) for each in by_tag["loss"]] == [
        (1.0, 0, 1000.0),
        (0.5, 1, 1001.0),
        (0.25, 2, 1002.0),
    ]
    assert [each.value for each in by_tag["double"]] == [0.1, 0.1, 0.1]
    assert by_tag["accuracy_train/accuracy"][0].value == 0.75
    assert len(by_tag) == 4


def test_what_is_written_is_read_as_it_was(tmp_path: Path) -> None:
    file = _write(tmp_path, SCALARS)
    scalars, notes = read_scalars([file])
    assert scalars == [each._replace(value=_single(each.value)) for each in SCALARS]
    assert notes == []


def test_the_tags_of_several_folders_are_told_apart(tmp_path: Path) -> None:
    for part in ("train", "validation"):
        _write(tmp_path / part, SCALARS[:1])
    scalars, _ = read_scalars(find_event_files(tmp_path))
    assert sorted(each.tag for each in scalars) == ["train/loss", "validation/loss"]
    _write(tmp_path, SCALARS[:1])
    scalars, _ = read_scalars(find_event_files(tmp_path))
    assert sorted(each.tag for each in scalars) == ["loss", "train/loss", "validation/loss"]


def test_only_files_that_were_written_since_are_found(tmp_path: Path) -> None:
    old, new = _write(tmp_path / "old", SCALARS), _write(tmp_path / "new", SCALARS)
    _write(tmp_path / ".hidden", SCALARS)
    (tmp_path / "link").symlink_to(tmp_path / "new")
    os.utime(old, (1000, 1000))
    assert find_event_files(tmp_path, since_s=2000) == [new]
    assert find_event_files(tmp_path) == [new, old]


def test_a_file_that_is_still_written_gives_what_is_there(tmp_path: Path) -> None:
    file = _write(tmp_path, SCALARS)
    file.write_bytes(file.read_bytes()[:-3])
    scalars, notes = read_scalars([file])
    assert (len(scalars), notes) == (len(SCALARS) - 1, [])


def test_a_damaged_file_gives_what_comes_before_and_says_so(tmp_path: Path) -> None:
    file = _write(tmp_path, SCALARS)
    data = bytearray(file.read_bytes())
    data[-6] ^= 1
    file.write_bytes(data)
    scalars, notes = read_scalars([file])
    assert len(scalars) == len(SCALARS) - 1
    assert notes == [
        "the TensorBoard event file events.out.tfevents.1.host was read only in part: "
        f"the checksum of record {len(SCALARS) + 1} is wrong"
    ]


@pytest.mark.parametrize(
    "message",
    [
        b"\x80" * 20,
        field(5, field(1, field(1, b"\xff\xfe") + integer(2 << 3 | 5) + b"\0\0\0\0")),
        field(5, b"\x0a\xff\xff\xff\xff\x0f"),
        integer(1 << 3) + integer(7),
        field(5, field(1, field(1, b"a") + field(9, field(1, field(1, b"scalars"))) + field(8, b""))),
    ],
    ids=[
        "endless integer",
        "tag that is not text",
        "longer than its message",
        "time that is not a number",
        "no tensor",
    ],
)
def test_a_record_that_is_no_event_ends_the_file(tmp_path: Path, message: bytes) -> None:
    file = tmp_path / "tfevents"
    file.write_bytes(event_file(SCALARS[:1], created_s=0) + record(message) + event_file(SCALARS[1:2], created_s=0))
    scalars, notes = read_scalars([file])
    assert len(scalars) == 1
    assert "record 3 is not an event" in notes[0]


def test_a_hostile_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tfevents"
    head = struct.pack("<Q", 1 << 62)
    length = head + struct.pack("<I", tfrecord.masked(crc32c(head)))
    file.write_bytes(event_file(SCALARS[:2], created_s=0) + length + b"x" * 100)
    assert read_scalars([file]) == ([each._replace(value=_single(each.value)) for each in SCALARS[:2]], [])
    monkeypatch.setattr(tensorboard, "MOST_VALUES", 3)
    scalars, notes = read_scalars([_write(tmp_path, SCALARS)])
    assert len(scalars) == 3
    assert notes == ["only the first 3 values of TensorBoard event files are read"]
    odd = [Scalar("a\nb", 1, 0, 0), Scalar("x" * 300, 1, 0, 0), Scalar("ok", 1, 0, -1e300)]
    assert read_scalars([_write(tmp_path / "odd", odd)])[0] == [Scalar("ok", 1, 0, 0)]


@given(st.binary(max_size=300), st.booleans())
@settings(max_examples=examples(200))
def test_no_bytes_make_the_reader_fail(tmp_path_factory: pytest.TempPathFactory, data: bytes, framed: bool) -> None:
    file = tmp_path_factory.mktemp("fuzz") / "tfevents"
    file.write_bytes(record(data) if framed else data)
    scalars, notes = read_scalars([file])
    assert all(isinstance(each, Scalar) for each in scalars)
    assert len(notes) <= 1


def test_a_value_beyond_single_precision_is_infinite(tmp_path: Path) -> None:
    scalars: Any = read_scalars([_write(tmp_path, [Scalar("big", -1e300, 0, 0)])])[0]
    assert scalars == [Scalar("big", -math.inf, 0, 0)]
