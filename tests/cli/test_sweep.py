"""`fairmile sweep`: what a user sees of many runs from one small file, on this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairmile.cli.main import run as run_command
from fairmile.sweeps.sweeps import Sweeps

Fairmile = Callable[..., Any]

RATES = """\
name: rates
command: sh -c "echo loss=$(({lr} * {epochs}))"
axes:
  lr: [1, 2]
  epochs: "3,4,5"
metrics: {loss: {pattern: "loss=([0-9]+)", better: lower}}
"""
# The second of three points fails until the folder that it asks for is there.
FLAKY = """\
name: flaky
command: sh -c 'test {n} != 2 || test -d FOLDER || { echo the gauge is dry; exit 1; }'
axes: {n: [1, 2, 3]}
every: 0
"""
# Projects in the three forms of cloudmesh-ee: with directives by host, the older one, and with names inside of names.
CLOUDMASK = """\
name: cloudmask
ee: {time: "12:00:00"}
experiment:
  directive: "a100,v100"
  repeat: "[08-10]"
  epoch: 200
  early_stoppage: "False"
system: {host: rivanna}
data:
  scratch: "/scratch/{os.USER}"
  training: "{data.scratch}/one-day"
"""
EARTHQUAKE = """\
name: earthquake
experiments:
  card_name: "a100,k80"
  TFTTransformerepochs: "2,70"
attributes:
  time: "3-0"
  run: {datadir: data}
"""
NESTED = """\
name: osmi
submission: {benchmark: {name}}
experiment: {model: "small,large", directive: default}
time: {small: 5, large: 60}
system: {host: crusher}
"""
BATCH = """\
#!/bin/bash
#SBATCH --time={ee.time}
{slurm.sbatch}
echo {experiment.repeat} {data.training} ${HOME}
"""
# Whoever starts the tests may ignore interruptions, and children inherit that.
START = """
import signal
from fairmile.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""
HOLD = """
import sys
from fairmile.base.files import Lock
with Lock(sys.argv[1], timeout_s=5):
    print(flush=True)
    input()
"""


@pytest.fixture
def sweep(fairmile: Fairmile, place: Path) -> Fairmile:
    """Run `fairmile sweep …` beside a file `rates.yaml`."""
    (place / "rates.yaml").write_text(RATES)

    def call(*arguments: str) -> Any:
        return fairmile("sweep", *arguments)

    return call


@pytest.fixture
def flaky(sweep: Fairmile, place: Path) -> Path:
    """A file whose second point fails until the folder that is returned exists."""
    (place / "flaky.yaml").write_text(FLAKY.replace("FOLDER", str(place / "there")))
    return place / "there"


def states(sweep: Fairmile, reference: str = "last") -> dict[str, int]:
    return dict(Counter(each["state"] for each in sweep("show", reference, "--json").json["points"]))


def home() -> Path:
    return Path(os.environ["FAIRMILE_HOME"])


