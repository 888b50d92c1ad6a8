"""All runs of a workspace: found by any name, listed from an index that can be thrown away."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import Conflict, NotFound, UsageError
from fairmile.runs.record.ledger import Ledger
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.runs import Runs


def _impatient(connect: Callable[..., sqlite3.Connection], *given: Any, **more: Any) -> sqlite3.Connection:
    return connect(*given, **{**more, "timeout": 0.1})


class TestFinding:
    def test_by_id_by_its_end_by_last_and_by_path(self, runs: Runs) -> None:
        run = runs.run(["true"], name="tides")
        end = run.id.rpartition("-")[2]
        found = [runs.get(each).id for each in (run.id, end, run.id[:-2], "last", str(run.folder))]
        assert found == [run.id] * 5

    def test_a_wrong_name_gets_the_nearest(self, runs: Runs) -> None:
        run = runs.run(["true"], name="tides")
        with pytest.raises(NotFound, match=f"did you mean '{run.id}'"):
            runs.get("tiides" + run.id.removeprefix("tides"))

    def test_an_ambiguous_name_lists_some(self, runs: Runs) -> None:
        ids = [runs.run(["true"], name="tides").id for _ in range(2)]
        with pytest.raises(NotFound, match=f"is ambiguous: 2 runs, the newest {ids[1]}, {ids[0]}"):
            runs.get("tides")

    def test_last_of_none_says_what_to_do(self, runs: Runs) -> None:
        with pytest.raises(NotFound, match="no run has been recorded"):
            runs.get("last")

    def test_a_folder_that_is_none_is_named(self, runs: Runs, tmp_path: Path) -> None:
        with pytest.raises(NotFound, match=r"run\.json"):
            runs.get(str(tmp_path))

    def test_a_name_selects_all_of_them_and_a_group_its_own(self, runs: Runs) -> None:
        first = [runs.run(["true"], name="tides", group="a").id for _ in range(2)]
        second = runs.run(["true"], name="tides", group="b").id
        assert [run.id for run in runs.select("tides")] == [*first, second]
        assert [run.id for run in runs.select("a")] == first
        assert [run.id for run in runs.select(second)] == [second]


class TestTheIndex:
    def test_lists_all_in_the_order_of_a_part(self, runs: Runs) -> None:
        for _ in range(3):
            runs.run(["true"], watch_s=0)
        rows = runs.rows()
        assert [row.created for row in rows] == sorted((row.created for row in rows), reverse=True)
        assert rows == runs.rows(limit=3)
        assert rows[:2] == runs.rows(limit=2)

    def test_lists_the_newest_first_with_metrics_and_parameters(self, runs: Runs) -> None:
        runs.run(["true"], name="old")
        script = """echo '{"loss": 0.5}' >> $FAIRMILE_METRICS"""
        runs.run(["sh", "-c", script, "{lr}"], name="new", params={"lr": 0.1}, tags=("paper",))
        newest, oldest = runs.rows()
        assert (newest.name, oldest.name) == ("new", "old")
        assert (newest.metrics, newest.params, newest.tags) == ({"loss": 0.5}, {"lr": 0.1}, ("paper",))

    def test_is_filtered_by_name_group_state_and_tag(self, runs: Runs) -> None:
        runs.run(["true"], name="good", group="g", tags=("x",))
        runs.run(["false"], name="bad")
        assert [row.name for row in runs.rows(states=[RunState.FAILED])] == ["bad"]
        assert [row.name for row in runs.rows(group="g")] == ["good"]
        assert [row.name for row in runs.rows(tag="x")] == ["good"]
        assert [row.name for row in runs.rows(name="bad")] == ["bad"]
        assert runs.counts()[""] == {RunState.DONE: 1, RunState.FAILED: 1}

    @pytest.mark.parametrize("damage", [b"", b"no database", b"SQLite format 3\0 and then nothing"])
    def test_can_be_deleted_or_damaged(self, runs: Runs, damage: bytes) -> None:
        run = runs.run(["true"])
        runs.rows()
        (runs.root / ".index.sqlite").write_bytes(damage)
        assert [row.id for row in runs.rows()] == [run.id]
        assert runs.reindex().runs == 1

    def test_of_another_version_is_made_anew(self, runs: Runs) -> None:
        run = runs.run(["true"])
        runs.rows()
        with sqlite3.connect(runs.root / ".index.sqlite") as index:
            index.execute("DROP TABLE runs")
            index.execute("PRAGMA user_version = 99")
        index.close()
        assert [row.id for row in runs.rows()] == [run.id]

    def test_serves_from_memory_where_it_cannot_be_written(self, runs: Runs) -> None:
        run = runs.run(["true"])
        os.mkdir(runs.root / ".index.sqlite")
        assert [row.id for row in runs.rows()] == [run.id]

    def test_notices_runs_that_came_by_rsync_and_those_that_went(self, runs: Runs) -> None:
        run = runs.run(["true"])
        runs.rows()
        document = json.loads((run.folder / "run.json").read_text())
        other = runs.root / "copied-abc234"
        other.mkdir()
        (other / "run.json").write_text(json.dumps({**document, "id": other.name}))
        assert {row.id for row in runs.rows()} == {run.id, other.name}
        runs.remove([run.id])
        assert {row.id for row in runs.rows()} == {other.name}

    def test_reads_no_row_where_no_record_changed(self, runs: Runs) -> None:
        run = runs.run(["true"])
        runs.rows()
        with sqlite3.connect(runs.root / ".index.sqlite") as index:
            index.execute("UPDATE runs SET stamp = '', name = 'as indexed'")
        index.close()
        assert [row.name for row in runs.rows()] == ["as indexed"]
        os.utime(run.folder / "run.json")
        assert [row.name for row in runs.rows()] == [run.name]

    def test_a_look_that_another_process_overtook_is_not_kept(
        self, runs: Runs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run, other = runs.run(["true"]), runs.run(["true"])
        hidden, stamps = runs.root / ".hidden", Ledger._stamps
        os.rename(other.folder, hidden)
        monkeypatch.setattr(Ledger, "_stamps", lambda ledger: overtaken(stamps(ledger)))

        def overtaken(seen: dict[str, str]) -> dict[str, str]:
            monkeypatch.setattr(Ledger, "_stamps", stamps)
            os.rename(hidden, other.folder)
            assert len(Ledger(runs.root).rows()) == 2
            return seen

        Ledger(runs.root).rows()  # looks, and writes what it saw after the other one
        os.rename(other.folder, hidden)
        assert [row.id for row in Ledger(runs.root).rows()] == [run.id]

    def test_lists_a_damaged_record_and_says_so(self, runs: Runs) -> None:
        run = runs.run(["true"])
        (run.folder / "run.json").write_text('{"half": ')
        (row,) = runs.rows()
        assert row.state is RunState.INTERRUPTED
        assert "cannot be read" in row.reason


class TestUpkeep:
    def test_a_packed_run_still_tells_its_log(self, runs: Runs) -> None:
        run = runs.run(["sh", "-c", """echo '{"loss": 0.5}' >> $FAIRMILE_METRICS"""])
        runs.pack(run.id)
        assert [each.value for each in runs.get(run.id).log().metrics] == [0.5]

    def test_a_name_with_a_point_is_no_pack(self, runs: Runs) -> None:
        (runs.root / "a.zip").mkdir(parents=True)
        assert runs.run(["true"], name="a.b").state is RunState.DONE

    def test_removing_what_another_process_removes_is_no_error(
        self, runs: Runs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = runs.run(["true"])
        real = runs.state_of

        def raced(asked: Run) -> RunState:
            shutil.rmtree(run.folder)
            return real(asked)

        monkeypatch.setattr(runs, "state_of", raced)
        assert runs.remove([run.id]) == [run.id]

    def test_is_as_private_as_the_runs_that_it_holds(self, runs: Runs) -> None:
        file = runs.root / ".index.sqlite"
        run = runs.run(["true"])
        runs.rows()
        assert {oct(path.stat().st_mode & 0o777) for path in (file, run.folder)} == {"0o600", "0o700"}
        file.chmod(0o644)  # as an earlier version left it
        runs.rows()
        assert file.stat().st_mode & 0o777 == 0o600

    def test_an_index_that_others_work_with_is_left_alone(self, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
        run = runs.run(["true"])
        runs.rows()
        later = runs.run(["true"])
        monkeypatch.setattr(sqlite3, "connect", functools.partial(_impatient, sqlite3.connect))
        with contextlib.closing(sqlite3.connect(runs.root / ".index.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert {row.id for row in runs.rows()} == {run.id, later.id}
            assert (runs.root / ".index.sqlite").exists()

    def test_a_packed_run_is_one_file_and_found_as_before(self, runs: Runs) -> None:
        run = runs.run(["echo", "hello"])
        packed = runs.pack(run.id)
        assert not run.folder.exists()
        assert packed.is_file()
        again = runs.get(run.id)
        assert (again.packed, again.state) == (True, RunState.DONE)
        assert runs.output(run.id) == b"hello\n"
        assert [row.id for row in runs.rows()] == [run.id]
        assert runs.unpack(run.id) == run.folder
        assert runs.output(run.id) == b"hello\n"

    def test_removing_takes_only_what_has_ended_and_is_ours(self, runs: Runs, tmp_path: Path) -> None:
        run = runs.run(["true"])
        document = json.loads((run.folder / "run.json").read_text())
        document["result"], document["state"] = None, "running"
        (run.folder / "run.json").write_text(json.dumps(document))
        with pytest.raises(Conflict, match="is running"):
            runs.remove([run.id])
        elsewhere = tmp_path / "elsewhere"
        run.folder.rename(elsewhere)
        with pytest.raises(UsageError, match="is not in this workspace"):
            runs.remove([str(elsewhere)])
        assert elsewhere.exists()
