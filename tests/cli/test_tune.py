"""`fairmile tune`: what a user sees of a study, on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna", reason="needs optuna")

Fairmile = Callable[..., Any]

# Its loss is least at x = 0.3; it knows nothing of tuning.
PROGRAM = """\
for epoch in 1 2 3; do
  echo '{"loss": '$(awk "BEGIN {print ($1 - 0.3) ^ 2 + 1 / $epoch}")', "cost": '$1', "step": '$epoch'}' >> \
$FAIRMILE_METRICS
done
"""
QUAD = """\
name: quad
command: sh program.sh {x}
axes:
  x: {uniform: [0, 1]}
objective: {loss: lower}
every: 0
tuning: {trials: 4, sampler: random, seed: 1}
"""
# Whoever starts the tests may ignore interruptions, and children inherit that.
START = """
import signal
from fairmile.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


@pytest.fixture
def tune(fairmile: Fairmile, place: Path) -> Fairmile:
    """Run `fairmile tune …` beside a file `quad.yaml`."""
    (place / "program.sh").write_text(PROGRAM)
    (place / "quad.yaml").write_text(QUAD)

    def call(*arguments: str) -> Any:
        return fairmile("tune", *arguments)

    return call


def home() -> Path:
    return Path(os.environ["FAIRMILE_HOME"])