class TestPlan:
    def test_prints_count_axes_and_points_and_nothing_else(self, sweep: Fairmile) -> None:
        done = sweep("plan", "rates.yaml", "--select", "epochs != 4", "--json")
        assert (done.code, done.err) == (0, "")
        assert done.json == {
            "count": 4,
            "axes": {"lr": [1, 2], "epochs": [3, 4, 5]},
            "points": [
                {"id": "lr_1_epochs_3", "values": {"lr": 1, "epochs": 3}},
                {"id": "lr_1_epochs_5", "values": {"lr": 1, "epochs": 5}},
                {"id": "lr_2_epochs_3", "values": {"lr": 2, "epochs": 3}},
                {"id": "lr_2_epochs_5", "values": {"lr": 2, "epochs": 5}},
            ],
        }
        assert not (home() / "sweeps").exists()

    def test_shows_axes_and_the_first_points(self, sweep: Fairmile) -> None:
        done = sweep("plan", "rates.yaml")
        assert done.out.splitlines()[:3] == ["lr: 2 values: 1, 2", "epochs: 3 values: 3, 4, 5", "6 points"]
        assert done.out.splitlines()[4] == "lr_1_epochs_3  1   3"
        many = sweep("plan", "rates.yaml", "-p", "epochs=range(0,50)")
        assert len(many.out.splitlines()) == 4 + 20
        assert "80 more" in many.err

    def test_repeats_are_points_of_their_own(self, sweep: Fairmile) -> None:
        found = sweep("plan", "rates.yaml", "--select", "lr == 1 and epochs == 3", "--repeats", "2", "--json").json
        assert found["points"] == [
            {"id": f"lr_1_epochs_3_repeat_{n}", "values": {"lr": 1, "epochs": 3, "repeat": n}} for n in (1, 2)
        ]
        assert found["axes"] == {"lr": [1, 2], "epochs": [3, 4, 5]}

    def test_a_command_is_not_looked_for_since_it_may_be_there_only_where_it_runs(self, sweep: Fairmile) -> None:
        assert sweep("plan", "-p", "n=1,2", "--json", "--", "no-such-program", "{n}").json["count"] == 2

    @pytest.mark.parametrize(
        "said", ["lake-temperatures", "./nosuch", "tide.py", "https://data.invalid/a.csv", "zenodo:1", "doi:10.1/x"]
    )
    def test_an_input_that_is_known_or_is_a_path_or_an_address_is_taken_without_a_network(
        self, sweep: Fairmile, lake: Fairmile, place: Path, monkeypatch: pytest.MonkeyPatch, said: str
    ) -> None:
        asked: list[object] = []
        monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **_: asked.append(words))
        text = f"command: cat {{inputs.x}} {{n}}\naxes: {{n: [1, 2]}}\ninputs: {{x: '{said}'}}\n"
        (place / "in.yaml").write_text(text)
        done = sweep("plan", "in.yaml", "--json")
        assert (done.code, done.err) == (0, "")
        assert done.json["count"] == 2
        assert asked == []

    def test_an_input_that_a_run_file_names_is_told_at_the_line_that_names_the_file(
        self, sweep: Fairmile, place: Path
    ) -> None:
        (place / "one.yaml").write_text("argv: [cat, '{inputs.x}', '{n}']\ninputs: {x: {asset: nosuch}}\n")
        (place / "many.yaml").write_text("axes: {n: [1, 2]}\nrun: one.yaml\n")
        done = sweep("plan", "many.yaml")
        assert done.code == 2
        assert done.err.startswith("error: many.yaml:2: no asset named 'nosuch' in the catalog\n")

    def test_an_input_that_an_option_replaces_is_not_missed(self, sweep: Fairmile, place: Path) -> None:
        (place / "in.yaml").write_text("command: cat {inputs.x} {n}\naxes: {n: [1, 2]}\ninputs: {x: nosuch}\n")
        assert sweep("run", "in.yaml", "--dry-run").code == 2
        assert sweep("run", "in.yaml", "--data", "x=./rates.yaml", "--dry-run").code == 0

    def test_axes_of_the_command_line_need_no_file(self, sweep: Fairmile) -> None:
        done = sweep("plan", "-p", "lr=0.1,0.01", "-p", "n=range(1,4)", "--json", "--", "echo", "{lr}", "{n}")
        assert done.json["axes"] == {"lr": [0.1, 0.01], "n": [1, 2, 3]}
        assert done.json["count"] == 6

    def test_values_keep_the_type_that_they_were_written_with(self, sweep: Fairmile, place: Path) -> None:
        (place / "types.yaml").write_text('axes: {a: ["1", 1, 1.0, true, "12:00:00"], b: "[08-09]"}\n')
        axes = sweep("plan", "types.yaml", "--json").json["axes"]
        assert [(type(each).__name__, each) for each in axes["a"]] == [
            ("str", "1"), ("int", 1), ("float", 1.0), ("bool", True), ("str", "12:00:00")
        ]  # fmt: skip
        assert axes["b"] == ["08", "09"]

    def test_a_placeholder_is_missed_at_the_point_that_lacks_it(self, sweep: Fairmile, place: Path) -> None:
        text = "command: echo {minutes.{model}}\nsettings: {minutes: {small: 5}}\naxes: {model: [small, large]}\n"
        (place / "nested.yaml").write_text(text)
        done = sweep("plan", "nested.yaml")
        assert done.code == 2
        assert "{minutes.{model}}, here {minutes.large}, is not defined" in done.err


