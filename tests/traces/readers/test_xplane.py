"""Profiles of TensorFlow and JAX, written byte by byte as their protocol buffers have them."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from fairmile.base.errors import Integrity
from fairmile.traces.analyze import analyze
from fairmile.traces.events import EventKind
from fairmile.traces.reading import format_of, read_traces

MS = 1_000_000
PS = 1000  # a nanosecond


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def number(at: int, value: int) -> bytes:
    return varint(at << 3) + varint(value)


def text(at: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(at << 3 | 2) + varint(len(data)) + data


def plane(name: str, lines: dict[str, list[tuple[str, int, int]]], steps: bool = False) -> bytes:
    """Return a plane; events are (name, start, length) in nanoseconds."""
    names = list(dict.fromkeys(event[0] for events in lines.values() for event in events))
    out = text(2, name)
    for at, (line, events) in enumerate(lines.items()):
        body = number(1, at) + text(2, line) + number(3, 10**9)
        for step, (event, start, length) in enumerate(events):
            stat = text(4, number(1, 1) + number(4, step)) if steps and event == "train" else b""
            inner = number(1, names.index(event) + 1) + number(2, start * PS) + number(3, length * PS) + stat
            body += text(4, inner)
        out += text(3, body)
    for at, event in enumerate(names, 1):
        out += text(4, number(1, at) + text(2, number(1, at) + text(2, event)))
    return text(1, out + text(5, number(1, 1) + text(2, number(1, 1) + text(2, "step_num"))))


def profile() -> bytes:
    host = {"python": [("train", step * 10 * MS, 10 * MS) for step in range(4)],
            "input": [("Iterator::Prefetch", step * 10 * MS, 3 * MS) for step in range(4)]}  # fmt: skip
    kernels = [("fusion_1", (step * 10 + 4) * MS, 5 * MS) for step in range(4)]
    device = {"Stream #14(Compute)": [("MemcpyH2D", 3 * MS, MS), *kernels], "XLA Ops": kernels}
    return plane("/host:CPU", host, steps=True) + plane("/device:GPU:0", device)


@pytest.mark.parametrize("packed", [False, True])
def test_threads_streams_and_steps_are_read(tmp_path: Path, packed: bool) -> None:
    file = tmp_path / ("host.xplane.pb" + ".gz" * packed)
    file.write_bytes(gzip.compress(profile()) if packed else profile())
    assert format_of(file) == "xplane"
    table = read_traces(file)
    kernels = np.flatnonzero(table.of_kind(EventKind.KERNEL))
    assert len(kernels) == 4, "operators that stand for the kernels of a stream do not count twice"
    assert table.duration_ns[kernels].tolist() == [5 * MS] * 4
    assert table.start_ns[kernels[0]] == 10**9 + 4 * MS
    assert np.count_nonzero(table.of_kind(EventKind.MEMCPY)) == 1
    assert np.count_nonzero(table.of_kind(EventKind.IO)) == 4
    assert table.step[table.of_kind(EventKind.PHASE)].tolist() == [0, 1, 2, 3]
    found = analyze(table)
    assert found.steps == 4 and found.step_s == pytest.approx(0.01)


def test_what_the_profiler_writes_once_more_for_viewers_does_not_count_twice(tmp_path: Path) -> None:
    (tmp_path / "host.xplane.pb").write_bytes(profile())
    alone = read_traces(tmp_path)
    event = {"ph": "X", "name": "train", "ts": 0, "dur": 10_000, "pid": 1, "tid": 1}
    for name in ("host.trace.json.gz", "other.trace.json.gz"):
        (tmp_path / name).write_bytes(gzip.compress(json.dumps({"traceEvents": [event]}).encode()))
    both = read_traces(tmp_path)
    assert "skipped host.trace.json.gz: the same events as in *.xplane.pb beside" in both.notes
    assert len(both) == len(alone) + 1, "another program's trace beside it is read"
    assert len(read_traces(tmp_path / "host.trace.json.gz")) == 1


def test_steps_in_which_jax_compiles_are_told(tmp_path: Path) -> None:
    host = {
        "python": [("train", step * 10 * MS, 10 * MS) for step in range(4)]
        + [("PjitFunction(step)", 0, 9 * MS), ("backend_compile_and_load", MS, 7 * MS)],
        "compiler": [("PjRtCpuClient::Compile", 2 * MS, 5 * MS)],
        "worker": [("dot.1", 9 * MS, 31 * MS)],
    }
    file = tmp_path / "host.xplane.pb"
    file.write_bytes(plane("/host:CPU", host, steps=True))
    first = analyze(read_traces(file)).findings[0]
    assert (first.kind, first.seconds) == ("compilation", pytest.approx(0.007))


def test_what_is_truncated_is_used_as_far_as_it_goes(tmp_path: Path) -> None:
    file = tmp_path / "host.xplane.pb"
    whole = profile()
    file.write_bytes(whole[:-40])
    assert any("truncated or damaged" in note for note in read_traces(file).notes)
    for length in range(0, len(whole), 37):
        file.write_bytes(whole[:length])
        with contextlib.suppress(Integrity):
            read_traces(file)


def test_damaged_bytes_raise_nothing_but_an_integrity_error(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    file, whole = tmp_path / "host.xplane.pb", profile()
    for _ in range(60):
        broken = bytearray(whole)
        for at in random.integers(0, len(broken), 5).tolist():
            broken[at] = int(random.integers(256))
        file.write_bytes(bytes(broken))
        with contextlib.suppress(Integrity):
            analyze(read_traces(file))


def test_a_profile_that_tensorflow_wrote_tells_that_its_steps_wait_for_input() -> None:
    """Four steps of a small Keras model, recorded by its TensorBoard callback; a generator sleeps 30 ms a batch."""
    table = read_traces(Path(__file__).parent / "tensorflow.xplane.pb.gz")
    assert not table.notes
    threads = [lane.number for lane in table.lanes]
    assert len(set(threads)) == len(threads), "numbers of threads are hashes of 64 bits"
    found = analyze(table)
    assert found.steps == 4
    (rank,) = found.breakdown.ranks
    assert 0.4 * rank.total.total_s < rank.total.input_s < 0.5 * rank.total.total_s
    assert rank.total.compute_s < 0.4 * rank.total.total_s, "a call that waits for other threads is no work"
    assert found.findings[0].kind == "input starvation"


def test_what_tf_data_prepares_in_other_threads_stops_no_step(tmp_path: Path) -> None:
    host = {
        "python": [("train", step * 10 * MS, 10 * MS) for step in range(4)],
        "tf_Compute/1": [("MatMul", step * 10 * MS, 3 * MS) for step in range(4)],
        "tf_data_iterator_get_next/3": [("IteratorGetNextOp::DoCompute", step * 10 * MS, MS) for step in range(4)]
        + [("ExecutorState::ProcessAsync::Done", step * 10 * MS + MS, MS) for step in range(4)],
        "tf_data_iterator_resource/2": [("Iterator::Map", step * 10 * MS, 9 * MS) for step in range(4)]
        + [("PrefetchProduce", step * 10 * MS, 9 * MS) for step in range(4)],
    }
    file = tmp_path / "host.xplane.pb"
    file.write_bytes(plane("/host:CPU", host, steps=True))
    (rank,) = analyze(read_traces(file)).breakdown.ranks
    assert (rank.total.input_s, rank.total.compute_s) == (0, pytest.approx(0.012)), "hidden by work"


def test_steps_in_which_tensorflow_traces_a_function_are_told(tmp_path: Path) -> None:
    host = {
        "python": [("train", step * 10 * MS, 10 * MS) for step in range(4)]
        + [("one_step_on_data", 0, 9 * MS), ("tf.function-graph_building", MS, 7 * MS)],
        "tf_Compute/1": [("MatMul", 9 * MS, 31 * MS)],
    }
    file = tmp_path / "host.xplane.pb"
    file.write_bytes(plane("/host:CPU", host, steps=True))
    first = analyze(read_traces(file)).findings[0]
    assert (first.kind, first.seconds) == ("compilation", pytest.approx(0.007))
