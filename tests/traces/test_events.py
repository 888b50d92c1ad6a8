from __future__ import annotations

import numpy as np
from cases import for_each

from fairmile.traces.events import EventKind, EventTable, Lane, Process, RankGroup, Rows, concat

MAIN, STREAM = Lane(0, "main"), Lane(0, "stream 7", on_device=True)


def a_step() -> EventTable:
    rows = Rows()
    rows.add(EventKind.PHASE, "ProfilerStep#3", 0, 100, MAIN, step=3)
    rows.add(EventKind.REGION, "outer", 10, 50, MAIN)
    rows.add(EventKind.REGION, "inner", 10, 20, MAIN)
    rows.add(EventKind.LAUNCH, "cudaLaunchKernel", 12, 13, MAIN, correlation=5)
    rows.add(EventKind.REGION, "moment", 60, 60, MAIN)
    rows.add(EventKind.KERNEL, "gemm", 150, 160, STREAM, correlation=5, with_={"dtype": "float"})
    return rows.table([Process(0, world=2)])


def test_the_parent_is_the_innermost_event_of_the_lane_that_holds_the_row() -> None:
    assert a_step().with_parents().parent.tolist() == [-1, 0, 1, 2, 0, -1]


def test_a_parent_holds_its_child_whole_also_where_events_only_overlap() -> None:
    rows = Rows()
    rows.add(EventKind.REGION, "whole", 0, 100, MAIN)
    rows.add(EventKind.REGION, "first", 10, 50, MAIN)
    rows.add(EventKind.REGION, "torn", 30, 70, MAIN)
    assert rows.table().with_parents().parent.tolist() == [-1, 0, 0]


def test_parents_are_right_in_any_order_of_rows_and_within_each_lane_alone() -> None:
    random = np.random.default_rng(7)
    rows = Rows()
    spans = []
    for lane in (MAIN, STREAM):
        stack = [(0, 100_000)]
        while stack:
            start, end = stack.pop()
            spans.append((lane, start, end))
            cuts = np.sort(random.choice(np.arange(start + 1, max(end, start + 2)), 4)) if end - start > 60 else []
            if len(cuts):
                stack += [(int(cuts[0]), int(cuts[1])), (int(cuts[2]), int(cuts[3]))]
    spans = [span for span in spans if span[2] > span[1]]
    for place in random.permutation(len(spans)).tolist():
        lane, start, end = spans[place]
        rows.add(EventKind.REGION, "x", start, end, lane)
    table = rows.table().with_parents()
    for row in range(len(table)):
        holding = [
            other
            for other in range(len(table))
            if other != row
            and table.lane[other] == table.lane[row]
            and table.start_ns[other] <= table.start_ns[row]
            and table.end_ns[other] >= table.end_ns[row]
        ]
        shortest = min((int(table.duration_ns[other]) for other in holding), default=-1)
        parent = int(table.parent[row])
        assert (int(table.duration_ns[parent]) if parent >= 0 else -1) == shortest


def test_rows_belong_to_the_step_they_lie_in_and_a_kernel_to_that_of_its_launch() -> None:
    assert a_step().with_steps().step.tolist() == [3, 3, 3, 3, 3, 3]


def test_the_innermost_iteration_wins_and_outside_there_is_none() -> None:
    rows = Rows()
    rows.add(EventKind.PHASE, "epoch", 0, 100, MAIN, step=1)
    rows.add(EventKind.PHASE, "step", 10, 20, MAIN, step=7)
    for at in (5, 15, 25, 150):
        rows.add(EventKind.MARKER, "x", at, at, MAIN)
    assert rows.table().with_steps().step.tolist() == [1, 7, 1, 7, 1, -1]


