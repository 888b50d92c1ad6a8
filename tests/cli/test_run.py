"""`fairmile run` and `fairmile rerun`: exit codes, what stands where, known results, going on, doing it again."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairmile.catalog.kinds import CONTEXT_IRI
from fairmile.cli.run import range_text
from fairmile.runs.prediction import FromHistory, Predicted
from fairmile.runs.record.run import Run
from fairmile.runs.record.spec import RunSpec

Fairmile = Callable[..., Any]

PYTHON = sys.executable
COMMAND = [PYTHON, "-m", "fairmile"]


def run_ids(place: Path) -> list[str]:
    return sorted(path.parent.name for path in (place.parent / "home" / "runs").glob("*/run.json"))


class TestExitCodes:
    def test_are_zero_for_success_and_one_for_a_failed_program(self, fairmile: Fairmile) -> None:
        assert fairmile("run", "--", "true").code == 0
        failed = fairmile("run", "--", "sh", "-c", "exit 7")
        assert failed.code == 1
        assert "exit code 7" in failed.err

    @pytest.mark.parametrize(
        "arguments",
        [
            ["run"],
            ["run", "--data", "d", "--", "true"],
            ["run", "-p", "x", "--", "true"],
            ["run", "--out", "../x", "--", "true"],
            ["run", "--resume", "nothing"],
            ["rerun", "nothing"],
            ["run", "--data", "d=./nothing.csv", "--", "true"],
        ],
    )
    def test_are_two_for_what_cannot_be_meant(self, fairmile: Fairmile, place: Path, arguments: list[str]) -> None:
        told = fairmile(*arguments)
        assert (told.code, told.out) == (2, "")
        assert told.err.startswith("error: ")
        assert run_ids(place) == []

    def test_are_one_and_recorded_for_a_program_that_is_not_there(self, fairmile: Fairmile) -> None:
        told = fairmile("run", "--json", "--", "no-such-program")
        assert told.code == 1
        assert told.json["result"]["exit_code"] == 127

    @pytest.mark.parametrize("trap", ["", "trap 'exit 0' INT; "])
    def test_are_130_after_control_c_also_where_the_program_ends_with_zero(self, place: Path, trap: str) -> None:
        """At a terminal; the program gets the signal once, from us, and those that were to follow do not start."""
        script = f"{trap}echo started; sleep 60 & wait"
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(PYTHON, [*COMMAND, "run", "--repeat", "2", "--", "bash", "-c", script])
        seen = b""
        while b"started" not in seen:
            seen += os.read(terminal, 4096)
        os.write(terminal, b"\x03")
        assert _exit_code(pid, terminal) == 130
        (id,) = run_ids(place)
        record = json.loads((place.parent / "home" / "runs" / id / "run.json").read_text())
        assert (record["state"], record["result"]["reason"]) == ("cancelled", "ended by INT")

    @pytest.mark.parametrize("more", [[], ["--repeat", "2"]])
    def test_are_three_for_a_machine_that_nothing_reached_and_no_run_is_left(
        self, fairmile: Fairmile, place: Path, more: list[str]
    ) -> None:
        result = fairmile("run", *more, "--on", "ssh://127.0.0.1:1", "--", "true")
        assert (result.code, run_ids(place)) == (3, [])
        assert "check that `ssh -o BatchMode=yes ssh://127.0.0.1:1 true` works" in result.err

    def test_are_three_for_a_folder_that_cannot_be_written(self, fairmile: Fairmile, place: Path) -> None:
        (place.parent / "home" / "runs").write_text("a file where a folder is needed")
        assert fairmile("run", "--", "true").code == 3


def _exit_code(pid: int, terminal: int) -> int:
    """Read what is printed to its end, so that nobody waits for us, and return how the process ended."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if select.select([terminal], [], [], 0.1)[0] and not os.read(terminal, 4096):
                break
        except OSError:
            break
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class TestOutput:
    def test_of_the_program_is_stdout_and_talk_is_stderr(self, fairmile: Fairmile) -> None:
        told = fairmile("run", "--", "echo", "high tide")
        assert told.out == "high tide\n"
        assert ": done in " in told.err

    def test_as_json_is_one_document_and_the_program_prints_to_stderr(self, fairmile: Fairmile) -> None:
        told = fairmile("run", "--json", "--", "echo", "high tide")
        assert told.json["result"]["state"] == "done"
        assert "high tide" in told.err

    def test_as_json_of_repeats_lists_them(self, fairmile: Fairmile) -> None:
        found = fairmile("run", "--json", "--repeat", "2", "--", "true").json["runs"]
        assert len({run["spec"]["group"] for run in found}) == 1

    def test_as_json_says_numbers_that_are_none_as_texts(self, fairmile: Fairmile) -> None:
        script = """echo '{"loss": NaN, "gain": -Infinity}' >> $FAIRMILE_METRICS"""
        text = fairmile("run", "--json", "--", "sh", "-c", script).out
        assert "NaN" in text
        strict = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
        assert strict["result"]["metrics"]["gain"]["value"] == "-Infinity"

    def test_that_is_no_utf_8_passes_through(self, place: Path) -> None:
        (place / "bytes").write_bytes(b"\xff\xfe\n")
        done = subprocess.run([*COMMAND, "run", "--", "cat", "bytes"], capture_output=True)
        assert done.stdout == b"\xff\xfe\n"


