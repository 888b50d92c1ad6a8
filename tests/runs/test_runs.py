"""From a name or a command to a record: plans, known results, going on, doing it again, exchange."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.digest import sha256_file
from fairmile.base.errors import Conflict, DiskFailure, Integrity, InvalidDocument, NotFound, UsageError
from fairmile.base.files import Lock
from fairmile.catalog.kinds import CONTEXT_IRI
from fairmile.runs.record.crate import card_text
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.spec import Input, RunSpec
from fairmile.runs.record.values import parse_params
from fairmile.runs.runs import Runs
from fairmile.store.pools import Pools
from fairmile.workspace import Workspace

SCRIPT = "import sys\nprint('loss', float(sys.argv[1]) / 2)\nopen('model.txt', 'w').write(sys.argv[1])\n"
LOSS = {"loss": {"pattern": r"loss ([\d.]+)"}}


@pytest.fixture
def script(runs: Runs) -> Path:
    """A small program where the person stands; `runs` went there."""
    file = Path("train.py")
    file.write_text(SCRIPT)
    return file


def command(value: str = "4") -> list[str]:
    return [sys.executable, "train.py", value]


class TestCommands:
    def test_are_named_after_their_script(self, runs: Runs, script: Path) -> None:
        assert runs.plan(command()).spec.name == "train"
        assert runs.plan(["make", "all"]).spec.name == "make"

    def test_get_parameters_for_their_placeholders_and_keep_other_braces(self, runs: Runs) -> None:
        words = ["echo", "{lr}", "{print}", "${HOME}", '{"lr": 1}', "f'{lr}{x}'", "\\{lr}", "{lr|quote}"]
        run = runs.run(words, params={"lr": "a b"})
        assert runs.output(run.id).decode() == "a b {print} ${HOME} {\"lr\": 1} f'a b{x}' {lr} 'a b'\n"

    @pytest.mark.parametrize(
        ("word", "hint"),
        [
            ("{lrr}", "did you mean {lr}?"),
            ("{seed}", "--seed gives it a value"),
            ("{inputs.data}", "--data data=PATH gives it a value"),
            ("{zzz}", "-p zzz=VALUE gives it a value; write \\{zzz} to keep the braces"),
        ],
    )
    def test_name_a_placeholder_that_stands_for_nothing(self, runs: Runs, word: str, hint: str) -> None:
        with pytest.raises(UsageError, match=f"the command: {re.escape(word)} is not defined") as problem:
            runs.plan(["echo", "{lr}", word], params={"lr": 0.1})
        assert problem.value.hint == hint

    def test_find_parameters_seed_and_inputs_in_variables(self, runs: Runs) -> None:
        Path("data.txt").write_text("1 2 3")
        show = "echo $FAIRMILE_SEED $FAIRMILE_PARAMS; cat $FAIRMILE_INPUT_DATA"
        run = runs.run(["sh", "-c", show], params={"a": 1}, seed=7, inputs={"data": Input(path="data.txt")})
        assert runs.output(run.id).decode() == '7 {"a": 1}\n1 2 3'
        assert run.captured.inputs["data"].sha256

    def test_take_a_file_of_an_earlier_run(self, runs: Runs) -> None:
        first = runs.run(["sh", "-c", "echo 4 > weights.txt"], outputs=("*.txt",))
        named = {"init": Input(asset=f"run:{first.id}/weights.txt")}
        second = runs.run(["sh", "-c", "cat $FAIRMILE_INPUT_INIT"], inputs=named)
        assert runs.output(second.id).decode() == "4\n"
        assert second.captured.inputs["init"].sha256 == first.result.outputs["weights.txt"].sha256
        for address, message in (
            (f"run:{first.id}/other.txt", f"run {first.id} has no file other.txt"),
            (f"run:{first.id}/../../x", "names no file of a run"),
            (f"run:{first.id}", "names no file of a run"),
            ("run:nosuch/weights.txt", "nosuch"),
        ):
            with pytest.raises((NotFound, UsageError), match=re.escape(message)):
                runs.plan(["true"], inputs={"init": Input(asset=address)})

    def test_keep_their_outputs_by_digest(self, runs: Runs, script: Path) -> None:
        run = runs.run(command(), outputs=("*.txt",))
        assert run.result.outputs["model.txt"].size_bytes == 1

    def test_refuse_an_input_that_is_not_there(self, runs: Runs) -> None:
        with pytest.raises((NotFound, UsageError), match=r"nothing\.csv"):
            runs.run(["true"], inputs={"data": Input(path="nothing.csv")})
        assert runs.rows() == []

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            *(("a=1", 1), ("a=-2", -2), ("a=1e-4", 1e-4), ("a=0.5", 0.5), ("a=true", True), ("a=null", None)),
            *(("a=12:00", "12:00"), ("a=", ""), ("a=007", "007"), ("a=1_0", "1_0"), ("a=nan", "nan")),
            ("a=1e999", "1e999"),
        ],
    )
    def test_parameters_are_what_they_look_like(self, text: str, value: object) -> None:
        assert parse_params([text]) == {"a": value}

    def test_a_parameter_without_a_value_is_refused(self) -> None:
        with pytest.raises(UsageError, match="is not NAME=VALUE"):
            parse_params(["lr"])


class TestFiles:
    def test_describe_a_run_in_yaml(self, runs: Runs, script: Path) -> None:
        Path("small.yaml").write_text(
            f"argv: {sys.executable} train.py {{x}}\nparams: {{x: 8}}\nmetrics: {json.dumps(LOSS)}\n"
        )
        run = runs.run("small.yaml")
        assert (run.name, run.metrics["loss"].value) == ("small", 4.0)
        assert runs.run("small.yaml", params={"x": 2}).metrics["loss"].value == 1.0

    def test_that_are_wrong_are_told_with_line_and_field(self, runs: Runs) -> None:
        Path("wrong.yaml").write_text("argv: [true]\nseed: tomorrow\nspeed: 7\n")
        with pytest.raises(InvalidDocument) as caught:
            runs.plan("wrong.yaml")
        told = [str(problem) for problem in caught.value.problems]
        assert any(text.startswith("wrong.yaml:2 seed: ") for text in told)
        assert any("speed" in text and "no such field" in text for text in told)

    @pytest.mark.parametrize("field", ["params: {x: .nan}", "timeout_s: .inf", "metrics: {a: {tolerance: .inf}}"])
    def test_with_numbers_that_no_record_can_hold_are_refused(self, runs: Runs, field: str) -> None:
        Path("wrong.yaml").write_text(f"argv: [echo]\n{field}\n")
        with pytest.raises(InvalidDocument):
            runs.plan("wrong.yaml")

    def test_that_are_not_there_are_named(self, runs: Runs) -> None:
        with pytest.raises(NotFound, match=r"nowhere\.yaml"):
            runs.plan("nowhere.yaml")


class TestCards:
    @pytest.fixture
    def benchmark(self, workspace: Workspace, tmp_path: Path) -> str:
        """A benchmark whose card says how it is run, with a program and a data set that are files here."""
        program = tmp_path / "score.sh"
        program.write_text('echo "score $(wc -l < "$1")"\n')
        data = tmp_path / "lines.txt"
        data.write_text("1\n2\n3\n")
        common = {"version": "1.0", "license": "MIT", "description": "Counts lines for a test of runs."}
        data_card = {
            "@type": "Dataset",
            "name": "lines",
            **common,
            "distribution": [{"@type": "FileObject", "name": "lines.txt", "contentUrl": data.as_uri()}],
        }
        card = {
            "@type": "Benchmark",
            "name": "count-lines",
            **common,
            "command": ["sh", "{source}/score.sh", "{inputs.data}/lines.txt"],
            "matchSpec": {"metric": "score", "direction": "higher"},
            "distribution": [{"@type": "FileObject", "name": "score.sh", "contentUrl": program.as_uri()}],
        }
        for number, body in enumerate((data_card, card)):
            file = tmp_path / f"{number}.jsonld"
            file.write_text(json.dumps({"@context": "https://w3id.org/fairmile/card/1.0/context", **body}))
            workspace.catalog.add(file)
        return "benchmark/count-lines"

    def test_that_say_how_are_planned_and_run(self, runs: Runs, benchmark: str) -> None:
        plan = runs.plan(benchmark, "dataset/lines")
        assert [step.verb for step in plan.steps] == ["fetch", "fetch", "run"]
        run = runs.execute(plan)
        assert run.state is RunState.DONE, runs.output(run.id)
        assert runs.output(run.id) == b"score 3\n"
        assert run.captured.inputs["data"].asset.startswith("local/dataset/lines")

    @pytest.mark.parametrize("name", ["lines.txt", "score.sh"])
    def test_stored_bytes_that_were_altered_are_not_recorded_with_the_old_digest(
        self, runs: Runs, workspace: Workspace, benchmark: str, tmp_path: Path, name: str
    ) -> None:
        for file in ("lines.txt", "score.sh"):  # large enough to be a file of its own in the store
            with (tmp_path / file).open("a") as stream:
                stream.write("#" * (100 << 10) + "\n")
        runs.execute(runs.plan(benchmark, "dataset/lines"))
        own = workspace.store.path(sha256_file(tmp_path / name))
        assert own is not None
        status = own.stat()
        own.chmod(0o644)
        data = bytearray(own.read_bytes())
        data[-3:-2] = b"!"
        own.write_bytes(data)
        own.chmod(0o444)
        os.utime(own, ns=(status.st_atime_ns, status.st_mtime_ns))
        with pytest.raises(Integrity, match=f"{name} of .* was changed"):
            runs.execute(runs.plan(benchmark, "dataset/lines"))

    def test_a_card_without_a_command_says_what_to_do(self, runs: Runs) -> None:
        with pytest.raises(UsageError, match="cannot be run: its card has no"):
            runs.plan("dataset/mnist")


class TestKnownResults:
    """An earlier result is returned only where everything that the program could read is covered."""

    def run(self, runs: Runs, value: str = "4", **changes: Any) -> Run:
        return runs.run(command(value), again=False, outputs=("model.txt",), **changes)

    def reasons(self, runs: Runs, **changes: Any) -> str:
        """Run it once more and return what is said about that."""
        said: list[str] = []
        self.run(runs, on_step=lambda step: said.append(f"{step.verb}: {step.what}"), **changes)
        return "\n".join(said)

    def test_the_same_inputs_give_the_earlier_run(self, runs: Runs, script: Path) -> None:
        first = self.run(runs)
        assert self.run(runs).id == first.id
        assert runs.run(command(), again=True, outputs=("model.txt",)).id != first.id

    def test_other_code_parameters_or_inputs_do_not(self, runs: Runs, script: Path) -> None:
        first = self.run(runs)
        assert self.run(runs, "5").id != first.id
        script.write_text(SCRIPT + "# changed\n")
        assert self.run(runs).id != first.id

    def test_modules_that_changed_places_are_other_code(self, runs: Runs, script: Path) -> None:
        script.write_text("import a, b\n" + SCRIPT)
        Path("a.py").write_text("x = 1\n")
        Path("b.py").write_text("x = 22\n")
        first = self.run(runs)
        Path("a.py").write_text("x = 22\n")
        Path("b.py").write_text("x = 1\n")
        assert self.run(runs).id != first.id

    def test_a_failure_is_no_result(self, runs: Runs) -> None:
        assert runs.run(["false"], again=False).id != runs.run(["false"], again=False).id

    def test_a_name_or_a_tag_asks_for_a_run_of_its_own(self, runs: Runs, script: Path) -> None:
        first = self.run(runs)
        assert self.run(runs, name="mine").name == "mine"
        assert self.run(runs, tags=("paper",)).id != first.id

    def test_another_folder_with_the_same_code_is_the_same_and_gets_the_outputs(
        self, runs: Runs, script: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        first = self.run(runs)
        other = tmp_path / "other"
        other.mkdir()
        shutil.copy("train.py", other)
        monkeypatch.chdir(other)
        assert self.run(runs).id == first.id
        assert (other / "model.txt").read_text() == "4"

    def test_a_file_beside_it_that_it_does_not_read_changes_nothing_until_it_is_gone(
        self, runs: Runs, script: Path
    ) -> None:
        Path("data.txt").write_text("1")
        first = self.run(runs)
        Path("data.txt").write_text("2")
        assert self.run(runs).id == first.id
        Path("data.txt").unlink()
        assert (
            f"again: run {first.id} has the same command, parameters, code, inputs and packages, but files in"
            in self.reasons(runs)
        )

    def test_a_declared_input_covers_it(self, runs: Runs, script: Path) -> None:
        Path("data.txt").write_text("1")
        inputs = {"data": Input(path="data.txt")}
        first = self.run(runs, inputs=inputs)
        assert self.run(runs, inputs=inputs).id == first.id
        Path("data.txt").write_text("2")
        assert self.run(runs, inputs=inputs).id != first.id

    def test_an_undeclared_result_has_it_run_again(self, runs: Runs, script: Path) -> None:
        first = runs.run(command(), again=False)
        Path("model.txt").unlink()
        said: list[str] = []
        assert runs.run(command(), again=False, on_step=lambda step: said.append(step.what)).id != first.id
        assert "it wrote model.txt without declaring it" in said[-1]
        assert Path("model.txt").exists()

    def test_what_wrote_into_a_folder_of_its_own_does_not_stand_for_a_run_here(self, runs: Runs) -> None:
        argv = ["sh", "-c", "date > made.txt"]
        first = runs.run(argv, again=False)
        second = runs.rerun(first.id).again
        assert second.identity == first.identity
        Path("made.txt").unlink()
        runs.remove([first.id])
        assert runs.run(argv, again=False).id != second.id
        assert Path("made.txt").exists()

    @pytest.mark.parametrize("how", ["gone", "overwritten"])
    def test_outputs_are_restored(self, runs: Runs, script: Path, how: str) -> None:
        first = self.run(runs)
        Path("model.txt").unlink() if how == "gone" else Path("model.txt").write_text("of another run")
        assert f"restore: model.txt from run {first.id}" in self.reasons(runs)
        assert Path("model.txt").read_text() == "4"

    def test_outputs_that_cannot_be_restored_are_made_again(
        self, runs: Runs, workspace: Workspace, script: Path
    ) -> None:
        first = self.run(runs)
        Path("model.txt").unlink()
        workspace.store.drop_ref("run", f"outputs {first.id}")
        assert "its outputs are gone and were not kept" in self.reasons(runs)
        assert Path("model.txt").read_text() == "4"

    def test_an_empty_output_that_cannot_be_restored_is_made_again(self, runs: Runs, workspace: Workspace) -> None:
        def touch() -> str:
            return runs.run(["sh", "-c", "touch empty.txt"], outputs=("empty.txt",), again=False).id

        first = touch()
        assert touch() == first
        Path("empty.txt").unlink()
        workspace.store.drop_ref("run", f"outputs {first}")
        assert touch() != first
        assert Path("empty.txt").exists()

    def test_outputs_of_a_run_that_stands_for_no_other_are_not_kept(self, runs: Runs, workspace: Workspace) -> None:
        run = runs.run(["sh", "-c", "echo 1 > model.txt; echo 2 > undeclared.txt"], outputs=("model.txt",))
        assert workspace.store.ref("run", f"outputs {run.id}") is None

    def test_a_store_without_room_for_its_outputs_does_not_spoil_a_run(
        self, runs: Runs, script: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        choose = Pools.choose

        def refuse(self: Pools, size_bytes: int, **options: Any) -> Any:
            if "outputs" in options.get("what", ""):
                raise DiskFailure("there is no room")
            return choose(self, size_bytes, **options)

        monkeypatch.setattr(Pools, "choose", refuse)
        assert self.run(runs).state is RunState.DONE

    def test_kept_outputs_go_with_their_run(self, runs: Runs, workspace: Workspace, script: Path) -> None:
        first = self.run(runs)
        assert workspace.store.ref("run", f"outputs {first.id}") is not None
        runs.remove([first.id])
        assert workspace.store.ref("run", f"outputs {first.id}") is None

    def test_a_program_of_the_path_that_changed_has_it_run_again(self, workspace: Workspace, tmp_path: Path) -> None:
        tools = tmp_path / "tools"
        tools.mkdir()
        (tools / "tool").write_text("#!/bin/sh\necho 1\n")
        (tools / "tool").chmod(0o755)
        environ = {**workspace.environ, "PATH": f"{tools}:{workspace.environ['PATH']}"}
        runs = replace(workspace, environ=environ).runs
        first = runs.run(["tool"], again=False)
        assert runs.run(["tool"], again=False).id == first.id
        (tools / "tool").write_text("#!/bin/sh\necho 2\n")
        assert runs.run(["tool"], again=False).id != first.id

    def test_another_variable_has_it_run_again(self, workspace: Workspace) -> None:
        first = workspace.runs.run(["sh", "-c", "echo $LEVEL"], again=False)
        other = replace(workspace, environ={**workspace.environ, "LEVEL": "2", "TERM": "other"}).runs
        second = other.run(["sh", "-c", "echo $LEVEL"], again=False)
        assert (second.id != first.id, other.output(second.id)) == (True, b"2\n")

    def test_what_somebody_else_says_happened_is_no_result(self, runs: Runs, script: Path) -> None:
        first = self.run(runs)
        record = json.loads((first.folder / "run.json").read_text())
        (first.folder / "run.json").write_text(json.dumps(record | {"imported": True}))
        assert self.run(runs).id != first.id


class TestRepeats:
    def test_form_a_group(self, runs: Runs, script: Path) -> None:
        found = runs.repeat(3, runs.plan(command(), metrics=LOSS))
        assert len({run.id for run in found}) == 3
        assert len({run.group for run in found}) == 1
        assert len(runs.select(found[0].group)) == 3


class TestGoingOn:
    def test_an_interrupted_run_goes_on_in_its_own_folder(self, runs: Runs) -> None:
        program = "if [ -e half ]; then echo went on $FAIRMILE_RESUME $FAIRMILE_ATTEMPT; else touch half; exit 5; fi"
        run = runs.run(RunSpec(argv=("sh", "-c", program)))
        assert run.state is RunState.FAILED
        resumed = runs.resume(run.id)
        assert (resumed.id, resumed.state) == (run.id, RunState.DONE)
        assert runs.output(run.id) == b"went on 1 2\n"
        assert len(resumed.record.attempts) == 2

    def test_two_do_not_go_on_with_it_at_once(self, runs: Runs) -> None:
        run = runs.run(RunSpec(argv=("sh", "-c", "echo x >> count; exit 5")))
        with Lock(runs.root / f".{run.id}.resume"), pytest.raises(Conflict, match="another process"):
            runs.resume(run.id)
        assert (run.folder / "work" / "count").read_text() == "x\n"

    def test_what_is_done_is_not_resumed(self, runs: Runs) -> None:
        run = runs.run(["true"])
        with pytest.raises(Conflict, match=f"run {run.id} is done"):
            runs.resume(run.id)


class TestRerun:
    def test_of_a_run_whose_code_is_gone_says_so(self, runs: Runs, workspace: Workspace, script: Path) -> None:
        run = runs.run(command())
        root = run.captured.code.snapshot
        for pool in workspace.store.pools:
            (pool.folder / "trees" / root[:2] / root[2:]).unlink(missing_ok=True)
        with pytest.raises(NotFound, match=f"the code of run {run.id} is missing in the store") as problem:
            runs.rerun(run.id)
        assert "check out the code and use `fairmile run -- " in (problem.value.hint or "")

    def test_is_from_the_record_alone(self, runs: Runs, script: Path) -> None:
        run = runs.run(command(), metrics=LOSS, outputs=("model.txt",))
        shutil.rmtree(Path.cwd())
        done = runs.rerun(run.id)
        assert done.again.state is RunState.DONE, runs.output(done.again.id)
        verdicts = {each.what: each.same for each in done.verdicts}
        assert verdicts == {
            "code": True,
            "environment": True,
            "hardware": True,
            "end": True,
            "metric loss": True,
            "output model.txt": True,
        }
        assert done.reproduced
        assert done.again.record.rerun_of == run.id
        assert done.again.identity == run.identity

    def test_of_a_repository_takes_commit_and_uncommitted_changes(self, runs: Runs, script: Path) -> None:
        for argv in (
            ["init", "-q"],
            ["add", "."],
            ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"],
        ):
            subprocess.run(["git", *argv], check=True)
        script.write_text("print('loss', 1.5)\n")
        Path("deeper").mkdir()
        run = runs.run([sys.executable, str(Path("train.py").absolute())], metrics=LOSS)
        assert run.captured.code.git.dirty
        subprocess.run(["git", "checkout", "-q", "train.py"], check=True)
        done = runs.rerun(run.id)
        assert runs.output(done.again.id) == b"loss 1.5\n"
        assert done.reproduced

    def test_of_a_rerun_starts_in_the_same_subfolder(
        self, runs: Runs, script: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Path("deeper").mkdir()
        script.rename("deeper/train.py")
        subprocess.run(["git", "init", "-q"], check=True)
        monkeypatch.chdir("deeper")
        first = runs.run(command(), metrics=LOSS)
        second = runs.rerun(first.id)
        third = runs.rerun(second.again.id)
        assert second.reproduced
        assert third.reproduced, runs.output(third.again.id)
        assert third.again.identity == first.identity

    def test_keeps_files_of_one_name_apart(self, runs: Runs) -> None:
        for name in ("a", "b"):
            Path(name).mkdir()
            Path(name, "say.sh").write_text(f"echo {name}\n")
        files = [str(Path(name, "say.sh").absolute()) for name in ("a", "b")]
        run = runs.run(["sh", "-c", 'sh "$0"; sh "${1#--file=}"', files[0], f"--file={files[1]}"])
        shutil.rmtree(Path.cwd())
        again = runs.rerun(run.id).again
        assert runs.output(again.id) == runs.output(run.id) == b"a\nb\n"

    def test_tells_what_came_out_differently(self, runs: Runs) -> None:
        counter = Path("count.txt").absolute()
        program = f"n=$(cat {counter} 2>/dev/null || echo 1); echo loss $n; echo $((n * 2)) > {counter}"
        run = runs.run(["sh", "-c", program], metrics=LOSS)
        done = runs.rerun(run.id)
        (loss,) = [each for each in done.verdicts if each.what == "metric loss"]
        assert loss.same is False
        assert "100.00% apart" in loss.detail
        assert not done.reproduced
        assert runs.rerun(run.id, tolerance=10.0).reproduced

    def test_sees_the_data_that_the_program_read(self, runs: Runs) -> None:
        Path("data").mkdir()
        Path("data/x.txt").write_text("7")
        Path("other.txt").write_text("not read")
        Path("train.py").write_text("print('loss', open('data/x.txt').read())\n")
        run = runs.run(["python3", "train.py"], metrics=LOSS)
        done = runs.rerun(runs.rerun(run.id).again.id)
        assert done.reproduced, runs.output(done.again.id)
        assert {each.what: each.same for each in done.verdicts}["input data/x.txt"] is True
        assert not (done.again.folder / "work" / "other.txt").exists()

    def test_brings_a_file_back_that_changed_since(self, runs: Runs) -> None:
        Path("data.txt").write_text("7")
        Path("train.py").write_text("print('loss', open('data.txt').read())\n")
        run = runs.run(["python3", "train.py"], metrics=LOSS)
        Path("data.txt").write_text("8")
        done = runs.rerun(run.id)
        (data,) = [each for each in done.verdicts if each.what == "input data.txt"]
        assert data.same and data.detail.endswith("restored: the file has changed since")
        assert done.reproduced
        assert Path("data.txt").read_text() == "8"
        Path("data.txt").unlink()
        assert runs.rerun(done.again.id).reproduced

    def test_brings_a_file_back_as_a_sweep_froze_it(self, workspace: Workspace) -> None:
        Path("data.txt").write_text("7")
        Path("train.py").write_text("import sys\nprint('loss', open('data.txt').read())\n# sys.argv\n")
        sweeps = workspace.sweeps
        (point, _) = sweeps.run(sweeps.create(*sweeps.read(program=["train.py", "--n", "1,2"])))
        Path("data.txt").write_text("8")
        assert workspace.runs.rerun(point.run).reproduced

    def test_says_which_file_that_the_program_read_changed_and_was_not_kept(self, runs: Runs) -> None:
        Path(".data.txt").write_text("7")  # hidden files may hold secrets
        Path("train.py").write_text("print('loss', open('.data.txt').read())\n")
        run = runs.run(["python3", "train.py"], metrics=LOSS)
        Path(".data.txt").write_text("8")
        done = runs.rerun(run.id)
        (data,) = [each for each in done.verdicts if each.what == "input .data.txt"]
        assert data.same is False
        assert data.detail.endswith("the old content is not in the store")
        assert not done.reproduced
        Path(".data.txt").unlink()
        with pytest.raises(NotFound, match=rf"data\.txt, which run {run.id} read, is gone"):
            runs.rerun(run.id)

    def test_sees_an_input_where_the_program_looks_for_it(self, runs: Runs) -> None:
        Path("data").mkdir()
        Path("data/x.txt").write_text("7")
        Path("train.py").write_text("print('loss', open('data/x.txt').read())\n")
        run = runs.run(["python3", "train.py"], metrics=LOSS, inputs={"x": Input(path="data")})
        done = runs.rerun(run.id)
        assert done.reproduced, runs.output(done.again.id)

    def test_of_a_crate_sees_the_data_that_came_with_it(self, runs: Runs, tmp_path: Path) -> None:
        Path("data").mkdir()
        Path("data/x.txt").write_text("7")
        Path("train.py").write_text("print('loss', open('data/x.txt').read())\n")
        run = runs.run(["python3", "train.py"], metrics=LOSS)
        whole, bare = tmp_path / "whole.zip", tmp_path / "bare.zip"
        runs.export(run.id, target=whole, with_inputs=True)
        runs.export(run.id, target=bare)
        shutil.rmtree(Path.cwd())
        colleague = Workspace.open(environ={**os.environ, "FAIRMILE_HOME": str(tmp_path / "colleague")}, cwd=tmp_path)
        done = colleague.runs.rerun(str(whole), trust=True)
        assert done.reproduced, colleague.runs.output(done.again.id)
        assert {each.what: each.same for each in done.verdicts}["input data/x.txt"] is True
        assert colleague.runs.rerun(done.again.id, trust=True).reproduced
        other = Workspace.open(environ={**os.environ, "FAIRMILE_HOME": str(tmp_path / "other")}, cwd=tmp_path)
        lacking = {each.what: each for each in other.runs.rerun(str(bare), trust=True).verdicts}
        assert lacking["input data/x.txt"].detail.startswith("did not come with the record; its sha256 is ")

    def test_a_missing_input_is_named_with_its_digest(self, runs: Runs) -> None:
        Path("data.txt").write_text("1 2 3")
        run = runs.run(["cat", "{inputs.data}"], inputs={"data": Input(path="data.txt")})
        Path("data.txt").unlink()
        with pytest.raises(NotFound, match=r"input data of run .* does not exist"):
            runs.rerun(run.id)

    def test_a_changed_input_is_said(self, runs: Runs) -> None:
        Path("data.txt").write_text("1 2 3")
        run = runs.run(["cat", "{inputs.data}"], inputs={"data": Input(path="data.txt")})
        Path("data.txt").write_text("4 5 6")
        done = runs.rerun(run.id)
        assert {each.what: each.same for each in done.verdicts}["input data"] is False


class TestCardFiles:
    @pytest.mark.parametrize("name", ["card.yaml", "card.json"])
    def test_run_without_being_in_a_catalog(self, runs: Runs, script: Path, name: str) -> None:
        body = {
            "@context": CONTEXT_IRI,
            "@type": "SoftwareSourceCode",
            "name": "Tide",
            "version": "1",
            "license": "https://spdx.org/licenses/MIT",
            "command": [sys.executable, "train.py", "{level}"],
            "hyperparameters": {"level": 3},
        }
        Path(name).write_text(json.dumps(body, indent=1))
        run = runs.run(name, params={"level": 8}, metrics=LOSS)
        assert (run.name, run.state, run.metrics["loss"].value) == ("tide", RunState.DONE, 4)


class TestExchange:
    def test_another_workspace_imports_a_crate_and_reruns_it(self, runs: Runs, script: Path, tmp_path: Path) -> None:
        Path("data.txt").write_text("6")
        show = [sys.executable, "train.py", "4"]
        run = runs.run(show, metrics=LOSS, inputs={"data": Input(path="data.txt")})
        (crate,) = runs.export(run.id, "rocrate", tmp_path / "result.crate.zip", with_inputs=True)
        shutil.rmtree(runs.root)
        Path("train.py").unlink()
        Path("data.txt").unlink()
        environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "other")}
        other = Workspace.open(environ=environ).runs
        (imported,) = other.import_runs(crate)
        assert imported.id == run.id
        done = other.rerun(imported.id, trust=True)
        assert done.again.state is RunState.DONE, other.output(done.again.id)
        assert done.reproduced, done.verdicts
        assert {each.what: each.same for each in done.verdicts}["input data"] is True

    @pytest.mark.parametrize("id", ["../above", ".hidden", "a/b", ""])
    def test_an_id_that_leaves_the_folder_is_refused(self, runs: Runs, tmp_path: Path, id: str) -> None:
        record = replace(runs.run(["true"]).record, id=id)
        fake = tmp_path / "crate"
        fake.mkdir()
        (fake / "run.json").write_text(json.dumps({**record.to_dict(), "id": id}))
        (fake / "ro-crate-metadata.json").write_text(card_text(record, fake))
        before = sorted(tmp_path.rglob("run.json"))
        with pytest.raises(UsageError):
            runs.import_runs(fake)
        assert sorted(tmp_path.rglob("run.json")) == before

    def test_a_second_crate_brings_the_inputs_that_the_first_left_out(
        self, runs: Runs, script: Path, tmp_path: Path
    ) -> None:
        Path("data.txt").write_text("6")
        (Path("more") / "deep").mkdir(parents=True)
        Path("more/deep/x").write_text("7")
        given = {"data": Input(path="data.txt"), "more": Input(path="more")}
        run = runs.run(command(), metrics=LOSS, inputs=given)
        (bare,) = runs.export(run.id, "rocrate", tmp_path / "bare.zip")
        (whole,) = runs.export(run.id, "rocrate", tmp_path / "whole.zip", with_inputs=True)
        for gone in (runs.root, Path("more")):
            shutil.rmtree(gone)
        Path("data.txt").unlink()
        environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "other")}
        other = Workspace.open(environ=environ).runs
        other.import_runs(bare)
        assert not (other.get(run.id).folder / "inputs").exists()
        other.import_runs(whole, dry_run=True)
        assert not (other.get(run.id).folder / "inputs").exists()
        for _ in range(2):
            (again,) = other.import_runs(whole)
            paths = {name: Path(each.path) for name, each in again.captured.inputs.items()}
            assert paths["data"].read_text() == "6" and (paths["more"] / "deep/x").read_text() == "7"
        assert [path.name for path in other.root.iterdir() if path.name.startswith(".import")] == []
        assert other.rerun(run.id, trust=True).reproduced

    def test_importing_twice_changes_nothing_and_another_of_that_name_is_refused(
        self, runs: Runs, tmp_path: Path
    ) -> None:
        run = runs.run(["true"])
        (crate,) = runs.export(run.id, "rocrate", tmp_path / "a.zip")
        assert runs.import_runs(crate)[0].folder == run.folder
        document = json.loads((run.folder / "run.json").read_text())
        document["result"]["exit_code"] = 1
        (run.folder / "run.json").write_text(json.dumps(document))
        with pytest.raises(Conflict, match="a different run"):
            runs.import_runs(crate)


class TestRecording:
    def test_a_block_of_python_is_a_run_like_any_other(self, runs: Runs) -> None:
        with runs.recording("probe", params={"size": 3}) as recording:
            recording.log(rate_per_s=2.5)
        run = runs.get(recording.id)
        assert (run.state, run.metrics["rate_per_s"].value, run.params) == (RunState.DONE, 2.5, {"size": 3})

    def test_that_fails_says_why(self, runs: Runs) -> None:
        with pytest.raises(ZeroDivisionError), runs.recording("probe"):
            _ = 1 / 0
        assert runs.get("last").result.reason == "ZeroDivisionError: division by zero"


class TestPrediction:
    def test_stands_in_the_plan_and_in_the_record_once_there_is_history(self, runs: Runs) -> None:
        assert runs.plan(["true"]).prediction == {}
        for _ in range(3):
            runs.run(["true"])
        predicted = runs.run(["true"]).prediction["elapsed_s"]
        assert predicted["value"] > 0
        assert "earlier run" in predicted["source"]


class TestWhatIsKept:
    def test_of_files_that_were_never_committed_only_programs_are_taken(self, runs: Runs, script: Path) -> None:
        subprocess.run(["git", "init", "-q"], check=True)
        subprocess.run(["git", "add", "train.py"], check=True)
        for name in (".env", "id_rsa", "token.txt", "big.bin", "helper.py"):
            Path(name).write_text("secret = 1")
        run = runs.run(command())
        (crate,) = runs.export(run.id, "rocrate", Path("out.zip"))
        with zipfile.ZipFile(crate) as packed:
            kept = {name for name in packed.namelist() if name.startswith("code/")}
        assert kept == {"code/train.py", "code/helper.py"}

    def test_a_changed_input_is_no_reproduction(self, runs: Runs) -> None:
        Path("data.txt").write_text("1 2 3")
        run = runs.run(["cat", "{inputs.data}"], inputs={"data": Input(path="data.txt")})
        Path("data.txt").write_text("4 5 6")
        assert not runs.rerun(run.id).reproduced

    def test_without_metrics_the_bytes_of_outputs_decide(self, runs: Runs) -> None:
        spec = RunSpec(argv=("sh", "-c", "date +%N > now.txt"), outputs=("now.txt",))
        assert not runs.rerun(runs.run(spec).id).reproduced

    def test_a_part_of_another_program_is_not_run_again_by_itself(self, runs: Runs) -> None:
        with runs.recording("probe") as recording:
            pass
        with pytest.raises(UsageError, match="inside another program"):
            runs.rerun(recording.id)

    def test_seeds_of_repeats_count_up(self, runs: Runs) -> None:
        found = runs.repeat(3, runs.plan(["echo", "{seed}"], seed=7))
        assert [runs.output(run.id) for run in found] == [b"7\n", b"8\n", b"9\n"]

    @pytest.mark.parametrize(
        ("argv", "given", "seeds"),
        [
            (["true", "-m", "fairmile.benchmarks", "mnist"], {}, [0, 1]),
            (["true", "-m", "fairmile.benchmarks", "mnist"], {"seed": 7}, [7, 8]),
            (["true"], {}, [None, None]),
        ],
    )
    def test_repeats_of_a_benchmark_have_seeds_of_their_own(
        self, runs: Runs, argv: list[str], given: dict[str, int], seeds: list[int | None]
    ) -> None:
        assert [run.spec.seed for run in runs.repeat(2, runs.plan(argv, **given))] == seeds


class TestARerun:
    def test_does_not_judge_speeds(self, runs: Runs) -> None:
        text = "import fairmile as fm, time; fm.log(loss=0.5, samples_per_s=time.time() % 1000)"
        first = runs.run([sys.executable, "-c", text])
        done = runs.rerun(first.id)
        assert done.reproduced, done.verdicts
        (verdict,) = [each for each in done.verdicts if each.what == "metric samples_per_s"]
        assert verdict.same is None
        again = runs.rerun(first.id, tolerance=1e-9)
        assert not again.reproduced


class TestPlansOfBenchmarks:
    def test_name_the_data_also_where_nobody_can_be_asked(self, runs: Runs) -> None:
        plan = runs.plan("benchmark/opencatalyst", "dataset/oc20-s2ef-200k")
        fetched = [step.what for step in plan.steps if step.verb == "fetch"]
        assert not any("program/" in what for what in fetched), "the benchmark needs no program of others"
        assert any("dataset/oc20-s2ef-200k" in what for what in fetched)
        assert plan.steps[-1].verb == "run"


class TestTheTimeOfAJob:
    def test_is_chosen_from_short_runs(self, runs: Runs) -> None:
        text = "import fairmile as fm, time\nfor n in range({epochs}):\n  with fm.span('epoch'): time.sleep(0.01)"
        argv = [sys.executable, "-c", text]
        for epochs in (3, 6):
            runs.run(argv, name="fit", params={"epochs": epochs})
        asked = {"account": "me"}
        plan = runs.plan(argv, name="fit", params={"epochs": 60_000}, system="jureca", resources=asked)
        assert plan.spec.resources.time_s is not None
        assert 600 <= plan.spec.resources.time_s <= 24 * 3600  # the machine that measures may be busy
        assert any("predicted from earlier runs" in note for note in plan.notes)
        assert "#SBATCH --time=" in plan.script
        too_long = runs.plan(argv, name="fit", params={"epochs": 10**9}, system="jureca", resources=asked)
        assert too_long.spec.resources.time_s is None
        assert any("cannot predict the time" in note and "fit" in note for note in too_long.notes)
