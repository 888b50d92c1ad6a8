from __future__ import annotations

import json

import pytest
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.costs.collectives.tables import MeasuredPoint, parse_points

NCCL_TESTS = """\
# nThread 1 nGpus 4 minBytes 8 maxBytes 1048576 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
# Collective test starting: all_reduce_perf
#
# Using devices
#  Rank  0 Group  0 Pid  11 on node1 device  0 [0x07] NVIDIA A100-SXM4-40GB
#  Rank  1 Group  0 Pid  11 on node1 device  1 [0x0b] NVIDIA A100-SXM4-40GB
#  Rank  2 Group  0 Pid  11 on node1 device  2 [0x48] NVIDIA A100-SXM4-40GB
#  Rank  3 Group  0 Pid  11 on node1 device  3 [0x4c] NVIDIA A100-SXM4-40GB
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    13.25    0.00    0.00      0    13.11    0.00    0.00      0
     1048576        262144     float     sum      -1    51.40   20.40   30.60      0    50.90   20.60   30.90      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 15.3
"""

OSU = """\

# OSU MPI Allgather Latency Test v7.4
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)
1                       2.31
1024                    9.75
"""


def test_the_output_of_nccl_tests_is_read() -> None:
    assert parse_points(NCCL_TESTS) == (
        MeasuredPoint("all_reduce", 8.0, 4, pytest.approx(13.25e-6)),
        MeasuredPoint("all_reduce", 1048576.0, 4, pytest.approx(51.40e-6)),
    )


def test_the_hosts_of_nccl_tests_are_counted() -> None:
    two = NCCL_TESTS.replace("Rank  3 Group  0 Pid  11 on node1", "Rank  3 Group  0 Pid  11 on node2")
    assert {point.nodes for point in parse_points(two)} == {2}


def test_ranks_that_are_told_count_more_than_those_that_are_listed() -> None:
    assert {point.ranks for point in parse_points(NCCL_TESTS, ranks=16)} == {16}


def test_an_old_output_does_not_say_what_it_measured() -> None:
    old = NCCL_TESTS.replace("# Collective test starting: all_reduce_perf\n", "")
    with pytest.raises(UsageError, match="which collective"):
        parse_points(old)
    assert parse_points(old, collective="reduce_scatter")[0].collective == "reduce_scatter"


def test_the_output_of_osu_is_read_and_counted_for_whole_buffers() -> None:
    assert parse_points(OSU, ranks=8) == (
        MeasuredPoint("all_gather", 8.0, 8, pytest.approx(2.31e-6)),
        MeasuredPoint("all_gather", 8192.0, 8, pytest.approx(9.75e-6)),
    )
    with pytest.raises(UsageError, match="how many ranks"):
        parse_points(OSU)


@for_each(
    "title, collective, row, size, ranks",
    [
        ("OSU MPI Allreduce Latency Test v7.4", "all_reduce", "64 3.0 2.9 3.1 1000", 64, 4),
        ("OSU MPI Broadcast Latency Test v7.4", "broadcast", "64 3.0", 64, 4),
        ("OSU MPI Latency Test v7.4", "point_to_point", "64 3.0", 64, 2),
        ("OSU MPI Barrier Latency Test v7.4", "barrier", "3.0", 0, 4),
    ],
)
def test_each_test_of_osu_is_known(title: str, collective: str, row: str, size: float, ranks: int) -> None:
    time_s = pytest.approx(3e-6)
    assert parse_points(f"# {title}\n# Size  Latency (us)\n{row}\n", ranks=4) == (
        MeasuredPoint(collective, size, ranks, time_s),
    )


def test_our_own_file_is_read_back() -> None:
    row = {"collective": "all-reduce", "size_bytes": 1024, "ranks": 4, "nodes": 2, "time_s": 1e-4, "repeats": 9}
    text = json.dumps({"format": 1, "points": [row]})
    assert parse_points(text) == (MeasuredPoint("all_reduce", 1024.0, 4, 1e-4, nodes=2),)


@for_each(
    "text, told",
    [
        ("hello\n", "contains no measured times"),
        ('{"format": 2, "points": []}', "expected `format` 1"),
        ('{"format": 1, "points": [{"collective": "all_reduce"}]}', r"points\[0\]"),
        ('{"format": 1, "points": [7]}', r"points\[0\]"),
        (
            '{"format": 1, "points": [{"collective": "barrier", "size_bytes": 0, "ranks": 2, "time_s": -1}]}',
            "invalid measurement",
        ),
        ('{"format": 1, "points": [{"collective": "brodcast"}]}', "no collective named 'brodcast'"),
        ('{"format": 1, "points": [', "x.json:1: column 26"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse_points(text, file="x.json")
