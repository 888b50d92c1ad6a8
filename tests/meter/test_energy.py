"""Joules out of samples, against answers worked out by hand."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmile.base.errors import NotFound, UsageError
from fairmile.meter.energy import Energy, energies, energy_by_span, energy_of, estimate, total
from fairmile.meter.lines import Channel, Log, Samples, Spans, Writer

S = 1_000_000_000
T0 = 1_700_000_000 * S
HERE = Writer("n1", 1, None, 0, 0)
POWER = Channel("gpu0.power", "W", "gauge", "nvml", "device 0 (X)", "±5 %")
INSTANT = Channel("gpu0.power_instant", "W", "gauge", "nvml", "device 0 (X)", "±5 %")
ENERGY = Channel("gpu0.energy", "J", "counter", "nvml", "device 0 (X)", "1 mJ")
WRAPPING = Channel("cpu0.energy", "J", "counter", "rapl", "socket 0", "none", 1000.0)


def samples(seconds: Sequence[float], columns: dict[Channel, Sequence[float | None]], writer: Writer = HERE) -> Samples:
    at = array("q", (T0 + round(each * S) for each in seconds))
    return Samples(tuple(columns), writer, at, [list(column) for column in columns.values()])


def only(found: list[Energy]) -> Energy:
    (energy,) = found
    return energy


# By a counter


def test_a_counter_tells_the_energy_by_its_difference() -> None:
    energy = only(energies(samples([0, 1, 2], {ENERGY: [500.0, 700.0, 750.0]})))
    assert (energy.joules, energy.method, energy.samples) == (250.0, "counter", 3)
    assert (energy.channel, energy.source, energy.scope, energy.error) == (
        "gpu0.energy",
        "nvml",
        "device 0 (X)",
        "1 mJ",
    )
    assert (energy.start_ns, energy.end_ns, energy.longest_gap_s) == (T0, T0 + 2 * S, 1.0)
    assert energy.notes == () and energy.host == "n1"


def test_the_counter_is_taken_where_there_is_power_as_well() -> None:
    found = energies(samples([0, 10], {POWER: [100.0, 100.0], ENERGY: [0.0, 990.0]}))
    assert only(found).channel == "gpu0.energy"


def test_a_counter_without_values_leaves_it_to_the_power() -> None:
    found = energies(samples([0, 10], {POWER: [100.0, 100.0], ENERGY: [None, 5.0]}))
    assert (only(found).channel, only(found).joules) == ("gpu0.power", 1000.0)


def test_at_the_ends_a_counter_is_interpolated() -> None:
    measured = samples([0, 10, 20], {ENERGY: [0.0, 100.0, 400.0]})
    energy = only(energies(measured, T0 + 5 * S, T0 + 12 * S))
    assert energy.joules == pytest.approx(50 + 60)
    assert (energy.start_ns, energy.end_ns, energy.notes) == (T0 + 5 * S, T0 + 12 * S, ())


def test_a_counter_that_wraps_goes_on_counting() -> None:
    energy = only(energies(samples([0, 1, 2, 3], {WRAPPING: [900.0, 990.0, 20.0, 60.0]})))
    assert energy.joules == pytest.approx(160.0)
    assert energy.notes == ()


def test_a_counter_that_was_set_back_is_noticed_and_never_subtracts() -> None:
    energy = only(energies(samples([0, 1, 2, 3], {ENERGY: [900.0, 990.0, 20.0, 60.0]})))
    assert energy.joules == pytest.approx(90 + 20 + 40)
    assert energy.notes == ("the counter was reset once: the last counts are lost",)


def test_a_wrap_of_more_than_half_the_range_is_a_counter_set_back() -> None:
    energy = only(energies(samples([0, 1, 2], {WRAPPING: [300.0, 310.0, 20.0]})))
    assert energy.joules == pytest.approx(10 + 20)
    assert "was reset" in energy.notes[0]


# By integrating power


def test_power_is_integrated_over_uneven_times() -> None:
    energy = only(energies(samples([0, 1, 4, 4.5], {POWER: [100.0, 200.0, 300.0, 100.0]})))
    assert energy.joules == pytest.approx(150 + 750 + 100)
    assert energy.method == "trapezoid"
    assert energy.longest_gap_s == 3.0


def test_at_the_ends_power_is_interpolated() -> None:
    measured = samples([0, 10], {POWER: [0.0, 100.0]})
    assert only(energies(measured, T0 + 2 * S, T0 + 4 * S)).joules == pytest.approx((20 + 40) / 2 * 2)


def test_values_that_are_none_are_bridged() -> None:
    energy = only(energies(samples([0, 1, 2, 3], {POWER: [100.0, None, math.nan, 100.0]})))
    assert (energy.joules, energy.samples, energy.longest_gap_s) == (300.0, 2, 3.0)


def test_a_gap_is_told() -> None:
    energy = only(energies(samples([0, 1, 2, 3, 60, 61], {POWER: [100.0] * 6})))
    assert energy.notes == ("no sample for 57 s, interpolated linearly",)
    assert energy.joules == pytest.approx(6100.0)


def test_what_lies_outside_the_samples_is_not_invented() -> None:
    energy = only(energies(samples([0, 1, 2], {POWER: [100.0] * 3}), T0 - 3 * S, T0 + 4 * S))
    assert energy.joules == pytest.approx(200.0)
    assert (energy.start_ns, energy.end_ns) == (T0, T0 + 2 * S)
    assert energy.notes == ("5 s at the ends have no samples",)
    assert energies(samples([0, 1], {POWER: [1.0, 1.0]}), T0 + 5 * S, T0 + 6 * S) == []


def test_a_clock_that_was_set_back_makes_no_energy() -> None:
    energy = only(energies(samples([0, 1, 2, 1, 2, 3], {POWER: [100.0, 100.0, 100.0, 500.0, 500.0, 500.0]})))
    assert energy.joules == pytest.approx(100 + 100 + 300)
    assert energy.samples == 4


def test_one_sample_is_no_energy() -> None:
    assert energies(samples([0], {POWER: [100.0]})) == []
    assert energies(samples([], {POWER: []})) == []


def test_of_two_powers_of_one_scope_the_first_counts() -> None:
    measured = samples([0, 1], {POWER: [100.0, 100.0], INSTANT: [900.0, 900.0]})
    assert only(energies(measured)).joules == 100.0
    found = energy_of(measured, "gpu0.power_instant")
    assert found is not None and found.joules == 900.0


def test_channels_that_are_no_energy_are_left_alone() -> None:
    heat = Channel("gpu0.temperature", "°C")
    measured = samples([0, 1], {heat: [40.0, 41.0]})
    assert energies(measured) == []
    with pytest.raises(UsageError, match="expected an energy or a power"):
        energy_of(measured, "gpu0.temperature")
    with pytest.raises(NotFound, match=r"no channel named 'gpu9\.power'"):
        energy_of(measured, "gpu9.power")


@settings(deadline=None)
@given(
    steps=st.lists(st.floats(0.001, 10), min_size=3, max_size=40),
    powers=st.lists(st.floats(0, 1e4), min_size=41, max_size=41),
    cuts=st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)),
)
def test_the_parts_of_a_time_add_up_to_the_whole(
    steps: list[float], powers: list[float], cuts: tuple[float, float, float]
) -> None:
    times = [sum(steps[:number]) for number in range(len(steps) + 1)]
    counter = [sum(powers[: number + 1]) for number in range(len(times))]
    measured = samples(times, {POWER: powers[: len(times)], ENERGY: counter})
    span = measured.at_ns[-1] - measured.at_ns[0]
    start, middle, end = (measured.at_ns[0] + round(cut * span) for cut in sorted(cuts))
    for channel in ("gpu0.power", "gpu0.energy"):
        parts = [energy_of(measured, channel, *each) for each in ((start, middle), (middle, end))]
        whole = energy_of(measured, channel, start, end)
        assert sum(part.joules for part in parts if part) == pytest.approx(whole.joules if whole else 0, abs=1e-3)


@settings(deadline=None)
@given(power=st.floats(0, 1e5), steps=st.lists(st.floats(0.001, 100), min_size=1, max_size=30))
def test_a_constant_power_gives_power_times_time(power: float, steps: list[float]) -> None:
    times = [sum(steps[:number]) for number in range(len(steps) + 1)]
    energy = only(energies(samples(times, {POWER: [power] * len(times)})))
    assert energy.joules == pytest.approx(power * (energy.end_ns - energy.start_ns) / 1e9)


def watched(powers: Sequence[float], count: int = 31) -> Samples:
    """Return what a watch of a GPU at 10 Hz gives whose counter is read once a second."""
    times = [0.1 * number for number in range(count)]
    by_power = [0.0]
    for before, after in pairwise(powers):
        by_power.append(by_power[-1] + (before + after) / 2 * 0.1)
    slow = [1000.0 + 1.05 * joules if number % 10 == 0 else None for number, joules in enumerate(by_power)]
    mean = [sum(powers) / count] * count
    return samples(times, {POWER: mean, INSTANT: powers, ENERGY: slow})


def test_a_gpu_whose_counter_and_power_come_from_two_sources_is_counted_once() -> None:
    found = energies(watched([200.0] * 31))
    assert only(found).channel == "gpu0.energy" and only(found).notes == ()
    assert total(found).joules == pytest.approx(1.05 * 600)


def test_within_two_values_of_a_slow_counter_the_power_of_the_moment_shares_it_out() -> None:
    powers = [100.0] * 11 + [700.0] * 3 + [100.0] * 17
    measured = watched(powers)
    (found,) = energy_by_span(log(("busy", 1.1, 0.2), ("busy", 2.2, 0.2)), measured)
    assert found.method == "counter"
    assert found.calls == pytest.approx((1.05 * 140, 1.05 * 20))
    assert found.warnings == ()
    assert found.error == "1 mJ; between two values, 1 s apart, shared out by gpu0.power_instant"
    whole = only(energies(measured, T0 + S, T0 + 2 * S))
    assert whole.joules == pytest.approx(measured.column("gpu0.energy")[20] - measured.column("gpu0.energy")[10])  # type: ignore[operator]


def test_a_counter_read_as_often_as_the_power_is_not_shared_out() -> None:
    measured = samples([0, 1, 2], {INSTANT: [0.0, 100.0, 0.0], ENERGY: [0.0, 100.0, 200.0]})
    (found,) = energy_by_span(log(("batch", 0, 0.5)), measured)
    assert found.joules == pytest.approx(50) and found.error == "1 mJ"


def test_where_the_power_says_nothing_a_counter_is_interpolated() -> None:
    (found,) = energy_by_span(log(("batch", 1.0, 0.5)), watched([0.0] * 31))
    assert found.joules == 0.0
    slow = [None if number % 10 else 50.0 * number for number in range(31)]
    dead = samples([0.1 * number for number in range(31)], {INSTANT: [0.0] * 31, ENERGY: slow})
    (found,) = energy_by_span(log(("batch", 1.0, 0.5)), dead)
    assert found.joules == pytest.approx(250)


def test_a_gap_in_which_a_counter_may_wrap_twice_is_told() -> None:
    energy = only(energies(samples([0, 1, 2, 3.5], {WRAPPING: [0.0, 100.0, 200.0, 300.0]})))
    assert energy.notes == ("no value for 1.5 s, during which the counter may wrap more than once",)


# Estimates


def test_an_estimate_says_that_it_is_one() -> None:
    energy = estimate(250.0, T0, T0 + 3600 * S, scope="one GPU")
    assert energy.joules == pytest.approx(900_000)
    assert energy.method == "estimate"
    assert energy.error == "an estimate: 250 W given, nothing measured"


@for_each("watts", [-1.0, math.nan, math.inf])
def test_an_estimate_of_no_power_is_refused(watts: float) -> None:
    with pytest.raises(UsageError):
        estimate(watts, T0, T0 + S, scope="x")


# Totals


def energy(name: str, scope: str, joules: float, host: str = "n1", source: str = "x") -> Energy:
    return Energy(joules, "counter", name, source, scope, "", T0, T0 + S, 2, 1.0, host)


def test_parts_beside_one_another_are_added() -> None:
    found = total(
        [energy("gpu0", "device 0 (A)", 5.0), energy("gpu1", "device 1 (A)", 7.0), energy("c", "socket 0", 1.0)]
    )
    assert found.joules == 13.0 and found.left_out == {}


def test_what_a_node_contains_is_not_added_to_it() -> None:
    parts = [energy("g", "device 0 (A)", 5.0), energy("c", "socket 0", 2.0), energy("acc", "accelerator 0", 5.0)]
    found = total([*parts, energy("node.energy", "node", 10.0)])
    assert found.joules == 10.0
    assert found.left_out == {"n1:g": "within node", "n1:c": "within node", "n1:acc": "within node"}


def test_the_platform_contains_sockets_and_memory_but_no_devices() -> None:
    sockets = [energy("c0", "socket 0", 2.0), energy("m0", "memory of socket 0", 1.0)]
    found = total([*sockets, energy("p", "platform (psys: …)", 4.0), energy("g", "device 0 (A)", 5.0)])
    assert found.joules == 9.0
    assert set(found.left_out) == {"n1:c0", "n1:m0"}


def test_sockets_and_their_memory_are_beside_one_another() -> None:
    assert total([energy("c0", "socket 0", 2.0), energy("m0", "memory of socket 0", 1.0)]).joules == 3.0


def test_one_device_measured_twice_counts_once() -> None:
    found = total([energy("gpu0", "device 0 (A)", 5.0, source="nvml"), energy("accel0", "accelerator 0", 5.5)])
    assert found.joules == 5.0
    assert found.left_out == {"n1:accel0": "the same as gpu0 (nvml)"}


def test_the_first_gpu_of_one_maker_is_not_the_first_of_another() -> None:
    found = total(
        [energy("gpu0.energy", "device 0 (NVIDIA A, GPU-1)", 5.0), energy("amd.gpu0.power", "device 0 (AMD B)", 7.0)]
    )
    assert found.joules == 12.0


def test_what_was_measured_one_after_the_other_is_added() -> None:
    first = energy("gpu0", "device 0 (A)", 5.0)
    later = replace(first, joules=7.0, start_ns=T0 + 60 * S, end_ns=T0 + 90 * S)
    again = replace(later, joules=3.0, start_ns=T0 + 61 * S, channel="twice")
    found = total([first, again, later])
    assert found.joules == 12.0
    assert found.left_out == {"n1:twice": "the same as gpu0 (x)"}


def test_the_parts_of_a_thousand_nodes_are_added_up_at_once() -> None:
    parts = [energy(f"gpu{n}", f"device {n} (A)", 1.0, f"n{host}") for host in range(100) for n in range(8)]
    assert total(parts).joules == 800.0


def test_nodes_are_added_and_a_job_contains_them_all() -> None:
    nodes = [energy("node.energy", "node", 10.0, "n1"), energy("node.energy", "node", 20.0, "n2")]
    assert total(nodes).joules == 30.0
    job = energy("job.energy", "all nodes of job 7, including anything else on them", 31.0)
    assert total([*nodes, job]).joules == 31.0


def test_a_whole_that_counts_less_than_its_parts_is_not_believed() -> None:
    found = total([energy("job.energy", "all nodes of job 7", 0.0), energy("g", "device 0 (A)", 50.0)])
    assert found.joules == 50.0
    assert found.left_out == {"n1:job.energy": "it is less than the sum of its parts"}


def test_devices_with_numbers_that_begin_alike_are_different_devices() -> None:
    assert total([energy("gpu1", "device 1 (A)", 5.0), energy("gpu10", "device 10 (A)", 7.0)]).joules == 12.0


def test_nothing_measured_is_no_total() -> None:
    assert total([]).joules is None


# Spans


def log(*calls: tuple[str, float, float], writer: Writer = HERE) -> Log:
    found: dict[str, Spans] = {}
    for name, start, seconds in calls:
        spans = found.setdefault(name, Spans(name, writer, 1))
        spans.starts_ns.append(T0 + round(start * S))
        spans.durations_ns.append(round(seconds * S))
        spans.attributes.append({"n": len(spans.starts_ns)})
    return Log([writer], list(found.values()))


def test_each_epoch_has_its_energy_by_each_device() -> None:
    other = Channel("gpu1.power", "W", "gauge", "nvml", "device 1 (X)", "±5 %")
    measured = samples(range(11), {POWER: [100.0] * 11, other: [200.0] * 11})
    one, two = energy_by_span(log(("epoch", 1, 2), ("epoch", 4, 3)), measured)
    assert (one.scope, one.joules, one.calls) == ("device 0 (X)", pytest.approx(500), pytest.approx((200, 300)))
    assert (two.scope, two.joules, two.calls) == ("device 1 (X)", pytest.approx(1000), pytest.approx((400, 600)))
    assert one.duration_s == 5.0 and one.attributes == ({"n": 1}, {"n": 2})
    assert one.warnings == () and one.method == "trapezoid" and one.error == "±5 %"


def test_a_span_shorter_than_the_sampling_is_told() -> None:
    (found,) = energy_by_span(log(("batch", 1.2, 0.1)), samples(range(5), {POWER: [100.0] * 5}))
    assert found.joules == pytest.approx(10.0)
    assert found.warnings[0].startswith("the shortest call took 100 ms, less than the 1 s between two values")


def test_a_span_shorter_than_the_counter_takes_to_move_is_told() -> None:
    moving = [0.0, 0.0, 0.0, 0.0, 0.0, 500.0, 500.0, 500.0, 500.0, 500.0, 1000.0]
    (found,) = energy_by_span(log(("batch", 1.2, 2.0)), samples(range(11), {ENERGY: moving}))
    assert "less than the 5 s between two values of gpu0.energy" in found.warnings[0]


@pytest.mark.parametrize("powers", [[52.17] * 11, [50.0] * 5 + [100.0] * 6])
def test_a_power_that_stays_the_same_is_no_slow_sensor(powers: list[float]) -> None:
    (found,) = energy_by_span(log(("epoch", 1, 2)), samples(range(11), {POWER: powers}))
    assert found.warnings == ()


def test_calls_that_overlap_count_each_moment_once() -> None:
    spans = log(("epoch", 1, 4), ("epoch", 3, 4))
    (found,) = energy_by_span(spans, samples(range(11), {POWER: [100.0] * 11}))
    assert found.joules == pytest.approx(600) and found.calls == pytest.approx((400, 400))
    assert found.warnings == ("calls overlap, so their sum exceeds the total",)


def test_calls_outside_the_samples_have_no_energy() -> None:
    (found,) = energy_by_span(log(("epoch", 1, 2), ("epoch", 9, 4)), samples(range(11), {POWER: [100.0] * 11}))
    assert found.calls == (pytest.approx(200), None)
    assert found.warnings == ("1 of 2 calls are outside the sampled time",)
    assert energy_by_span(log(("epoch", 100, 1)), samples(range(11), {POWER: [100.0] * 11})) == []


def test_spans_of_another_host_are_not_charged_to_this_one() -> None:
    elsewhere = Writer("n2", 1, None, 0, 0)
    here, there = (samples(range(5), {POWER: [watts] * 5}, writer) for watts, writer in ((100, HERE), (300, elsewhere)))
    (found,) = energy_by_span(log(("epoch", 1, 2), writer=elsewhere), [here, there])
    assert (found.host, found.joules) == ("n2", pytest.approx(600))


@pytest.mark.thorough
def test_many_spans_and_samples_are_no_burden() -> None:
    # 50,000 calls over 50,000 samples: were each call a walk over all samples, this would not end.
    count = 50_000
    spans = log(*(("batch", 0.1 * number, 0.05) for number in range(count)))
    measured = samples([0.1 * number for number in range(count + 1)], {POWER: [100.0] * (count + 1)})
    (found,) = energy_by_span(spans, measured)
    assert found.joules == pytest.approx(5.0 * count)