class TestRun:
    def test_the_best_trial_is_told_with_its_run(self, tune: Fairmile, fairmile: Fairmile) -> None:
        done = tune("quad.yaml", "-j", "2")
        assert done.code == 0, done.err
        first, heading, best, *_ = done.out.splitlines()
        id = first.removeprefix("study ").partition(":")[0]
        assert first.startswith(f"study {id}: 4 done; ")
        assert heading.split() == ["best", "trial", "loss", "step", "x", "run"]
        assert best.split()[-1].startswith(f"{id}-0000")
        assert done.err.startswith(f"study {id}\n")
        assert f"`fairmile rerun {best.split()[-1]}` repeats the best trial" in done.err
        found = tune("show", id, "--json").json
        values = {each["number"]: each["values"][0] for each in found["trials"]}
        assert [values[each] for each in found["best"]] == [min(values.values())]
        assert [each["state"] for each in found["trials"]] == ["done"] * 4
        assert found["trials"][0]["curve"][-1] == [3.0, found["trials"][0]["values"][0]]
        assert found["objectives"] == [{"metric": "loss", "better": "lower"}]
        assert found["spent"]["node_hours"] > 0
        run = fairmile("runs", "show", found["trials"][0]["run"], "--json").json
        assert run["trial"]["study"] == id

    @pytest.mark.thorough
    def test_it_goes_on_until_more_trials_are_done(self, tune: Fairmile) -> None:
        before = tune("quad.yaml", "--trials", "2", "--json").json
        assert len(before["trials"]) == 2
        again = tune("run", "last", "--json").json
        assert again["trials"] == before["trials"]
        more = tune("run", "last", "--trials", "3", "--json").json
        assert (more["id"], len(more["trials"])) == (before["id"], 3)
        assert more["trials"][:2] == before["trials"]

    @pytest.mark.thorough
    def test_options_go_before_what_the_file_says(self, tune: Fairmile) -> None:
        words = ("quad.yaml", "--sampler", "grid", "-p", "x=0.1,0.3,0.5", "--trials", "9", "--json")
        trials = tune(*words).json["trials"]
        assert sorted(each["params"]["x"] for each in trials) == [0.1, 0.3, 0.5]

    @pytest.mark.thorough
    def test_several_objectives_have_several_best(self, tune: Fairmile, place: Path) -> None:
        text = QUAD.replace("{loss: lower}", "[{loss: lower}, {cost: higher}]").replace("random", "grid")
        (place / "quad.yaml").write_text(text.replace("{uniform: [0, 1]}", "[0.1, 0.3, 0.9]"))
        found = tune("quad.yaml", "--json").json
        assert sorted(found["trials"][each]["params"]["x"] for each in found["best"]) == [0.3, 0.9]

    @pytest.mark.thorough
    def test_a_study_without_a_good_trial_fails_and_says_why(self, tune: Fairmile, place: Path) -> None:
        (place / "program.sh").write_text("echo the gauge is dry\nexit 3\n")
        done = tune("quad.yaml", "--trials", "1")
        assert done.code == 1
        assert "trial 0: failed: exit code 3: the gauge is dry  → fairmile runs log quad-" in done.out
        assert tune("show", "last").code == 0
        assert tune("run", "last", "--json").code == 1

    @pytest.mark.thorough
    def test_a_template_is_the_program_of_each_trial(self, tune: Fairmile, place: Path) -> None:
        (place / "job.in.sh").write_text("#!/bin/sh\necho '{\"loss\": {x}}' >> $FAIRMILE_METRICS\n")
        (place / "quad.yaml").write_text(QUAD.replace("command: sh program.sh {x}\n", ""))
        trials = tune("quad.yaml", "--template", "job.in.sh", "--trials", "2", "--json").json["trials"]
        assert [each["values"] for each in trials] == [[each["params"]["x"]] for each in trials]

    @pytest.mark.thorough
    def test_an_interrupted_study_goes_on(self, tune: Fairmile, place: Path) -> None:
        (place / "program.sh").write_text(f"touch {place}/begun; test -e {place}/go || sleep 600\n{PROGRAM}")
        words = [sys.executable, "-c", START, "tune", "quad.yaml", "--trials", "2"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not (place / "begun").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (130, "")
        assert "hint: `fairmile tune run quad-" in err
        assert "Traceback" not in err
        (place / "go").touch()
        states = [each["state"] for each in tune("run", "last", "--json").json["trials"]]
        assert states.count("done") == 2
        assert "running" not in states


class TestDryRun:
    def test_each_objective_of_the_command_line_counts(self, tune: Fairmile, place: Path) -> None:
        plan = tune("quad.yaml", "--objective", "loss", "--objective", "cost:lower", "--dry-run", "--json").json
        assert plan["objectives"] == [
            {"metric": "loss", "better": "lower"},
            {"metric": "cost", "better": "lower"},
        ]

    def test_tells_space_objective_and_settings_and_does_nothing(self, tune: Fairmile, place: Path) -> None:
        (place / "space.yaml").write_text(
            """\
command: sh program.sh {rate} {depth}
reads_params: true
axes:
  optimizer: {choice: [adam, sgd]}
  rate: {log: [1.0e-4, 0.1]}
  momentum: {uniform: [0, 0.9], step: 0.1, when: "optimizer == 'sgd'"}
  depth: {integer: [1, 8]}
objective: loss
tuning: {pruner: asha, time: 1h}
"""
        )
        done = tune("space.yaml", "--dry-run")
        assert done.code == 0
        assert done.out.splitlines() == [
            "optimizer: one of adam, sgd",
            "rate: a number from 0.0001 to 0.1, logarithmic",
            "momentum: a number from 0 to 0.9, in steps of 0.1, when optimizer == 'sgd'",
            "depth: an integer from 1 to 8",
            "objective: loss, lower is better",
            "engine optuna, sampler tpe, pruner asha, within 1h",
            "trials are stopped early at 1/9 of the first finished trial or later",
        ]
        found = tune("run", "space.yaml", "--sampler", "bohb", "--pruner", "hyperband", "--dry-run", "--json")
        assert found.code == 2
        assert not (home() / "sweeps").exists()

    def test_tells_time_and_node_hours_as_far_as_they_are_known(self, tune: Fairmile) -> None:
        done = tune("quad.yaml", "--on", "jureca", "--account", "a", "--time", "30:00", "--nodes", "2", "--dry-run")
        assert done.code == 0, done.err
        assert done.out.splitlines()[-2:] == [
            "time: 30m per trial (the time limit: an upper bound)",
            "node-hours: 4",
        ]

    def test_finds_what_a_study_would_be_refused_for(self, tune: Fairmile, place: Path) -> None:
        (place / "typo.yaml").write_text(QUAD.replace("{x}", "{y}"))
        assert tune("typo.yaml", "--dry-run").err.startswith("error: typo.yaml:2: {y} is not defined")
        done = tune("quad.yaml", "--engine", "deephyper", "--sampler", "grid", "--dry-run")
        assert done.code == 2

    def test_of_a_study_shows_it(self, tune: Fairmile) -> None:
        tune("quad.yaml", "--trials", "1")
        assert tune("run", "last", "--trials", "9", "--dry-run").code == 0
        assert len(tune("show", "last", "--json").json["trials"]) == 1


class TestStop:
    @pytest.mark.thorough
    def test_a_study_is_stopped_until_it_is_run_again(self, tune: Fairmile, fairmile: Fairmile) -> None:
        tune("quad.yaml", "--trials", "1")
        id = fairmile("sweep", "ls", "--json").json["sweeps"][0]["id"]
        assert tune("stop", "last", "--dry-run").out == f"study {id}: would be stopped\n"
        assert tune("stop", "last", "--json").json == {"id": id, "done": "stopped"}
        assert len(tune("run", "last", "--trials", "2", "--json").json["trials"]) == 2


class TestSweepsAndStudies:
    @pytest.mark.thorough
    def test_a_study_is_no_sweep(self, tune: Fairmile, fairmile: Fairmile) -> None:
        tune("quad.yaml", "--trials", "1")
        assert fairmile("sweep", "ls").out.splitlines()[1].split()[1] == "study"
        for words, instead in ((["show"], "show"), (["run"], "run"), (["cancel"], "stop")):
            done = fairmile("sweep", *words, "last")
            assert done.code == 2
            assert done.err.startswith("error: quad-")
            assert "is a study, not a sweep\n" in done.err
            assert f"`fairmile tune {instead} quad-" in done.err
        assert fairmile("sweep", "rm", "last").code == 0

    def test_a_sweep_is_no_study(self, tune: Fairmile, fairmile: Fairmile) -> None:
        fairmile("sweep", "-p", "n=1,2", "--", "true", "{n}")
        for words in (["show", "last"], ["stop", "last"], ["run", "last"], ["run", "last", "--trials", "3"]):
            done = tune(*words)
            assert done.code == 2
            assert "is a sweep, not a study\n" in done.err


FILES = {
    "objective.yaml": QUAD.replace("objective: {loss: lower}\n", ""),
    "direction.yaml": QUAD.replace("lower", "smaller"),
    "guess.yaml": QUAD.replace("{loss: lower}", "nnx"),
    "key.yaml": QUAD.replace("trials: 4", "trails: 4"),
    "kind.yaml": QUAD.replace("uniform", "unifrom"),
    "ends.yaml": QUAD.replace("[0, 1]", "[1, 0]"),
    "zero.yaml": QUAD.replace("uniform", "log"),
    "when.yaml": QUAD.replace("uniform: [0, 1]", "uniform: [0, 1], when: y > 1"),
    "null.yaml": QUAD.replace("seed: 1", "seed: ~"),
    "options.yaml": QUAD.replace("sampler: random", "sampler: tpe, options: {nsteps: 3}"),
    "undefined.yaml": QUAD.replace("{x}", "{y}"),
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["objective.yaml"], "a study needs an objective"),
        (["direction.yaml"], "direction.yaml:5 objective.loss: expected lower or higher, found 'smaller'"),
        (["guess.yaml"], "guess.yaml:5 objective: the direction of 'nnx' is unknown"),
        (["key.yaml"], "key.yaml:7 tuning.trails: tuning has no key 'trails'"),
        (["kind.yaml"], "kind.yaml:4 axes.x.unifrom: no such key in a distribution"),
        (["ends.yaml"], "ends.yaml:4 axes.x: the range [1, 0] is empty"),
        (["zero.yaml"], "zero.yaml:4 axes.x: a logarithmic range cannot start at 0"),
        (["when.yaml"], "when.yaml:4 axes.x: the condition 'y > 1' uses 'y', which is not tuned"),
        (["null.yaml"], "null.yaml:7 tuning.seed: has no value (null)"),
        (["options.yaml"], "options.yaml:7 tuning.options: the sampler tpe has no option 'nsteps'"),
        (["undefined.yaml"], "undefined.yaml:2: {y} is not defined"),
        (["quad.yaml", "--sampler", "tpee"], "error: --sampler: unknown sampler 'tpee'"),
        (["quad.yaml", "--engine", "sherpa"], "error: --engine: unknown engine 'sherpa'"),
        (["quad.yaml", "--pruner", "hyperband"], "error: --pruner: hyperband needs the last step of a trial"),
        (["quad.yaml", "--extrapolate", "crystal"], "error: --extrapolate: unknown extrapolate 'crystal'"),
        (["quad.yaml", "--sampler", "grid"], "error: --sampler: a grid is infinite because x is continuous"),
        (["quad.yaml", "--within", "soon"], "error: --within: 'soon' is not a duration"),
        (["quad.yaml", "--engine", "optuna", "--sampler", "pbt"], "the engine optuna has no pbt"),
        (["quad.yaml", "--on", "nosuch"], "no system named 'nosuch'"),
        (["quad.yaml", "--repeats", "3"], "no such option '--repeats'"),
        (["nosuch.yaml"], "no such file: nosuch.yaml"),
        (["run"], "nothing to sweep over"),
        (["run", "last"], "no sweep named 'last'"),
        (["show", "nosuch"], "no sweep named 'nosuch'"),
        (["stop", "nosuch"], "no sweep named 'nosuch'"),
        (["frobnicate"], "no command named 'frobnicate'; commands: run, show, stop"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    tune: Fairmile, place: Path, arguments: list[str], message: str
) -> None:
    for name, text in FILES.items():
        (place / name).write_text(text)
    done = tune(*arguments)
    assert done.code == 2, done.err
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert message in done.err.splitlines()[0]
    assert "Traceback" not in done.err
    for folder in ("sweeps", "runs"):
        assert not list((home() / folder).glob("*"))


@pytest.mark.parametrize("engine", ["ray", "deephyper"])
def test_an_engine_that_is_not_installed_is_refused_and_nothing_is_written(
    tune: Fairmile, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setattr("fairmile.sweeps.tuning.study.find_spec", lambda _: None)
    done = tune("quad.yaml", "--engine", engine, "--sampler", "random" if engine == "ray" else "tpe")
    assert (done.code, done.out) == (3, "")
    assert done.err.splitlines()[-1] == f"  hint: pip install 'fairmile[{engine}]'"
    assert not list((home() / "sweeps").glob("*"))


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_study_on_a_system_over_ssh_is_refused_and_nothing_is_written(tune: Fairmile, more: list[str]) -> None:
    done = tune("quad.yaml", "--on", "ssh://nowhere.invalid", *more)
    assert (done.code, done.out) == (3, "")
    assert "a study cannot be shared with" in done.err.splitlines()[0]
    assert not list((home() / "sweeps").glob("*"))


@pytest.mark.thorough
def test_what_was_decided_when_a_study_was_made_cannot_be_changed(tune: Fairmile) -> None:
    tune("quad.yaml", "--trials", "1")
    done = tune("run", "last", "--sampler", "tpe")
    assert done.code == 2
    assert "--sampler cannot change quad-" in done.err


def test_a_usage_error_is_json_too(tune: Fairmile) -> None:
    done = tune("nosuch.yaml", "--json")
    assert json.loads(done.out)["error"]["exit_code"] == done.code == 2