class TestGenerate:
    def test_writes_a_folder_per_point_a_manifest_and_submit_scripts(self, sweep: Fairmile, place: Path) -> None:
        (place / "job.in.slurm").write_text("#!/bin/bash\n#SBATCH --time=5\npython tide.py {lr} {epochs} ${HOME}\n")
        words = ("rates.yaml", "--template", "job.in.slurm", "--code", "tide.py", "--out", "out", "--split-among", "2")
        told = sweep("generate", *words, "--dry-run")
        assert told.code == 0
        assert told.out.startswith("6 folders in out: first lr_1_epochs_3, last lr_2_epochs_5\n")
        assert sweep("generate", *words, "--dry-run", "--json").json["count"] == 6
        assert not (place / "out").exists()
        done = sweep("generate", *words)
        assert (done.code, done.out) == (0, "6 folders in out\n")
        script = (place / "out" / "lr_2_epochs_5" / "job.slurm").read_text()
        assert script == "#!/bin/bash\n#SBATCH --time=5\npython tide.py 2 5 ${HOME}\n"
        assert (place / "out" / "lr_2_epochs_5" / "tide.py").read_bytes() == (place / "tide.py").read_bytes()
        lines = [(place / "out" / f"submit{part}.sh").read_text().count("sbatch") for part in ("", "-1", "-2")]
        assert lines == [6, 3, 3]
        assert json.loads((place / "out" / "rates.json").read_text())["lr_1_epochs_3"]["experiment"] == "lr=1 epochs=3"

    def test_the_same_again_changes_nothing_and_something_else_is_refused(self, sweep: Fairmile, place: Path) -> None:
        assert sweep("generate", "rates.yaml", "--out", "out").code == 0
        again = sweep("generate", "rates.yaml", "--out", "out", "--json")
        assert (again.json["count"], again.json["kept"]) == (6, 6)
        (place / "rates.yaml").write_text(RATES.replace("echo", "printf"))
        done = sweep("generate", "rates.yaml", "--out", "out")
        assert done.code == 2
        assert "exists with different content" in done.err

    def test_the_scripts_of_a_command_run(self, sweep: Fairmile, place: Path) -> None:
        sweep("generate", "rates.yaml", "--out", "out")
        done = subprocess.run(["sh", "out/submit.sh"], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [f"loss={lr * epochs}" for lr in (1, 2) for epochs in (3, 4, 5)]


class TestProjectsOfCloudmesh:
    def test_directives_come_from_the_host_and_times_stay_texts(
        self, sweep: Fairmile, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("USER", "someone")
        (place / "config.yaml").write_text(CLOUDMASK)
        (place / "job.in.slurm").write_text(BATCH)
        plan = sweep("plan", "config.yaml", "--template", "job.in.slurm", "--name", "masks", "--json").json
        assert plan["count"] == 6
        assert plan["axes"]["repeat"] == ["08", "09", "10"]
        assert plan["points"][0]["id"] == "directive_a100_repeat_08_epoch_200_early_stoppage_False"
        words = ("generate", "config.yaml", "--template", "job.in.slurm", "--out", "out", "--name", "masks")
        assert sweep(*words).code == 0
        script = (place / "out" / "directive_v100_repeat_09_epoch_200_early_stoppage_False" / "job.slurm").read_text()
        assert script.splitlines() == [
            "#!/bin/bash",
            "#SBATCH --time=12:00:00",
            "#SBATCH --gres=gpu:v100:1",
            "#SBATCH --partition=bii-gpu",
            "#SBATCH --account=bii_dsc_community",
            "echo 09 /scratch/someone/one-day ${HOME}",
        ]
        manifest = json.loads((place / "out" / "masks.json").read_text())
        assert list(manifest) == [each["id"] for each in plan["points"]]

    def test_the_older_form_with_attributes(self, sweep: Fairmile, place: Path) -> None:
        (place / "config.yaml").write_text(EARTHQUAKE)
        (place / "job.in.sh").write_text("#!/bin/sh\necho {card_name} {TFTTransformerepochs} {time} {run.datadir}\n")
        assert sweep("plan", "config.yaml", "--json").json["points"][-1] == {
            "id": "card_name_k80_TFTTransformerepochs_70",
            "values": {"card_name": "k80", "TFTTransformerepochs": "70"},
        }
        assert sweep("generate", "config.yaml", "--template", "job.in.sh", "--out", "out").code == 0
        last = place / "out" / "card_name_k80_TFTTransformerepochs_70" / "job.sh"
        assert last.read_text().splitlines()[1] == "echo k80 70 3-0 data"

    def test_names_inside_of_names(self, sweep: Fairmile, place: Path) -> None:
        (place / "config.yaml").write_text(NESTED)
        (place / "job.in.slurm").write_text("#!/bin/sh\n#SBATCH --time={time.{experiment.model}}\n{slurm.sbatch}\n")
        assert sweep("generate", "config.yaml", "--template", "job.in.slurm", "--out", "out").code == 0
        text = (place / "out" / "model_large_directive_default" / "job.slurm").read_text()
        assert text == "#!/bin/sh\n#SBATCH --time=60\n#SBATCH --partition=batch\n"

    def test_they_are_executed_too(self, sweep: Fairmile, fairmile: Fairmile, place: Path) -> None:
        (place / "config.yaml").write_text(EARTHQUAKE)
        (place / "job.in.sh").write_text("#!/bin/sh\necho {card_name} {TFTTransformerepochs}\n")
        done = sweep("run", "config.yaml", "--template", "job.in.sh", "--every", "0", "--json")
        assert done.code == 0
        last = done.json["points"][-1]
        assert fairmile("runs", "log", last["run"]).out == "k80 70\n"

    def test_programs_are_executed_only_when_that_is_asked_for(self, sweep: Fairmile, place: Path) -> None:
        (place / "config.py").write_text("open('ran', 'w').close()\nexperiment = {'n': '1,2'}\n")
        refused = sweep("plan", "config.py")
        assert refused.code == 2
        assert "--allow-code" in refused.err
        assert not (place / "ran").exists()
        assert sweep("plan", "config.py", "--allow-code", "--json").json["count"] == 2
        assert (place / "ran").exists()


class TestRun:
    def test_every_point_is_a_run_and_the_best_is_told(self, sweep: Fairmile, fairmile: Fairmile) -> None:
        done = sweep("run", "rates.yaml", "-j", "2", "--best", "loss")
        assert done.code == 0
        first, *rest = done.out.splitlines()
        assert first.startswith("sweep rates-") and first.endswith(": 6 done")
        assert rest[0].startswith("Best by loss: lr=1, epochs=3 with 3.")
        id = first.removeprefix("sweep ").partition(":")[0]
        assert done.err.startswith(f"sweep {id}: 6 points\n")
        assert f"fairmile report {id}" in done.err
        rows = fairmile("runs", "ls", "--group", id, "--json").json["runs"]
        assert sorted(row["id"] for row in rows) == [f"{id}-{n:05d}" for n in range(6)]
        assert {row["metrics"]["loss"] for row in rows} == {3, 4, 5, 6, 8, 10}

    def test_a_wrong_value_of_an_axis_is_refused_by_name_before_anything_starts(self, fairmile: Fairmile) -> None:
        refused = fairmile("sweep", "mnist", "-p", "learning_rate=0,0.1")
        assert refused.code == 2
        assert refused.err == "error: -p learning_rate: expected a number above 0, found 0\n"
        assert fairmile("sweep", "ls", "--json").json["sweeps"] == []

    def test_the_metric_that_ranks_is_kept_for_status_and_report(self, fairmile: Fairmile) -> None:
        line = 'echo \'{"loss": 0.1, "speed": 2}\' >> $FAIRMILE_METRICS'
        done = fairmile("sweep", "--best", "elapsed_s", "-p", "n=1,2", "--", "sh", "-c", line, "{n}")
        assert done.code == 0
        assert "Best by elapsed time" in fairmile("sweep", "show", "last").out
        assert fairmile("report", "last", "-o", "page.md").code == 0
        assert "Best by elapsed time" in Path("page.md").read_text()

    def test_the_best_and_the_results_are_printed_without_being_asked_for(self, sweep: Fairmile) -> None:
        _, best, *lines = sweep("run", "rates.yaml", "--select", "epochs == 3").out.splitlines()
        assert best.startswith("Best by loss: lr=1 with 3.")
        table = [line.split()[1:] for line in lines if not line.startswith("chance")]
        assert table == [["state", "lr", "epochs", "loss"], ["done", "1", "3", "3"], ["done", "2", "3", "6"]]
        assert sweep("show", "last", "--json").json["best"].startswith(best)

    def test_without_metrics_the_output_of_a_point_is_named(self, fairmile: Fairmile) -> None:
        done = fairmile("sweep", "-p", "n=1", "--", "echo", "{n}")
        id = done.out.split()[1].rstrip(":")
        assert f"`fairmile runs log {id}-00000` prints the output of a point" in done.err

    def test_a_metric_that_no_point_has_does_not_hide_how_the_sweep_ended(self, sweep: Fairmile) -> None:
        done = sweep("run", "rates.yaml", "--best", "los")
        assert done.code == 2
        assert done.out.splitlines()[0].endswith(": 6 done")
        assert "did you mean 'loss'?" in done.err
        assert "Best by loss" in sweep("show", "last").out, "a mistyped metric does not stay with the sweep"

    def test_with_json_only_data_is_printed(self, sweep: Fairmile) -> None:
        found = sweep("run", "rates.yaml", "--best", "loss", "--json").json
        assert [each["metrics"] for each in found["points"]] == [{"loss": n} for n in (3, 4, 5, 6, 8, 10)]
        assert [each["values"] for each in found["points"]][-1] == {"lr": 2, "epochs": 5}
        assert found["best"].startswith("Best by loss: lr=1, epochs=3")

    def test_a_word_that_is_no_command_is_what_is_run(self, sweep: Fairmile) -> None:
        assert sweep("rates.yaml", "-p", "lr=7", "--json").json["points"][0]["values"] == {"lr": 7, "epochs": 3}
        done = sweep("-p", "n=1,2", "--", "echo", "{n}")
        assert (done.code, done.out.endswith(": 2 done\n")) == (0, True)

    def test_an_asset_is_swept_over_by_its_name(self, sweep: Fairmile, fairmile: Fairmile, place: Path) -> None:
        (place / "bench.jsonld").write_text(
            json.dumps(
                {
                    "@context": "https://w3id.org/fairmile/card/1.0/context",
                    "@type": "SoftwareSourceCode",
                    "name": "bench",
                    "version": "1.0",
                    "license": "https://spdx.org/licenses/MIT",
                    "description": "Says a rate.",
                    "command": ["echo", "rate", "{lr}"],
                }
            )
        )
        assert fairmile("catalog", "add", "bench.jsonld").code == 0
        done = sweep("bench", "-p", "lr=0.1,0.01", "--json")
        assert done.code == 0, done.err
        logs = [fairmile("runs", "log", each["run"]).out for each in done.json["points"]]
        assert logs == ["rate 0.1\n", "rate 0.01\n"]

    def test_a_dry_run_tells_what_would_be_done(self, sweep: Fairmile) -> None:
        done = sweep("run", "rates.yaml", "--dry-run")
        assert done.code == 0
        assert "6 points: first lr_1_epochs_3, last lr_2_epochs_5\n" in done.out
        assert "time: unknown" in done.out
        on = sweep("run", "rates.yaml", "--on", "jureca", "--account", "me", "--time", "10:00", "--dry-run", "--json")
        assert on.json["node_hours"] == 1.0
        assert on.json["last"] == {"id": "lr_2_epochs_5", "values": {"lr": 2, "epochs": 5}}
        assert not (home() / "sweeps").exists()

    def test_a_failed_point_tells_why_and_how_to_do_it_again(self, sweep: Fairmile, flaky: Path) -> None:
        done = sweep("run", "flaky.yaml")
        assert done.code == 1
        id, _, counts = done.out.splitlines()[0].removeprefix("sweep ").partition(": ")
        assert counts == "2 done, 1 failed"
        assert (
            done.out.splitlines()[1]
            == f"n_2: failed: exit code 1: the gauge is dry  → fairmile run --resume {id}-00001"
        )
        assert f"`fairmile sweep run {id} --failed`" in done.err
        assert sweep("run", id).code == 1
        assert sweep("show", id, "--state", "failed", "--json").json["points"][0]["id"] == "n_2"
        flaky.mkdir()
        again = sweep("run", id, "--failed")
        assert (again.code, again.out) == (0, f"sweep {id}: 3 done\n")

    def test_a_rejected_argument_is_named_and_a_retry_is_not_offered(self, sweep: Fairmile, place: Path) -> None:
        program = "import sys\nprint('usage:', sys.argv[0])\nprint('No such option: --lrr')\nsys.exit(2)\n"
        (place / "train.py").write_text(program)
        done = sweep("train.py", "--lrr", "1,2")
        assert "hint: correct --lrr: `" in done.err
        assert "hint: then start a new sweep; `fairmile sweep rm " in done.err
        assert "--failed" not in done.err

    def test_the_one_line_rerun_does_that_point(self, sweep: Fairmile, fairmile: Fairmile, flaky: Path) -> None:
        line = sweep("run", "flaky.yaml").out.splitlines()[1].partition("→ fairmile ")[2]
        flaky.mkdir()
        assert fairmile(*line.split()).code == 0
        assert states(sweep) == {"done": 3}

    def test_what_is_done_is_not_done_again(self, sweep: Fairmile, place: Path) -> None:
        text = f"name: notes\ncommand: sh -c 'echo {{n}} >> {place}/notes'\naxes: {{n: [1, 2]}}\nevery: 0\n"
        (place / "notes.yaml").write_text(text)
        sweep("run", "notes.yaml")
        assert sweep("run", "last").out.endswith(": 2 done\n")
        assert (place / "notes").read_text() == "1\n2\n"

    def test_an_interrupted_sweep_goes_on_where_it_was(self, sweep: Fairmile, place: Path) -> None:
        text = f"""\
name: slow
command: sh -c 'echo {{n}} >> {place}/begun; test -e {place}/go || sleep 600; echo {{n}} >> {place}/ended'
axes: {{n: [1, 2, 3]}}
every: 0
"""
        (place / "slow.yaml").write_text(text)
        words = [sys.executable, "-c", START, "sweep", "run", "slow.yaml"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not (place / "begun").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (130, "")
        assert "runs the missing points" in err
        assert "Traceback" not in err
        assert states(sweep).get("done") is None
        (place / "go").touch()
        assert sweep("run", "last").code == 0
        assert sorted((place / "ended").read_text().split()) == ["1", "2", "3"]
        assert states(sweep) == {"done": 3}

    def test_who_stops_following_jobs_is_told_that_they_go_on(
        self, sweep: Fairmile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(*_: Any, **__: Any) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr(Sweeps, "run", interrupted)
        done = sweep("run", "rates.yaml")
        assert (done.code, done.out) == (130, "")
        assert "hint: `fairmile sweep run rates-" in done.err

    def test_a_combining_step_reads_all_results(self, sweep: Fairmile, fairmile: Fairmile, place: Path) -> None:
        (place / "rates.yaml").write_text(RATES + "combine: cat {inputs.results}\n")
        sweep("run", "rates.yaml")
        id = sweep("ls", "--json").json["sweeps"][0]["id"]
        rows = json.loads(fairmile("runs", "log", f"{id}-combined").out)
        assert [row["metrics"]["loss"] for row in rows] == [3, 4, 5, 6, 8, 10]


class TestLooking:
    def test_sweeps_are_listed_the_newest_first(self, sweep: Fairmile) -> None:
        assert sweep("ls").out == ""
        assert sweep("ls", "--json").json == {"sweeps": []}
        sweep("run", "rates.yaml", "--name", "first")
        sweep("run", "rates.yaml", "--name", "second")
        found = sweep("ls", "--json").json["sweeps"]
        assert [each["name"] for each in found] == ["second", "first"]
        assert found[0]["runs"] == {"done": 6}
        assert sweep("ls", "-n", "1").out.splitlines()[1].split()[1:5] == ["6", "points", "6", "done"]

    def test_a_sweep_is_shown_point_by_point(self, sweep: Fairmile) -> None:
        sweep("run", "rates.yaml")
        lines = sweep("show", "last", "--best", "loss").out.splitlines()
        assert lines[0].split() == ["run", "state", "lr", "epochs", "loss"]
        assert lines[6].split()[1:] == ["done", "2", "5", "10"]
        assert lines[7].startswith("Best by loss")
        assert "best" in sweep("show", "rates", "--best", "loss", "--json").json
        assert sweep("show", "last", "--state", "failed").out == ""

    def test_repeats_are_told_apart(self, sweep: Fairmile) -> None:
        sweep("run", "rates.yaml", "--select", "epochs == 3", "--repeats", "2")
        heading, *rows = sweep("show", "last").out.splitlines()
        assert heading.split() == ["run", "state", "lr", "epochs", "repeat", "loss"]
        assert [row.split()[2:6] for row in rows[:4]] == [
            [lr, "3", repeat, f"{3 * int(lr)}"] for lr in "12" for repeat in "12"
        ]
        assert [each["repeat"] for each in sweep("show", "last", "--json").json["points"]] == [1, 2, 1, 2]

    def test_a_metric_that_is_no_number_is_still_json(self, sweep: Fairmile, place: Path) -> None:
        program = """sh -c 'echo "{\\"loss\\": NaN}" >> $FAIRMILE_METRICS' {n}"""
        (place / "nan.yaml").write_text(json.dumps({"command": program, "axes": {"n": [1]}}))
        done = sweep("run", "nan.yaml", "--json")
        assert json.loads(done.out, parse_constant=pytest.fail)["points"][0]["metrics"] == {"loss": "NaN"}

    def test_a_sweep_is_forgotten_and_its_runs_stay(self, sweep: Fairmile, fairmile: Fairmile) -> None:
        sweep("run", "rates.yaml")
        id = sweep("ls", "--json").json["sweeps"][0]["id"]
        assert sweep("rm", id, "--dry-run").out == f"sweep {id}: would be removed\n"
        assert sweep("rm", id, "--json").json["done"] == "removed"
        assert sweep("ls", "--json").json == {"sweeps": []}
        assert len(fairmile("runs", "ls", "--group", id, "--json").json["runs"]) == 6

    def test_a_sweep_that_has_ended_cannot_be_cancelled(self, sweep: Fairmile) -> None:
        sweep("run", "rates.yaml")
        for words in ([], ["--dry-run"]):
            done = sweep("cancel", "last", *words)
            assert (done.code, done.out.endswith(": does not run\n")) == (0, True)

    def test_a_word_that_may_mean_several_is_told(self, sweep: Fairmile) -> None:
        sweep("run", "rates.yaml")
        sweep("run", "rates.yaml")
        for command in ("show", "run", "rm"):
            done = sweep(command, "rates")
            assert done.code == 2
            assert "'rates' is ambiguous: rates-" in done.err


LONG = f"command: echo {{text}}\naxes: {{text: [{'x' * 300}, b]}}\n"
FILES = {
    "undefined.yaml": "command: echo {lr} {epoch}\naxes: {lr: [1, 2]}\n",
    "twice.yaml": "command: echo {lr}\naxes:\n  lr: [1, 2]\n  lr: [3]\n",
    "null.yaml": "command: echo {lr}\naxes:\n  lr:\n",
    "key.yaml": "command: echo {lr}\naxs: {lr: [1]}\n",
    "kind.yaml": "command: echo {lr}\naxes: [lr]\n",
    "filter.yaml": "command: echo {lr}\naxes: {lr: [1]}\nselect: 'lr >'\n",
    "call.yaml": "command: echo {lr}\naxes: {lr: [1]}\nselect: open('ran', 'w')\n",
    "axis.yaml": "command: echo {lr}\naxes: {lr: '[1-'}\n",
    "nested.yaml": "command: echo {lr}\naxes: {lr: [[1, 2], [3]]}\n",
    "linked.yaml": "command: echo {a}\naxes: {a: [1, 2], b: [1]}\nlinked: [[a, b]]\n",
    "circle.yaml": "command: echo {a}\nsettings: {a: '{b}', b: '{a}'}\naxes: {n: [1]}\n",
    "secret.yaml": "command: echo {os.API_TOKEN}\nvariables: [API_TOKEN]\naxes: {n: [1]}\n",
    "variable.yaml": "command: echo {os.USER}\naxes: {n: [1]}\n",
    "long.yaml": LONG,
    "broken.yaml": "axes: {lr: [1\n",
    "empty.yaml": "",
    "study.yaml": "command: echo {lr}\naxes: {lr: {log: [0.01, 1]}}\nobjective: {loss: lower}\n",
    "nothing.yaml": "axes: {lr: [1, 2]}\n",
    "env.yaml": "command: echo {lr}\naxes: {lr: [1]}\nenv: {A: '{nosuch}'}\n",
    "no-asset.yaml": "run: nosuch\naxes: {lr: [1, 2]}\n",
    "no-input.yaml": "command: echo {lr} {inputs.x}\naxes: {lr: [1, 2]}\ninputs:\n  here: ./rates.yaml\n  x: nosuch\n",
    "no-run.yaml": "run: nosuch-run.yaml\naxes: {lr: [1, 2]}\n",
    "host.yaml": "experiment: {directive: a100}\nsystem: {host: nosuch}\n",
    "directive.yaml": "experiment: {directive: a1000}\nsystem: {host: rivanna}\n",
    "ee.yaml": "experiment: {n: '1,2'}\nee: {time: '12:00:00'}\n",
}
BAD_TEMPLATE = "#!/bin/sh\n# {comment}\necho {experiment.n} {ee.tim}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "undefined.yaml"], "undefined.yaml:1: {epoch} is not defined"),
        (["run", "undefined.yaml"], "undefined.yaml:1: {epoch} is not defined"),
        (["generate", "undefined.yaml", "--out", "out"], "undefined.yaml:1: {epoch} is not defined"),
        (["plan", "twice.yaml"], "twice.yaml:4: the key 'lr' appears twice in one mapping"),
        (["plan", "null.yaml"], "null.yaml:3 axes.lr: has no value (null)"),
        (["plan", "key.yaml"], "key.yaml:2 axs: no such key"),
        (["plan", "kind.yaml"], "kind.yaml:2 axes: expected a mapping"),
        (["plan", "filter.yaml"], "filter.yaml:3: 'lr >' is not a condition"),
        (["plan", "call.yaml"], "call.yaml:3"),
        (["plan", "axis.yaml"], "axis.yaml:2 axes.lr: '[1-' has a bracket that is not closed"),
        (["plan", "nested.yaml"], "axes.lr: expected a single value, found a list"),
        (["plan", "linked.yaml"], "linked.yaml:"),
        (["plan", "circle.yaml"], "circle.yaml:2: {a} → {b} → {a} refers to itself"),
        (["plan", "secret.yaml"], "{os.API_TOKEN} looks like a secret"),
        (["plan", "variable.yaml"], "the file does not allow the environment variable {os.USER}"),
        (["plan", "long.yaml"], "long.yaml:2 axes: the id of a point has 305 bytes"),
        (["run", "long.yaml"], "long.yaml:2 axes: the id of a point has 305 bytes"),
        (["plan", "broken.yaml"], "broken.yaml:"),
        (["plan", "empty.yaml"], "empty.yaml:1: expected a mapping"),
        (["plan", "nosuch.yaml"], "no such file: nosuch.yaml"),
        (["plan", "rates.yaml", "nosuch.yaml"], "no such file: nosuch.yaml"),
        (["plan", "rates.yaml", "bench"], "'bench' is not a file here, a benchmark or an asset of the catalog"),
        (["plan", "study.yaml"], "study.yaml:2 axes.lr is a distribution, and a sweep needs values"),
        (["run", "study.yaml"], "study.yaml:2 axes.lr is a distribution, and a sweep needs values"),
        (["run", "nothing.yaml"], "nothing: no program to run at each point"),
        (["generate", "nothing.yaml", "--out", "out"], "nothing: no template and no command"),
        (["plan", "host.yaml"], "host.yaml:2: no Slurm directives are known for the host 'nosuch'"),
        (["plan", "directive.yaml"], "the host 'rivanna' has no directive 'a1000'"),
        (["plan", "ee.yaml", "--template", "bad.in.sh"], "bad.in.sh:3: {ee.tim} is not defined"),
        (["generate", "ee.yaml", "--template", "bad.in.sh", "--out", "out"], "bad.in.sh:3: {ee.tim} is not defined"),
        (["run", "ee.yaml", "--template", "bad.in.sh"], "bad.in.sh:3: {ee.tim} is not defined"),
        (["generate", "rates.yaml", "--template", "nosuch.sh", "--out", "out"], "no such file: nosuch.sh"),
        (
            ["generate", "rates.yaml", "--out", "out", "--split-among", "7"],
            "--split-among is 7, but there are only 6 points",
        ),
        (["generate", "rates.yaml", "--out", "out", "--name", "a/b"], "--name: expected at most 64 letters, digits,"),
        (["generate", "rates.yaml", "--out", "shared-cards"], "shared-cards is not empty"),
        (["generate", "rates.yaml"], "missing option '--out'"),
        (["plan", "rates.yaml", "-p", "lr"], "-p 'lr' is not an axis"),
        (["plan", "rates.yaml", "-p", "lr=1", "-p", "lr=2"], "-p lr is given twice"),
        (["plan", "rates.yaml", "-p", "lr=rnage(3)"], "no function 'rnage'; did you mean 'range'?"),
        (["plan", "rates.yaml", "-p", "lr=range(3,1)"], "range(3,1): it has no values"),
        (["plan", "rates.yaml", "--select", "rate > 1"], "--select: no axis named 'rate'"),
        (["plan", "ee.yaml", "--select", "rate > 1"], "--select: no axis named 'rate'"),
        (["plan", "ee.yaml", "-p", "n={nosuch}"], "error: -p n: {nosuch} is not defined"),
        (["plan", "ee.yaml", "-p", "experiment.n={nosuch}"], "error: -p experiment.n: {nosuch} is not defined"),
        (["plan", "ee.yaml", "-p", "n=[1-"], "error: -p n: '[1-' has a bracket that is not closed"),
        (["plan", "-p", "n=1,2", "--", "echo", "{nosuch}"], "the command behind --: {nosuch} is not defined"),
        (["plan", "rates.yaml", "--", "echo", "{nosuch}"], "the command behind --: {nosuch} is not defined"),
        (["run", "ee.yaml", "--", "echo", "{nosuch}"], "the command behind --: {nosuch} is not defined"),
        (["run", "rates.yaml", "--tag", "{nosuch}"], "error: --tag: {nosuch} is not defined"),
        (["run", "rates.yaml", "--out", "{nosuch}"], "error: --out: {nosuch} is not defined"),
        (["run", "rates.yaml", "--env", "A={nosuch}"], "error: --env A: {nosuch} is not defined"),
        (["run", "rates.yaml", "--metric", "a={nosuch}"], "error: --metric a: {nosuch} is not defined"),
        (["run", "rates.yaml", "--data", "d=./{nosuch}"], "error: --data d: {nosuch} is not defined"),
        (["run", "rates.yaml", "--data", "d=./{lr}"], "error: --data d: inputs cannot depend on an axis"),
        (["run", "rates.yaml", "--environment", "{lr}"], "error: --environment: environment cannot depend on an axis"),
        (["run", "env.yaml", "--env", "B=1"], "env.yaml:3: {nosuch} is not defined"),
        (["run", "rates.yaml", "--select", "lr > 9"], "rates: no points are left"),
        (["run", "rates.yaml", "--name", "a b"], "--name: expected at most 64 letters, digits,"),
        (["run", "rates.yaml", "--on", "nosuch"], "no system named 'nosuch'"),
        (["run", "rates.yaml", "--time", "5:00"], "options for nodes, time and software need a system"),
        (["run", "rates.yaml", "--pack", "3"], "--pack does not apply to a sweep that runs here"),
        (["run", "rates.yaml", "--leave"], "--wait/--leave does not apply to a sweep that runs here"),
        (["run", "rates.yaml", "--on", "jureca", "-j", "2"], "-j does not apply to a sweep that runs on jureca"),
        (["run", "nosuch", "-p", "n=1,2"], "'nosuch' is not a file here, a benchmark or an asset of the catalog"),
        (["plan", "nosuch", "-p", "n=1,2"], "'nosuch' is not a file here, a benchmark or an asset of the catalog"),
        (["run", "nosuch"], "'nosuch' is not a file here, a sweep, a benchmark or an asset of the catalog"),
        (["plan", "no-asset.yaml"], "error: no-asset.yaml:1: 'nosuch' is not a file here, a benchmark or an asset"),
        (["run", "no-asset.yaml"], "error: no-asset.yaml:1: 'nosuch' is not a file here, a benchmark or an asset"),
        (["plan", "no-run.yaml"], "error: no-run.yaml:1: no such file"),
        (["plan", "no-input.yaml"], "error: no-input.yaml:5: no asset named 'nosuch'"),
        (["plan", "no-input.yaml", "--template", "good.in.sh"], "error: no-input.yaml:5: no asset named 'nosuch'"),
        (["run", "no-input.yaml", "--dry-run"], "error: no-input.yaml:5: no asset named 'nosuch'"),
        (["run", "no-input.yaml"], "error: no-input.yaml:5: no asset named 'nosuch'"),
        (["run", "rates.yaml", "--data", "d=nosuch"], "error: --data d: no asset named 'nosuch'"),
        (["run"], "nothing to sweep over"),
        (["plan"], "nothing to sweep over"),
        (["run", "last"], "no sweep named 'last'"),
        (["show", "nosuch"], "no sweep named 'nosuch'"),
        (["cancel", "nosuch"], "no sweep named 'nosuch'"),
        (["rm", "nosuch"], "no sweep named 'nosuch'"),
        (["frobnicate"], "no command named 'frobnicate'; commands: plan, generate, run, ls, show, cancel, rm"),
        (["shwo", "last"], "no command named 'shwo'; did you mean 'show'?"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    sweep: Fairmile, place: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setenv("API_TOKEN", "s3cr3t-and-long-enough")
    for name, text in FILES.items():
        (place / name).write_text(text)
    (place / "bad.in.sh").write_text(BAD_TEMPLATE)
    (place / "good.in.sh").write_text("#!/bin/sh\necho {lr}\n")
    before = sorted(place.rglob("*"))
    done = sweep(*arguments)
    assert done.code == 2, done.err
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert message in done.err.splitlines()[0]
    assert "Traceback" not in done.err
    assert "s3cr3t" not in done.err
    assert sorted(place.rglob("*")) == before
    for folder in ("sweeps", "runs"):
        assert not list((home() / folder).glob("*"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "last", "--on", "jureca"], "--on cannot change rates-"),
        (["run", "last", "--repeats", "2"], "--repeats cannot change rates-"),
        (["run", "last", "--", "echo"], "a command cannot change rates-"),
        (["run", "last", "--queued", "3"], "--queued does not apply to a sweep that runs here"),
        (["show", "last", "--state", "lost"], "'lost' is not one of"),
        (["show", "last", "--best", "los"], "'los'"),
    ],
)
def test_what_was_decided_when_a_sweep_was_made_cannot_be_changed(
    sweep: Fairmile, arguments: list[str], message: str
) -> None:
    sweep("run", "rates.yaml")
    done = sweep(*arguments)
    assert done.code == 2
    assert message in done.err.splitlines()[0]


def test_a_sweep_that_another_process_executes_is_left_alone(sweep: Fairmile, place: Path) -> None:
    sweep("run", "rates.yaml")
    folder = home() / "sweeps" / sweep("ls", "--json").json["sweeps"][0]["id"]
    words = [sys.executable, "-c", HOLD, str(folder / ".turn")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        done = sweep("run", "last")
        other.communicate(b"\n")
    assert done.code == 2
    assert "is being executed by another process" in done.err


def test_a_usage_error_is_json_too(sweep: Fairmile) -> None:
    done = sweep("plan", "nosuch.yaml", "--json")
    assert done.json["error"]["exit_code"] == done.code == 2
    assert run_command(["sweep"]) == 2