class TestParameters:
    def test_fill_placeholders_once_and_as_they_were_written(self, fairmile: Fairmile) -> None:
        given = {"id": "007", "big": "1_000", "none": "nan", "word": "{run}", "rate": "0.5"}
        options = [option for name, value in given.items() for option in ("-p", f"{name}={value}")]
        told = fairmile("run", *options, "--", "echo", *(f"{{{name}}}" for name in given))
        assert told.out.split() == list(given.values())

    def test_that_are_longer_than_a_variable_may_be_stop_nothing(self, fairmile: Fairmile) -> None:
        words = ("-p", f"a={'x' * 100_000}", "-p", f"b={'y' * 100_000}", "--reads-params")
        assert fairmile("run", *words, "--", "true").code == 0


class TestSecrets:
    def test_in_variables_reach_the_program_and_no_file(self, fairmile: Fairmile, place: Path) -> None:
        secret = "hf_" + "abcdefghij" * 2
        told = fairmile("run", "--env", f"HF_TOKEN={secret}", "--", "sh", "-c", "echo ${#HF_TOKEN}")
        assert told.out == f"{len(secret)}\n"
        files = [path for path in (place.parent / "home" / "runs").rglob("*") if path.is_file()]
        assert files
        assert not [path for path in files if secret.encode() in path.read_bytes()]

    def test_in_addresses_are_refused(self, fairmile: Fairmile) -> None:
        told = fairmile("run", "--data", "d=https://me:word@127.0.0.1:9/x", "--", "true")
        assert told.code == 2
        assert "word" not in told.err


