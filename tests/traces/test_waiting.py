"""Waiting apart from transfer, who came last and why, and Scalasca's names for it."""

from __future__ import annotations

import json

import pytest
from cases import for_each
from trace_making import MS, Training

from fairmile.traces.activity import activities
from fairmile.traces.analyze import analyze
from fairmile.traces.events import EventKind, EventTable, Lane, Process, RankGroup, Rows
from fairmile.traces.matching import operation_of
from fairmile.traces.waiting import Waiting, waiting


class World:
    """Ranks that compute and call each other, one after the other, in one lane each."""

    def __init__(self, ranks: int) -> None:
        self.rows = Rows()
        self.lanes = [Lane(rank, "main") for rank in range(ranks)]
        self.now = [0] * ranks

    def compute(self, *ms: float, name: str = "aten::mm", kind: EventKind = EventKind.REGION) -> None:
        for rank, each in enumerate(ms):
            self.rows.add(kind, name, self.now[rank], self.now[rank] + round(each * MS), self.lanes[rank])
            self.now[rank] += round(each * MS)

    def call(self, name: str, ranks: tuple[int, ...], leave_ms: tuple[float, ...], **more: object) -> None:
        group = RankGroup("-".join(map(str, ranks)), ranks)
        for rank, leave in zip(ranks, leave_ms, strict=True):
            end = round(leave * MS)
            told = {"root": more["root"]} if "root" in more else {}
            self.rows.add(
                EventKind.COLLECTIVE,
                name,
                self.now[rank],
                end,
                self.lanes[rank],
                group=group,
                with_=told,
                bytes=1 << 20,
            )
            self.now[rank] = end

    def message(self, source: int, target: int, sent_ms: float, got_ms: float, size: int = 1 << 20) -> None:
        ends = {source: sent_ms, target: got_ms}
        for rank, name, peer in ((source, "MPI_Send", target), (target, "MPI_Recv", source)):
            end = round(ends[rank] * MS)
            self.rows.add(
                EventKind.P2P, name, self.now[rank], end, self.lanes[rank], bytes=size, with_={"peer": peer, "tag": 0}
            )
            self.now[rank] = end

    def table(self) -> EventTable:
        return self.rows.table(Process(rank, world=len(self.now)) for rank in range(len(self.now)))

    def waiting(self) -> Waiting:
        table = self.table()
        return waiting(table, activities(table))


def states(found: Waiting) -> dict[tuple[int, str], float]:
    return {(each.rank, each.state): round(each.seconds * 1e3, 6) for each in found.states}


@pytest.mark.parametrize("device", [False, True])
def test_waiting_is_told_from_transfer(device: bool) -> None:
    found = analyze(Training(device=device, compute_ms=lambda rank, step: 10 + rank).table()).waiting
    (summary,) = found.collectives
    assert summary.operation == "all_reduce" and summary.calls == 5 and summary.ranks == 4
    assert summary.transfer_s == pytest.approx(5 * 0.002)
    assert summary.wait_s == pytest.approx(5 * 0.0015)  # 3, 2, 1 and 0 ms, mean over ranks
    assert summary.bus_bytes_per_s == pytest.approx((4 << 20) * 1.5 / 0.002)
    assert states(found) == {(0, "Wait at NxN"): 15, (1, "Wait at NxN"): 10, (2, "Wait at NxN"): 5}
    assert [[round(value * 1e3, 6) for value in row] for row in found.matrix] == [
        [0, 0, 0, 15], [0, 0, 0, 10], [0, 0, 0, 5], [0, 0, 0, 0],
    ]  # fmt: skip


@pytest.mark.parametrize("shuffled", [False, True])
def test_the_rank_that_came_last_is_named_with_its_cause(shuffled: bool) -> None:
    found = analyze(Training(compute_ms=lambda rank, step: 15 if rank == 3 else 10, shuffled=shuffled).table())
    (delay,) = found.waiting.delays
    assert (delay.rank, delay.cause, delay.calls) == (3, "compute", 5)
    assert delay.waiting_s == pytest.approx(0.075) and delay.lost_s == pytest.approx(0.025)
    assert delay.direct_s == pytest.approx(0.075) and delay.indirect_s == 0


