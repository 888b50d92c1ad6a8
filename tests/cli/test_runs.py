"""`fairmile runs` and `fairmile status`: lists, records, packs and crates of what was executed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Fairmile = Callable[..., Any]


@pytest.fixture
def recorded(fairmile: Fairmile) -> str:
    """A run with a metric and a parameter."""
    script = """echo '{"level": 2.5}' >> $FAIRMILE_METRICS; echo printed"""
    told = fairmile("run", "--json", "--name", "tides", "-p", "x=1", "--tag", "paper", "--", "sh", "-c", script, "{x}")
    return str(told.json["id"])


class TestLs:
    def test_without_any_it_says_how_to_record_one(self, fairmile: Fairmile) -> None:
        none = fairmile("runs", "ls")
        assert (none.code, none.out) == (0, "")
        assert none.err == "no runs yet\nhint: `fairmile run train.py --lr 0.1` records one\n"
        assert "no such runs" in fairmile("runs", "ls", "--state", "failed").err
        assert "no sweeps yet" in fairmile("sweep", "ls").err

    def test_lists_runs_with_their_metrics(self, fairmile: Fairmile, recorded: str) -> None:
        assert "level 2.5" in fairmile("runs", "ls").out
        (row,) = fairmile("runs", "ls", "--json", "--tag", "paper").json["runs"]
        assert (row["id"], row["metrics"], row["params"]) == (recorded, {"level": 2.5}, {"x": 1})
        assert fairmile("runs", "ls", "--json", "--state", "failed").json == {"runs": []}

    def test_shows_units_of_metrics(self, fairmile: Fairmile, tmp_path: Path) -> None:
        (tmp_path / "wave.yaml").write_text(
            "command: sh -c 'echo height {x}'\nmetrics: {height: {pattern: 'height (\\S+)', unit: m}}\n"
            "axes: {x: [1, 2]}\n"
        )
        assert "2 m" in fairmile("sweep", "run", str(tmp_path / "wave.yaml")).out
        assert "2 m" in fairmile("sweep", "show", "last").out
        assert "height 2 m" in fairmile("runs", "ls").out
        assert fairmile("runs", "ls", "--json").json["runs"][0]["units"] == {"height": "m"}

    def test_says_numbers_that_are_none_as_texts(self, fairmile: Fairmile) -> None:
        fairmile("run", "--", "sh", "-c", """echo '{"loss": NaN}' >> $FAIRMILE_METRICS""")
        text = fairmile("runs", "ls", "--json").out
        json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))

    def test_a_record_with_a_metric_that_is_none_hides_no_other(self, fairmile: Fairmile, recorded: str) -> None:
        home = Path(os.environ["FAIRMILE_HOME"]) / "runs"
        document = json.loads((home / recorded / "run.json").read_text())
        document["result"]["metrics"]["level"]["value"] = None
        (home / "odd-abcdef").mkdir()
        (home / "odd-abcdef" / "run.json").write_text(json.dumps({**document, "id": "odd-abcdef"}))
        found = {row["id"]: row["state"] for row in fairmile("runs", "ls", "--json").json["runs"]}
        assert found == {recorded: "done", "odd-abcdef": "interrupted"}


class TestShow:
    def test_tells_what_a_run_was(self, fairmile: Fairmile, recorded: str) -> None:
        told = fairmile("runs", "show", "last").out
        assert told.startswith(f"{recorded}: done\n")
        assert "params" in told
        assert re.search(r"^command +sh -c .* 1$", told, re.M), "the command as executed, not {x}"
        assert re.search(r"^on +here$", told, re.M)
        assert fairmile("runs", "show", recorded, "--json").json["id"] == recorded

    @pytest.mark.parametrize(
        ("missing", "said"),
        [
            ({"watch": "the run was too short to measure"}, "not measured: the run was too short to measure"),
            (
                {"nvidia": "no driver", "rapl": "no files"},
                "not measured: no counter of nvidia, rapl here (--json says why)",
            ),
            ({}, "not measured\n"),
        ],
    )
    def test_says_why_energy_was_not_measured(
        self, fairmile: Fairmile, recorded: str, missing: dict[str, str], said: str
    ) -> None:
        file = Path(os.environ["FAIRMILE_HOME"]) / "runs" / recorded / "run.json"
        document = json.loads(file.read_text())
        document["result"]["energy"] = {"total_j": None, "parts": [], "missing": missing}
        file.write_text(json.dumps(document))
        assert said in fairmile("runs", "show", recorded).out

    def test_tells_what_its_energy_means_where_the_region_is_known(
        self, fairmile: Fairmile, recorded: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = Path(os.environ["FAIRMILE_HOME"]) / "runs" / recorded / "run.json"
        document = json.loads(file.read_text())
        document["result"]["energy"] = {"total_j": 3.6e6, "parts": [], "missing": {}}
        file.write_text(json.dumps(document))
        assert "kWh" not in fairmile("runs", "show", recorded).out
        assert "footprint" not in fairmile("runs", "show", recorded, "--json").json
        told = fairmile("runs", "show", recorded, "--region", "FI").out
        assert "1 kWh in Finland" in told and "CO₂e" in told and "cost" in told
        monkeypatch.setenv("FAIRMILE_FOOTPRINT_REGION", "Finland")
        monkeypatch.setenv("FAIRMILE_FOOTPRINT_PUE", "1.5")
        found = fairmile("runs", "show", recorded, "--json").json["footprint"]
        assert (found["kwh"], found["pue"], found["region"]) == (1.5, 1.5, "Finland")
        assert found["co2e_g"] == pytest.approx(1.5 * found["carbon"]["value"])
        assert found["cost"] == pytest.approx(1.5 * found["price"]["value"])
        assert "2 kWh in Finland, PUE 2" in fairmile("runs", "show", recorded, "--pue", "2").out

    @pytest.mark.parametrize(
        ("variable", "value", "said"),
        [("REGION", "Atlantis", "no region 'Atlantis' in the table"), ("PUE", "0.5", "PUE 0.5 is impossible")],
    )
    def test_a_region_or_pue_that_is_none_is_refused(
        self, fairmile: Fairmile, recorded: str, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
    ) -> None:
        monkeypatch.setenv(f"FAIRMILE_FOOTPRINT_{variable}", value)
        done = fairmile("runs", "show", recorded)
        assert (done.code, said in done.err) == (2, True)

    def test_of_a_run_whose_recorder_is_gone_says_so(self, fairmile: Fairmile, recorded: str) -> None:
        file = Path(os.environ["FAIRMILE_HOME"]) / "runs" / recorded / "run.json"
        document = json.loads(file.read_text())
        holder = document["attempts"][-1]["holder"]
        document["attempts"][-1]["holder"] = holder.replace("started=", "started=0")
        document |= {"state": "running", "result": None}
        file.write_text(json.dumps(document))
        assert fairmile("runs", "show", "last").out.startswith(f"{recorded}: interrupted")
        assert fairmile("runs", "show", "last", "--json").json["state"] == "interrupted"

    @pytest.mark.parametrize("reference", ["", "nothing", "./tides.yaml", "/dev/null", "last"])
    def test_of_what_is_no_run_is_a_mistake_of_the_caller(self, fairmile: Fairmile, reference: str) -> None:
        assert fairmile("runs", "show", reference).code == 2

    def test_log_prints_what_it_printed(self, fairmile: Fairmile, recorded: str) -> None:
        assert fairmile("runs", "log", recorded).out == "printed\n"
        assert fairmile("runs", "log", recorded, "--json").json == {"output": "printed\n"}


class TestPacks:
    def test_serve_every_command_that_reads(self, fairmile: Fairmile, recorded: str) -> None:
        assert fairmile("runs", "pack", recorded).code == 0
        assert fairmile("runs", "show", recorded).code == 0
        assert fairmile("runs", "log", recorded).out == "printed\n"
        assert fairmile("runs", "export", recorded, "-o", "a.crate.zip").code == 0
        assert fairmile("report", recorded, "-o", "a.html").code == 0
        assert fairmile("rerun", recorded).code == 0
        assert fairmile("runs", "unpack", recorded).code == 0
        assert fairmile("runs", "show", recorded).code == 0


class TestRemoving:
    def test_says_first_what_it_would_do(self, fairmile: Fairmile, recorded: str) -> None:
        assert fairmile("runs", "rm", "last", "--dry-run").out == f"would remove {recorded}\n"
        assert fairmile("runs", "rm", recorded, "last").out == f"removed {recorded}\n"
        assert fairmile("runs", "ls", "--json").json == {"runs": []}
        left = [name for name in os.listdir(Path(os.environ["FAIRMILE_HOME"]) / "runs") if "tides" in name]
        assert left == []


class TestCrates:
    def test_leave_and_come_back(self, fairmile: Fairmile, recorded: str) -> None:
        assert fairmile("runs", "export", recorded, "-o", "a.crate.zip", "--dry-run").out == "would write a.crate.zip\n"
        assert not Path("a.crate.zip").exists()
        assert fairmile("runs", "export", recorded, "-o", "a.crate.zip").out == "wrote a.crate.zip\n"
        fairmile("runs", "rm", recorded)
        assert fairmile("runs", "import", "a.crate.zip", "--dry-run").out == f"would import {recorded}\n"
        assert fairmile("runs", "ls", "--json").json == {"runs": []}
        assert fairmile("runs", "import", "a.crate.zip").out == f"imported {recorded}\n"
        assert fairmile("runs", "ls", "--json").json["runs"][0]["metrics"] == {"level": 2.5}

    def test_of_failures_elsewhere_are_not_resumed_here(self, fairmile: Fairmile) -> None:
        failed = fairmile("run", "--json", "--", "false").json["id"]
        fairmile("runs", "export", failed, "-o", "a.crate.zip")
        fairmile("runs", "rm", failed)
        fairmile("runs", "import", "a.crate.zip")
        told = fairmile("run", "--resume", failed)
        assert told.code == 2
        assert "ran elsewhere" in told.err


class TestStatus:
    def test_counts_states_and_lists_the_last(self, fairmile: Fairmile, recorded: str) -> None:
        assert fairmile("status").out.startswith("runs: 1 done\n")
        found = fairmile("status", "--json").json
        assert (found["counts"], [row["id"] for row in found["last"]]) == ({"done": 1}, [recorded])

    def test_of_nothing_says_so(self, fairmile: Fairmile) -> None:
        assert fairmile("status").out == "runs: none yet\n"

    def test_a_system_that_is_not_known_any_more_stops_nothing(self, fairmile: Fairmile, recorded: str) -> None:
        file = Path(os.environ["FAIRMILE_HOME"]) / "runs" / recorded / "run.json"
        document = json.loads(file.read_text())
        document |= {"state": "queued", "result": None, "job": {"key": "k", "system": "gone-forever"}}
        file.write_text(json.dumps(document))
        told = fairmile("status")
        assert (told.code, told.out.splitlines()[0]) == (0, "runs: 1 queued")
        assert "gone-forever" in told.err

    def test_reindex_counts_them(self, fairmile: Fairmile, recorded: str) -> None:
        assert fairmile("runs", "reindex").out == "1 run indexed\n"


def test_status_tells_how_far_sweeps_are(fairmile: Fairmile) -> None:
    fairmile("sweep", "run", "-p", "n=1,2,3", "--name", "parts", "--", "sh", "-c", "test {n} != 2")
    assert "unfinished" not in fairmile("status").out  # a point that failed has come to its end
    first = fairmile("runs", "ls", "--json", "--name", "parts", "--state", "done").json["runs"][0]["id"]
    fairmile("runs", "rm", first)
    told = fairmile("status").out
    assert "1 done, 1 failed of 3" in told
    (activity,) = fairmile("status", "--json").json["active"]
    assert (activity["kind"], activity["progress_text"]) == ("sweep", "1 done, 1 failed of 3")