class TestFit:
    """A predictor says what the step needs and what the device has."""

    @pytest.fixture(autouse=True)
    def foreseen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gib = float(1 << 30)

        def told(self: FromHistory, spec: RunSpec, history: Sequence[Run]) -> dict[str, Predicted]:
            if (need := spec.params.get("gib")) is None:
                return {}
            value = float(str(need)) * gib
            bounds = value, 0.9 * value, 1.3 * value
            return {"peak_memory_bytes": Predicted(*bounds, "its step", 39 * gib, "a100-40gb", "take 12")}

        monkeypatch.setattr(FromHistory, "predict", told)

    @pytest.mark.parametrize("more", [(), ("--dry-run",), ("--repeat", "2"), ("--dry-run", "--json")])
    def test_what_does_not_fit_is_refused_before_anything_happens(
        self, fairmile: Fairmile, place: Path, more: tuple[str, ...]
    ) -> None:
        told = fairmile("run", "-p", "gib=400", *more, "--", "touch", "made{gib}")
        assert told.code == 2
        assert (not list(place.glob("made*"))) and run_ids(place) == []
        if "--json" in more:
            plan = json.loads(told.out)
            assert (plan["fit"], plan["prediction"]["peak_memory_bytes"]["limit"]) == ("does not fit", 39 * 1024**3)
            return
        why = "peak memory 400.0 GiB (360.0 GiB to 520.0 GiB); a100-40gb has 39.0 GiB for it"
        assert f"does not fit: {why}" in told.err
        assert "take 12; --anyway runs it regardless" in told.err
        if more == ("--dry-run",):
            assert "fit     does not fit: peak memory 400.0 GiB" in told.out

    @pytest.mark.parametrize("more", [(), ("--dry-run",), ("--dry-run", "--json")])
    def test_what_lacks_a_declared_need_is_refused_by_a_dry_run_as_by_the_run(
        self, fairmile: Fairmile, place: Path, more: tuple[str, ...]
    ) -> None:
        card = {"@context": CONTEXT_IRI, "@type": "SoftwareSourceCode", "name": "Tide", "version": "1"}
        card |= {"command": ["echo", "1"], "softwareRequirements": ["pkg:pypi/horovod"]}
        (place / "tide.json").write_text(json.dumps(card))
        told = fairmile("run", "tide.json", *more)
        assert (told.code, run_ids(place)) == (2, [])
        assert "horovod: missing" in told.out or "tide declares that it needs horovod" in told.err
        assert fairmile("run", "tide.json", *more, "--anyway").code == 0

    def test_anyway_runs_it_and_the_record_keeps_the_verdict(self, fairmile: Fairmile, place: Path) -> None:
        assert fairmile("run", "-p", "gib=400", "--anyway", "--", "echo", "{gib}").code == 0
        record = json.loads(fairmile("runs", "show", "last", "--json").out)
        assert record["prediction"]["peak_memory_bytes"]["fit"] == "does not fit"

    def test_what_may_not_fit_is_said_in_one_line_and_runs(self, fairmile: Fairmile) -> None:
        told = fairmile("run", "-p", "gib=38", "--", "echo", "{gib}")
        assert told.code == 0
        assert told.err.count("may not fit") == 1

    def test_what_fits_is_said_in_a_dry_run_alone(self, fairmile: Fairmile) -> None:
        told = fairmile("run", "-p", "gib=4", "--dry-run", "--", "echo", "{gib}")
        assert told.code == 0
        assert "fit     fits: peak memory 4.0 GiB" in told.out
        assert "fit" not in fairmile("run", "-p", "gib=4", "--", "echo", "{gib}").err

    @pytest.mark.parametrize("values", ["400,4", "4,400"])
    @pytest.mark.parametrize("more", [(), ("--dry-run",)])
    def test_a_sweep_whose_first_or_last_point_does_not_fit_is_refused(
        self, fairmile: Fairmile, place: Path, values: str, more: tuple[str, ...]
    ) -> None:
        told = fairmile("sweep", "-p", f"gib={values}", *more, "--", "echo", "{gib}")
        assert (told.code, run_ids(place)) == (2, [])
        assert "does not fit: peak memory 400.0 GiB" in told.err
        assert "take 12; --anyway runs it regardless" in told.err

    def test_anyway_plans_a_sweep_that_does_not_fit(self, fairmile: Fairmile) -> None:
        assert fairmile("sweep", "-p", "gib=400,4", "--anyway", "--dry-run", "--", "echo", "{gib}").code == 0


class TestDryRun:
    def test_says_once_why_there_is_no_prediction(self, fairmile: Fairmile) -> None:
        told = fairmile("run", "--dry-run", "--", "true")
        assert told.out.count("predict unknown: no successful earlier run") == 1
        fairmile("run", "--", "true")
        told = fairmile("run", "--dry-run", "--name", "true", "--", "true", "--other")
        assert "predict unknown: no earlier run with the same command, resources and machine" in told.out

    def test_shows_the_command_and_does_nothing(self, fairmile: Fairmile, place: Path) -> None:
        told = fairmile("run", "--dry-run", "-p", "x=1", "--", "touch", "{x}")
        assert "run     touch 1" in told.out
        assert not (place / "1").exists()
        assert run_ids(place) == []

    def test_of_going_on_does_nothing(self, fairmile: Fairmile, place: Path) -> None:
        fairmile("run", "--", "sh", "-c", "echo x >> count; exit 1")
        assert fairmile("run", "--resume", "last", "--dry-run").code == 0
        assert (place / "count").read_text() == "x\n"

    def test_of_a_crate_takes_nothing_in(self, fairmile: Fairmile, place: Path) -> None:
        fairmile("run", "--", "echo", "high")
        fairmile("runs", "export", "last", "-o", "a.crate.zip")
        fairmile("runs", "rm", "last")
        told = fairmile("rerun", "a.crate.zip", "--dry-run")
        assert (told.code, run_ids(place)) == (0, [])
        assert "echo high" in told.out