def test_collectives_match_by_order_where_a_trace_has_no_numbers() -> None:
    table = Training(compute_ms=lambda rank, step: 10 + rank).table()
    table.sequence[:] = -1
    assert analyze(table).waiting.matrix[0][3] == pytest.approx(0.015)


def test_calls_that_not_all_ranks_recorded_are_left_out_and_told() -> None:
    table = Training(compute_ms=lambda rank, step: 10 + rank).table()
    lost = (table.kind == EventKind.COLLECTIVE) & (table.rank == 2) & (table.sequence == 1)
    found = analyze(table.select(~lost))
    assert found.waiting.collectives[0].calls == 4
    assert any("skipped 1 collective without a match" in note for note in found.notes)


def test_a_missing_rank_is_told() -> None:
    table = Training().table()
    table = table.select(table.rank != 1)
    table.processes = [each for each in table.processes if each.rank != 1]
    found = analyze(table)
    assert found.missing_ranks == (1,)
    assert any("only 3 of 4 ranks have a trace" in note for note in found.notes)


def test_a_late_root_makes_a_late_broadcast() -> None:
    world = World(3)
    world.compute(5, 1, 2)
    world.call("MPI_Bcast", (0, 1, 2), (5.5, 6, 6), root=0)
    assert states(world.waiting()) == {(1, "Late Broadcast"): 4, (2, "Late Broadcast"): 3}


def test_an_early_root_makes_an_early_reduce() -> None:
    world = World(3)
    world.compute(1, 4, 2)
    world.call("MPI_Reduce", (0, 1, 2), (5, 4.5, 2.5), root=0)
    assert states(world.waiting()) == {(0, "Early Reduce"): 3}


def test_barriers_have_states_of_their_own() -> None:
    world = World(2)
    world.compute(1, 3)
    world.call("MPI_Barrier", (0, 1), (3.5, 3.2))
    found = states(world.waiting())
    assert found == {(0, "Wait at Barrier"): 2, (0, "Barrier Completion"): 0.3}


def test_what_follows_the_first_to_leave_is_completion() -> None:
    world = World(2)
    world.compute(1, 1)
    world.call("MPI_Allreduce", (0, 1), (2, 2.4))
    assert states(world.waiting()) == {(1, "NxN Completion"): 0.4}


def test_a_receiver_waits_for_a_late_sender_and_a_sender_for_a_late_receiver() -> None:
    world = World(2)
    world.compute(4, 1)
    world.message(0, 1, 5, 5)
    world.compute(1, 6)
    world.message(0, 1, 12, 12)
    found = world.waiting()
    assert states(found) == {(1, "Late Sender"): 3, (0, "Late Receiver"): 5}
    assert {(each.rank, each.cause): round(each.waiting_s * 1e3, 6) for each in found.delays} == {
        (0, "compute"): 3,
        (1, "compute"): 5,
    }


def test_a_sender_that_left_before_the_receiver_came_did_not_wait() -> None:
    world = World(2)
    world.compute(1, 6)
    world.message(0, 1, 1.5, 7)
    assert states(world.waiting()) == {}


def test_a_delay_is_followed_through_other_groups_to_where_it_began() -> None:
    world = World(3)
    world.compute(9, 1, 1)
    world.call("MPI_Allreduce", (0, 1), (10, 10))  # 1 waits 8 ms for 0
    world.compute(0, 0, 0)
    world.call("MPI_Allreduce", (1, 2), (11, 11))  # 2 waits 9 ms for 1, which itself had waited
    found = world.waiting()
    by_cause = {(each.rank, each.cause): each for each in found.delays}
    first = by_cause[(0, "compute")]
    assert first.direct_s == pytest.approx(0.008)
    assert first.indirect_s == pytest.approx(0.009, rel=0.15)
    assert sum(each.waiting_s for each in found.delays) == pytest.approx(0.017)


