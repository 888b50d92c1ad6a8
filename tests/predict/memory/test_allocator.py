"""The replay of the caching allocator, rule by rule, and against streams recorded on a GPU."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cases import for_each

from fairmile.base.errors import Unsupported, UsageError
from fairmile.predict.memory.allocator import Allocator, DeviceFull
from fairmile.predict.memory.options import AllocatorOptions, parse_allocator_options

SHARED = Path(os.environ.get("FAIRMILE_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
STREAMS = SHARED / "perf" / "h200_alloc_traces"
MIB = 1 << 20


def test_a_request_takes_a_multiple_of_512_bytes() -> None:
    allocator = Allocator()
    assert [allocator.allocate(key, size) for key, size in enumerate((1, 512, 513, 10_400))] == [512, 512, 1024, 10_752]
    assert allocator.allocated_bytes == 12_800


def test_small_requests_share_a_segment_of_two_mebibytes_and_larger_ones_do_not_go_there() -> None:
    allocator = Allocator()
    for key in range(4):
        allocator.allocate(key, MIB // 2)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.allocate(4, MIB)
    assert allocator.reserved_bytes == 4 * MIB
    allocator.allocate(5, MIB + 1)
    assert allocator.reserved_bytes == 24 * MIB


@for_each(
    "size, segment",
    [(MIB, 2), (MIB + 1, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (10 * MIB + 1, 12), (33 * MIB, 34)],
)
def test_the_size_of_a_new_segment_follows_the_request(size: int, segment: int) -> None:
    allocator = Allocator()
    allocator.allocate(0, size)
    assert allocator.reserved_bytes == segment * MIB


def test_a_large_block_is_split_only_where_more_than_a_mebibyte_is_left() -> None:
    allocator = Allocator()
    allocator.allocate(0, 20 * MIB)
    allocator.free(0)
    assert allocator.allocate(1, 19 * MIB) == 20 * MIB  # exactly one is left: it stays with the block
    allocator.free(1)
    assert allocator.allocate(2, 19 * MIB - 512) == 19 * MIB - 512
    assert allocator.reserved_bytes == 20 * MIB


def test_the_tightest_free_block_is_taken() -> None:
    allocator = Allocator()
    for key, size in enumerate((64, 32, 48)):
        allocator.allocate(key, size * MIB)
    for key in range(3):
        allocator.free(key)
    allocator.allocate(3, 30 * MIB)  # from the 32, of which 2 are left
    allocator.allocate(4, 48 * MIB)
    allocator.allocate(5, 64 * MIB)
    assert allocator.reserved_bytes == 144 * MIB


def test_of_equal_blocks_the_newest_segment_goes_first_since_the_driver_places_it_lowest() -> None:
    allocator = Allocator()
    allocator.allocate(0, 32 * MIB)
    allocator.allocate(1, 32 * MIB)
    allocator.free(0)
    allocator.free(1)
    allocator.allocate(2, 16 * MIB)  # splits the second
    assert allocator.give_back() == 32 * MIB  # the first, still whole
    allocator.allocate(3, 16 * MIB)
    assert allocator.reserved_bytes == 32 * MIB


def test_neighbours_that_are_free_become_one_block_again() -> None:
    allocator = Allocator()
    for key in range(5):
        allocator.allocate(key, 4 * MIB)
    for key in (1, 3, 2):
        allocator.free(key)
    allocator.allocate(5, 12 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_segments_are_kept_when_nothing_is_in_use() -> None:
    allocator = Allocator()
    allocator.allocate(0, 100 * MIB)
    allocator.free(0)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 100 * MIB)
    assert allocator.peak_allocated_bytes == 100 * MIB


def test_streams_do_not_share_free_blocks() -> None:
    allocator = Allocator()
    allocator.allocate(0, 50 * MIB, stream=0)
    allocator.free(0)
    allocator.allocate(1, 50 * MIB, stream=1)
    assert allocator.reserved_bytes == 100 * MIB


def test_unused_segments_are_given_back_before_the_device_is_full() -> None:
    allocator = Allocator(limit_bytes=100 * MIB)
    allocator.allocate(0, 60 * MIB)
    allocator.free(0)
    allocator.allocate(1, 80 * MIB)
    assert (allocator.reserved_bytes, allocator.retries) == (80 * MIB, 1)
    assert allocator.peak_reserved_bytes == 80 * MIB


def test_a_full_device_says_its_numbers() -> None:
    allocator = Allocator(limit_bytes=100 * MIB)
    allocator.allocate(0, 60 * MIB)
    with pytest.raises(DeviceFull, match=r"80\.0 MiB requested, 60\.0 MiB in use, 60\.0 MiB reserved of 100\.0 MiB"):
        allocator.allocate(1, 80 * MIB)


def test_an_expandable_segment_grows_by_pages_and_leaves_no_gaps() -> None:
    fixed, growing = Allocator(), Allocator(AllocatorOptions(expandable_segments=True))
    for allocator in (fixed, growing):
        for key, size in enumerate((30, 40, 50)):
            allocator.allocate(key, size * MIB)
            allocator.free(key)
    assert fixed.reserved_bytes == 120 * MIB
    assert growing.reserved_bytes == 60 * MIB
    assert growing.peak_allocated_bytes == 50 * MIB


def test_an_expandable_segment_gives_back_whole_pages_of_free_blocks() -> None:
    allocator = Allocator(AllocatorOptions(expandable_segments=True), limit_bytes=120 * MIB)
    allocator.allocate(0, 60 * MIB)
    allocator.allocate(1, 10 * MIB)
    allocator.free(0)
    allocator.allocate(2, 80 * MIB)
    assert allocator.reserved_bytes <= 120 * MIB
    assert allocator.allocated_bytes == 90 * MIB


def test_oversized_blocks_are_not_split_where_a_largest_split_is_set() -> None:
    allocator = Allocator(AllocatorOptions(max_split_bytes=32 * MIB))
    allocator.allocate(0, 64 * MIB)
    allocator.free(0)
    allocator.allocate(1, 8 * MIB)  # must not come from the 64
    assert allocator.reserved_bytes == 84 * MIB
    assert allocator.allocate(2, 50 * MIB) == 64 * MIB  # may take it whole, within 20 MiB


@for_each("size, taken", [(1200 * 1024, 1280 * 1024), (2 * MIB, 2 * MIB), (5 * MIB, 5 * MIB), (5 * MIB + 1, 6 * MIB)])
def test_requests_are_rounded_to_parts_of_powers_of_two_where_asked(size: int, taken: int) -> None:
    options = parse_allocator_options("roundup_power2_divisions:4")
    assert Allocator(options).rounded(size) == taken


def test_old_segments_are_collected_above_the_threshold() -> None:
    options = AllocatorOptions(garbage_collection_threshold=0.5)
    allocator = Allocator(options, limit_bytes=100 * MIB)
    allocator.allocate(0, 40 * MIB)
    allocator.free(0)
    allocator.allocate(1, 30 * MIB)
    allocator.allocate(2, 40 * MIB)
    assert allocator.reserved_bytes <= 100 * MIB
    assert allocator.retries == 0


def test_renaming_keeps_the_block() -> None:
    allocator = Allocator()
    allocator.allocate(0, 3 * MIB)
    allocator.rename(0, 7)
    assert allocator.free(7) == 3 * MIB
    assert allocator.allocated_bytes == 0


def test_the_state_is_equal_after_a_step_that_leaves_everything_as_it_was() -> None:
    allocator = Allocator()
    allocator.allocate(0, 30 * MIB)
    before = allocator.state()
    allocator.allocate(1, 40 * MIB)
    allocator.free(1)
    after = allocator.state()
    allocator.allocate(1, 40 * MIB)
    allocator.free(1)
    assert before != after == allocator.state()


def test_settings_are_read_as_the_environment_states_them() -> None:
    options = parse_allocator_options(
        "expandable_segments:True, max_split_size_mb:128,garbage_collection_threshold:0.8"
    )
    assert options == AllocatorOptions(True, 128 * MIB, (0,) * 16, 0.8)
    divisions = parse_allocator_options("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]").roundup_power2_divisions
    assert divisions == (1,) * 9 + (2, 4) + (8,) * 5
    assert parse_allocator_options("") == AllocatorOptions()


@for_each(
    "text, why",
    [
        ("expandable_segments", "is not NAME:VALUE"),
        ("expandable_segments:yes", "True or False, not 'yes'"),
        ("max_split_size_mb:20", "above 20, not '20'"),
        ("garbage_collection_threshold:1.5", "between 0 and 1, not '1.5'"),
        ("roundup_power2_divisions:3", "'3' in roundup_power2_divisions is not a power of two"),
        ("roundup_power2_divisions:[256]", "'256' in roundup_power2_divisions is not SIZE_MB:DIVISIONS"),
        ("split:1", "unknown setting 'split'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match="PYTORCH_CUDA_ALLOC_CONF") as refused:
        parse_allocator_options(text)
    assert why in str(refused.value)


def test_another_backend_cannot_be_replayed() -> None:
    with pytest.raises(Unsupported, match="cudaMallocAsync"):
        parse_allocator_options("backend:cudaMallocAsync")


@pytest.mark.parametrize("number", [0, 1, 5, 8, 12, 13, 16, 19, 21, 23])
def test_recorded_streams_reserve_what_the_gpu_reserved(number: int) -> None:
    file = STREAMS / f"tr{number}.json"
    if not file.is_file():
        pytest.skip(f"{file} is not here: set FAIRMILE_SHARED_DATA")
    allocator, keys, reserved, most = Allocator(), {}, 0, 0
    for count, (action, address, size) in enumerate(json.loads(file.read_bytes())):
        if action == "alloc":
            keys[address] = count
            allocator.allocate(count, size)
        elif action == "free_completed" and address in keys:
            allocator.free(keys.pop(address))
        elif action == "segment_alloc":
            reserved += size
            most = max(most, reserved)
        elif action == "segment_free":
            reserved -= size
    assert allocator.peak_reserved_bytes == most
