from __future__ import annotations

from fairmile.traces.events import EventKind, EventTable, Lane, RankGroup, Rows
from fairmile.traces.sequences import number_collectives


def ranks(*calls: list[tuple[str, int, int]], backend: str = "gloo") -> EventTable:
    """Return one list of (name, step, number) for each rank, in the order of time."""
    rows = Rows()
    group = RankGroup("0", tuple(range(len(calls))), backend)
    for rank, mine in enumerate(calls):
        for at, (name, step, number) in enumerate(mine):
            rows.add(
                EventKind.COLLECTIVE,
                name,
                10 * at,
                10 * at + 5,
                Lane(rank, "x"),
                group=group,
                step=step,
                sequence=number,
            )
    return rows.table()


def numbers(table: EventTable) -> list[list[int]]:
    return [table.sequence[table.of_rank(rank)].tolist() for rank in table.ranks]


def test_the_same_calls_are_numbered_in_their_order() -> None:
    calls = [("reduce", -1, -1), ("gather", -1, -1), ("reduce", -1, -1)]
    table = ranks(calls, calls)
    assert number_collectives(table) == []
    assert numbers(table) == [[0, 1, 2], [0, 1, 2]]


def test_windows_that_begin_at_other_steps_are_matched_step_by_step() -> None:
    table = ranks(
        [("reduce", 1, -1), ("gather", 1, -1), ("reduce", 2, -1), ("gather", 2, -1)],
        [("reduce", 2, -1), ("gather", 2, -1), ("reduce", 3, -1), ("gather", 3, -1), ("reduce", 4, -1)],
    )
    (note,) = number_collectives(table)
    assert note == "the ranks of group '0' ran different collectives (4, 5): matched step by step"
    assert numbers(table) == [[0, 1, 2, 3], [2, 3, 4, 5, 6]]


def test_without_steps_only_the_order_is_left_and_it_is_said() -> None:
    table = ranks([("reduce", -1, -1)], [("gather", -1, -1), ("reduce", -1, -1)])
    (note,) = number_collectives(table)
    assert note.endswith("matched in order, which may be wrong")
    assert numbers(table) == [[0], [0, 1]]


def test_the_numbers_of_the_library_are_kept_apart_also_where_one_stands_twice() -> None:
    table = ranks(
        [("reduce", 1, 40), ("reduce", 1, 41), ("reduce", 1, 41), ("reduce", 1, 43)],
        [("reduce", 1, 41), ("reduce", 1, 41), ("reduce", 1, 43)],
        backend="nccl",
    )
    assert number_collectives(table) == []
    assert numbers(table) == [[0, 1, 2, 3], [1, 2, 3]]