def test_waits_at_the_same_time_are_counted_once() -> None:
    rows = Rows()
    for rank, late in ((0, 0), (1, 5)):
        for worker in (2, 3):
            lane = Lane(rank, f"gloo {worker}", number=worker)
            rows.add(
                EventKind.COLLECTIVE, "gloo:all_reduce", (10 + late) * MS, 17 * MS, lane, group=RankGroup("g", (0, 1))
            )
        rows.add(EventKind.REGION, "aten::mm", 0, (10 + late) * MS, Lane(rank, "main"))
    table = rows.table([Process(0), Process(1)])
    found = waiting(table, activities(table))
    assert found.matrix[0][1] == pytest.approx(0.005)
    assert sum(each.exposed_s for each in found.collectives) == pytest.approx(0.002)


def test_waits_that_compute_hides_cost_nothing() -> None:
    rows = Rows()
    for rank, late in ((0, 0), (1, 5)):
        lane = Lane(rank, "gloo", number=2)
        rows.add(EventKind.COLLECTIVE, "gloo:all_reduce", (1 + late) * MS, 7 * MS, lane, group=RankGroup("g", (0, 1)))
        rows.add(EventKind.REGION, "aten::mm", 0, 20 * MS, Lane(rank, "main"))
    table = rows.table([Process(0), Process(1)])
    found = waiting(table, activities(table))
    assert states(found) == {(0, "Wait at NxN"): 5}
    assert found.delays == () or all(each.lost_s == 0 for each in found.delays)


def test_the_model_stands_beside_what_was_achieved() -> None:
    class Model:
        def time_s(self, collective: str, size_bytes: float, ranks: int, /, *, nodes: int = 1) -> float:
            assert (collective, size_bytes, ranks, nodes) == ("all_reduce", 4 << 20, 4, 1)
            return 0.0005

    (summary,) = analyze(Training().table(), model=Model()).waiting.collectives
    assert summary.model_s == 0.0005 and summary.efficiency == pytest.approx(0.25)


@for_each(
    "name, operation",
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("gloo:all_gather", "all_gather"),
        ("MPI_Alltoallv", "all_to_all"),
        ("MPI_Bcast", "broadcast"),
        ("MPI_Reduce", "reduce"),
        ("MPI_Gatherv", "gather"),
        ("ncclDevKernel_SendRecv", "point_to_point"),
        ("MPI_Barrier", "barrier"),
        ("something", "other"),
    ],
)
def test_operations_are_known_by_the_names_that_libraries_give_them(name: str, operation: str) -> None:
    assert operation_of(name) == operation


def test_an_analysis_is_plain_data() -> None:
    document = analyze(Training(compute_ms=lambda rank, step: 10 + rank).table()).to_dict()
    again = json.loads(json.dumps(document))
    assert again["waiting"]["delays"][0]["rank"] == 3
    assert again["breakdown"]["ranks"][0]["total"]["compute_s"] == pytest.approx(0.055)
    assert "calls" not in again["waiting"]


def test_a_call_that_ends_before_it_began_takes_no_time() -> None:
    world = World(2)
    world.compute(5, 7)
    world.call("all_reduce", (0, 1), (9, 6))
    (calls,) = world.waiting().calls
    assert calls.meetings.leave.tolist() == [[9 * MS, 7 * MS]]
    assert (calls.transfer >= 0).all() and calls.wait.tolist() == [[2 * MS, 0]]


def test_messages_whose_peer_or_tag_is_nonsense_are_left_out() -> None:
    world = World(2)
    world.rows.add(EventKind.P2P, "MPI_Send", 0, MS, world.lanes[0], with_={"peer": "abc", "tag": [1]})
    world.rows.add(EventKind.P2P, "MPI_Recv", 0, MS, world.lanes[1], with_={"peer": 0, "tag": [1]})
    assert world.waiting().calls == ()