class TestKnown:
    @pytest.fixture
    def empty(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A folder with nothing in it that a program could read."""
        folder = place.parent / "empty"
        folder.mkdir()
        monkeypatch.chdir(folder)
        return folder

    def test_results_are_offered_unless_again(self, fairmile: Fairmile, place: Path, empty: Path) -> None:
        fairmile("run", "--", "echo", "high")
        known = fairmile("run", "--", "echo", "high")
        assert "has the same command, parameters, code, inputs and packages; --again runs it anyway" in known.err
        assert len(run_ids(place)) == 1
        assert "known" not in fairmile("run", "--again", "--", "echo", "high").err
        assert len(run_ids(place)) == 2

    @pytest.mark.parametrize("option", [("--name", "other"), ("--repeat", "1"), ("--leave",)])
    def test_who_asks_for_a_run_of_its_own_gets_one(
        self, fairmile: Fairmile, place: Path, empty: Path, option: tuple[str, ...]
    ) -> None:
        fairmile("run", "--", "echo", "high")
        assert "known" not in fairmile("run", *option, "--", "echo", "high").err
        assert len(run_ids(place)) == 2

    def test_a_file_that_changed_is_named(self, fairmile: Fairmile, empty: Path) -> None:
        (empty / "data.txt").write_text("1\n")
        fairmile("run", "--", "cat", "data.txt")
        fairmile("run", "--", "sh", "-c", "cat data.txt")
        (empty / "data.txt").write_text("2\n")
        told = fairmile("run", "--", "sh", "-c", "cat data.txt")
        assert told.out == "2\n"
        assert "but data.txt, which it read, changed" in told.err

    def test_results_without_the_metric_that_is_asked_for_are_not(self, fairmile: Fairmile, empty: Path) -> None:
        fairmile("run", "--", "echo", "level 2.5")
        told = fairmile("run", "--json", "--metric", r"level=level ([\d.]+)", "--", "echo", "level 2.5")
        assert told.json["result"]["metrics"]["level"]["value"] == 2.5


class TestGoingOn:
    def test_is_in_the_same_run(self, fairmile: Fairmile) -> None:
        first = fairmile("run", "--json", "--", "sh", "-c", "[ -e half ] && echo went on || { touch half; exit 1; }")
        again = fairmile("run", "--resume", "last", "--json")
        assert (again.code, again.json["id"]) == (0, first.json["id"])
        refused = fairmile("run", "--resume", "last", "--json")
        assert (refused.code, refused.json["error"]["type"]) == (2, "Conflict")


class TestRerun:
    def test_tells_verdicts_as_a_table_and_as_data(self, fairmile: Fairmile) -> None:
        fairmile("run", "--metric", r"level=level ([\d.]+)", "--", "echo", "level 2.5")
        told = fairmile("rerun", "last")
        assert told.code == 0
        assert "metric level  same     2.5, exactly" in told.out
        assert told.err.rstrip().endswith(": reproduced")
        found = fairmile("rerun", "last", "--json").json
        assert found["reproduced"] is True
        assert {each["what"]: each["same"] for each in found["verdicts"]}["end"] is True

    def test_ends_with_one_where_a_metric_is_off(self, fairmile: Fairmile, place: Path) -> None:
        counter = place / "count"
        script = f"echo x >> {counter}; echo level $(wc -l < {counter})"
        fairmile("run", "--metric", r"level=level (\d+)", "--", "sh", "-c", script)
        told = fairmile("rerun", "last")
        assert told.code == 1
        assert "metric level  differs" in told.out

    def test_of_a_script_brings_the_modules_that_it_imports(self, fairmile: Fairmile, place: Path) -> None:
        (place / "parts").mkdir()
        (place / "parts" / "__init__.py").write_text("from .inner import y\n")
        (place / "parts" / "inner.py").write_text("y = 2\n")
        (place / "beside.py").write_text("import parts\nx = 1\n")
        (place / "train.py").write_text("import os, beside as b\nprint('sum', b.x + b.parts.y)\n")
        assert fairmile("run", "--", PYTHON, "train.py").out == "sum 3\n"
        # Of another length, for Python compares that, and seconds, with the byte code it keeps.
        (place / "beside.py").write_text("import parts\nx = 3 + 4\n")
        changed = fairmile("run", "--", PYTHON, "train.py")
        assert changed.out == "sum 9\n"  # and not the known result of other code
        for name in ("train.py", "beside.py", "parts/inner.py"):
            (place / name).unlink()
        again = fairmile("rerun", "last")
        assert (again.code, again.out.splitlines()[0]) == (0, "sum 9")

    def test_of_a_file_above_the_folder(self, fairmile: Fairmile, place: Path) -> None:
        (place.parent / "above.sh").write_text("echo above\n")
        assert fairmile("run", "--", "sh", "../above.sh").out == "above\n"
        (place.parent / "above.sh").unlink()
        assert fairmile("rerun", "last").code == 0

    def test_of_a_packed_run(self, fairmile: Fairmile, place: Path) -> None:
        fairmile("run", "--", "echo", "high")
        packed = fairmile("runs", "pack", "last", "--json").json["done"][0]
        assert fairmile("rerun", packed).code == 0

    def test_of_somebody_elses_run_is_shown_and_needs_consent(self, fairmile: Fairmile, place: Path) -> None:
        fairmile("run", "--env", "LD_PRELOAD=", "--", "echo", "high")
        fairmile("runs", "export", "last", "-o", "a.crate.zip")
        fairmile("runs", "rm", "last")
        refused = fairmile("rerun", "a.crate.zip")
        assert (refused.code, refused.out, run_ids(place)) == (2, "", [])
        assert "command   echo high" in refused.err
        assert "not set   LD_PRELOAD=" in refused.err
        assert "there is no terminal to ask for your consent" in refused.err
        shown = fairmile("rerun", "a.crate.zip", "--dry-run", "--json").json
        assert shown["review"]["command"] == ["echo", "high"]
        agreed = fairmile("rerun", "a.crate.zip", "--yes")
        assert (agreed.code, agreed.out.splitlines()[0], len(run_ids(place))) == (0, "high", 2)

    def test_in_an_environment_needs_no_file_of_it(self, fairmile: Fairmile, place: Path) -> None:
        first = fairmile("run", "--environment", "tides.yaml", "--", "python", "-c", "print(1)")
        assert first.code == 0, first.err
        shown = fairmile("runs", "show", "last").out
        assert "command      python -c 'print(1)'" in shown
        assert re.search(r"environment  .*tides.yaml [0-9a-f]{16}\n", shown)
        assert re.search(r"python       3\.\S+ \S+-tides/prefix/bin/python, ", shown)  # not that of whoever runs it
        (place / "tides.yaml").unlink()
        found = {each["what"]: each for each in fairmile("rerun", "last", "--json").json["verdicts"]}
        assert found["environment"]["same"] is True

    def test_in_an_environment_without_a_python_records_the_one_that_ran(self, fairmile: Fairmile, place: Path) -> None:
        (place / "plain.yaml").write_text("variables: {TIDE: high}\n")
        done = fairmile("run", "--environment", "plain.yaml", "--", "python", "-c", "import sys; print(sys.executable)")
        assert done.code == 0, done.err
        assert f" {done.out.strip()}, " in fairmile("runs", "show", "last").out


class TestHints:
    def test_what_a_program_wrote_without_declaring_it_is_named(self, fairmile: Fairmile, place: Path) -> None:
        (place / "train.py").write_text("open('model.bin', 'w').write('1')\n")
        assert "hint: --out model.bin keeps the files that it wrote" in fairmile("run", "train.py").err
        assert "wrote    model.bin (not kept: no --out named it)" in fairmile("runs", "show", "last").out
        assert "but it wrote model.bin without declaring it" in fairmile("run", "train.py").err
        assert "keeps the files that it wrote" not in fairmile("run", "--out", "model.bin", "train.py").err

    def test_files_of_one_folder_are_named_together(self, fairmile: Fairmile, place: Path) -> None:
        script = """\
            import pathlib, time
            folder = pathlib.Path("outputs", str(time.time_ns()))
            folder.mkdir(parents=True)
            for name in ("train.log", "config.yaml"):
                (folder / name).write_text("1")
            pathlib.Path("model.bin").write_text("1")
            """
        (place / "train.py").write_text(textwrap.dedent(script))
        assert "hint: --out model.bin --out 'outputs/**' keeps the files" in fairmile("run", "train.py").err
        fairmile("run", "--out", "model.bin", "--out", "outputs/**", "train.py")
        assert fairmile("run", "--out", "model.bin", "--out", "outputs/**", "train.py").err.startswith("reuse: ")

    def test_answer_a_typo_in_an_argument_with_the_help_of_the_program(self, fairmile: Fairmile, place: Path) -> None:
        (place / "train.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
        told = fairmile("run", "--", PYTHON, "train.py", "--lrr", "1")
        assert told.err.splitlines()[-1] == f"hint: correct --lrr: `{PYTHON} train.py --help` lists the arguments"
        assert "--resume" not in told.err

    def test_advise_to_resume_what_a_time_limit_ended(self, fairmile: Fairmile) -> None:
        told = fairmile("run", "--timeout", "0.2s", "--", "sleep", "60")
        assert "hint: raise --timeout" in told.err
        assert "fairmile run --resume" in told.err.splitlines()[-1]


class TestAProgramByItsPath:
    def test_runs_with_the_words_behind_it_as_arguments_and_parameters(self, fairmile: Fairmile, place: Path) -> None:
        (place / "train.py").write_text("import sys; print('got', sys.argv[1:])")
        done = fairmile("run", "--tag", "first", "train.py", "--lr", "0.1", "--debug", "--", "-x")
        assert "got ['--lr', '0.1', '--debug', '--', '-x']" in done.out
        shown = fairmile("run", "--json", "train.py", "--lr", "0.1", "model.depth=3", "--fast").json
        assert shown["spec"]["params"] == {"lr": 0.1, "model.depth": 3, "fast": True}

    def test_refuses_an_option_of_ours_behind_a_program_that_does_not_mention_it(
        self, fairmile: Fairmile, place: Path
    ) -> None:
        (place / "train.py").write_text("import sys; print('got', sys.argv[1:])")
        refused = fairmile("run", "train.py", "--dry-run")
        assert refused.code == 2
        assert "--dry-run comes after train.py, which does not mention it" in refused.err
        assert "train.py …`" in refused.err
        assert run_ids(place) == []
        (place / "train.py").write_text("import sys; dry_run = '--dry-run' in sys.argv; print('dry', dry_run)")
        assert "dry True" in fairmile("run", "train.py", "--dry-run").out

    def test_is_any_executable_file_with_a_slash(self, fairmile: Fairmile, place: Path) -> None:
        (place / "tide").write_text("#!/bin/sh\necho high $2\n")
        (place / "tide").chmod(0o755)
        assert "high 3" in fairmile("run", "./tide", "--level", "3").out
        assert "high" in fairmile("run", "tide").out


_WITH_ARGUMENTS = [["run", "train.py", "--n", "1"], ["sweep", "train.py", "--n", "1,2"]]


@pytest.mark.parametrize("command", [*_WITH_ARGUMENTS, ["job", "submit", "train.py", "--n", "1"]])
def test_arguments_that_nothing_uses_are_refused(fairmile: Fairmile, place: Path, command: list[str]) -> None:
    (place / "train.py").write_text("print('loss 3')\n")
    refused = fairmile(*command)
    assert refused.code == 2
    assert "nothing uses --n: train.py reads no arguments" in refused.err
    if command[0] != "job":
        assert fairmile(command[0], "--reads-params", *command[1:]).code == 0


@pytest.mark.parametrize("command", [*_WITH_ARGUMENTS, ["job", "submit", "train.py", "--n", "1"]])
def test_arguments_that_the_parser_of_a_program_refuses_are_named_before_anything_runs(
    fairmile: Fairmile, place: Path, command: list[str]
) -> None:
    (place / "train.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--nn')\nprint(p.parse_args())\n"
    )
    words = [word.replace("--n", "--nm") for word in command]
    refused = fairmile(*words)
    assert refused.code == 2
    assert "train.py has no argument --nm; did you mean '--nn'?" in refused.err
    assert "python train.py --help` lists its arguments" in refused.err
    assert run_ids(place) == []
    assert fairmile(*command).code == 0  # argparse completes --n


def test_a_launcher_starts_the_ranks_of_a_run_here(
    fairmile: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    command = 'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE"'
    result = fairmile("run", "--launch", "mpirun", "--tasks-per-node", "2", "--", "sh", "-c", command)
    assert result.code == 0, result.err
    log = fairmile("runs", "log", "last").out
    assert sorted(log.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]


def test_a_prediction_is_shown_with_the_interval_that_is_known() -> None:
    assert range_text("elapsed_s", 1.0, 2.0) == "1 s to 2 s; "
    assert range_text("peak_memory_bytes", 2.0**30, None) == "1.0 GiB or more; "
    assert range_text("elapsed_s", None, None) == ""