def test_a_selection_keeps_parents_and_attributes_of_the_rows_that_stay() -> None:
    table = a_step().with_parents()
    part = table.select(table.of_kind(EventKind.REGION, EventKind.KERNEL))
    assert [part.name_of(row) for row in range(len(part))] == ["outer", "inner", "moment", "gemm"]
    assert part.parent.tolist() == [-1, 0, -1, -1]
    assert part.attribute("dtype").tolist() == [None, None, None, "float"]


def test_tables_join_with_names_lanes_groups_and_components_written_once() -> None:
    rows = Rows()
    group = RankGroup("0", (0, 1))
    rows.add(
        EventKind.COLLECTIVE, "gemm", 1, 2, Lane(1, "main", component="solver"), group=group, with_={"dtype": "half"}
    )
    both = concat([a_step().with_parents(), rows.table([Process(1)]), a_step().with_parents()])
    assert len(both) == 13
    assert both.validate() == []
    assert both.names.count("gemm") == 1 and both.lanes.count(MAIN) == 1
    assert both.name_of(6) == "gemm" and both.lanes[both.lane[6]].component == "solver"
    assert both.components[both.component[6]] == "solver"
    assert both.groups[both.group[6]] == group and both.group[0] == -1
    assert both.parent[8] == 7  # the outer region of the last table within its step
    assert [both.attributes["dtype"].get(row) for row in (5, 6, 12)] == ["float", "half", "float"]


def test_sorting_puts_an_outer_event_before_what_lies_within_it() -> None:
    table = a_step()
    mixed = table.select(np.array([5, 2, 1, 0, 4, 3])).sorted()
    assert [mixed.name_of(row) for row in range(3)] == ["ProfilerStep#3", "outer", "inner"]
    assert mixed.start_ns.tolist() == sorted(table.start_ns.tolist())


def test_the_table_knows_which_ranks_have_no_trace() -> None:
    table = a_step()
    assert table.ranks == [0]
    assert table.missing_ranks == [1]


def test_a_world_that_no_machine_has_room_for_is_not_believed() -> None:
    table = a_step()
    table.processes = [Process(0, world=1 << 40)]
    assert table.missing_ranks == []


def test_a_number_that_no_column_can_hold_is_not_known_and_costs_no_event() -> None:
    rows = Rows()
    rows.add(EventKind.REGION, "far", 1, 2, MAIN, bytes=1 << 80, step=1 << 40, value=7.0)
    rows.add(EventKind.REGION, "near", 3, 4, MAIN, bytes=5, step=6)
    table = rows.table()
    assert (table.bytes.tolist(), table.step.tolist()) == ([-1, 5], [-1, 6])
    assert (table.value[0], table.names) == (7.0, ["far", "near"])


def test_ranks_come_one_by_one_with_their_component() -> None:
    rows = Rows()
    for rank, component in ((3, ""), (0, "solver"), (3, "solver")):
        rows.add(EventKind.REGION, "x", rank, rank + 1, Lane(rank, "main", component=component))
    found = [(component, rank, len(part)) for component, rank, part in rows.table().by_rank()]
    assert found == [("", 3, 1), ("solver", 0, 1), ("solver", 3, 1)]


@for_each(
    "change, sentence",
    [
        ({"end_ns": [-5] * 6}, "6 events end before they start"),
        ({"lane": [9] * 6}, "column lane goes from 9 to 9, there are 2 entries"),
        ({"parent": [6] * 6}, "column parent names row 6 of 6"),
    ],
)
def test_what_breaks_the_rules_is_told(change: dict[str, list[int]], sentence: str) -> None:
    table = a_step()
    for column, values in change.items():
        setattr(table, column, np.array(values))
    assert sentence in table.validate()


def test_a_table_shows_itself_in_a_line_and_as_a_frame() -> None:
    table = EventTable.of({"start_ns": [0, 5], "end_ns": [4, 9], "name": [0, 0], "rank": [0, 1]}, names=["step"])
    assert repr(table) == "<EventTable: 2 events of 2 ranks>"
    assert table.to_pandas()["name"].tolist() == ["step", "step"]
    assert "<table" in table._repr_html_()
