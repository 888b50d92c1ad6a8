"""Notebooks as programs of runs, executed by real kernels."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fairmile.runs.record.run import RunState
from fairmile.runs.runs import Runs
from fairmile.sweeps import notebooks
from fairmile.sweeps.notebooks import notebook_argv
from fairmile.workspace import Workspace

pytest.importorskip("ipykernel", reason="needs ipykernel")
nbformat = pytest.importorskip("nbformat", reason="needs nbformat")

Refusal = Callable[..., tuple[int, str]]
ENGINES = ["papermill", "nbclient"]
# As for a notebook in another language, whose kernels are not here.
BY_PAPERMILL = """\
import sys
from fairmile.sweeps import notebooks
notebooks._by_nbclient = lambda document, out, params, kernel, nbformat: notebooks._by_papermill(
    document, out, params, kernel
)
sys.exit(notebooks.main(sys.argv[1:]))
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Runs of a workspace below the test's folder, which is also where the person stands."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    environ = {**os.environ, "HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home")}
    environ.pop("FAIRMILE_EVENTS", None)
    return Workspace.open(environ=environ, cwd=here).runs


def write_notebook(file: Path, *sources: str, parameters: int | None = None, language: str = "python") -> Path:
    """Write a notebook; the cell with the number `parameters` is tagged so."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    if parameters is not None:
        cells[parameters].metadata["tags"] = ["parameters"]
    kernel = {"name": "python3" if language == "python" else "none-such", "language": language, "display_name": "x"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), file)
    return file


def execute(
    notebook: Path, engine: str = "nbclient", *, params: dict[str, Any] | None = None
) -> subprocess.CompletedProcess[str]:
    """Execute a notebook in a folder `work` beside it, as a run does."""
    work = notebook.parent / "work"
    work.mkdir(exist_ok=True)
    module = ["-c", BY_PAPERMILL] if engine == "papermill" else ["-m", "fairmile.sweeps.notebooks"]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("FAIRMILE_")}
    if params is not None:
        environ["FAIRMILE_PARAMS"] = json.dumps(params)
    argv = [sys.executable, *module, str(notebook), f"{notebook.stem}.ipynb"]
    return subprocess.run(argv, cwd=work, env=environ, capture_output=True, text=True, timeout=120)


def printed(notebook: Path) -> str:
    """Return what the cells of an executed notebook have printed."""
    outputs = [each for cell in nbformat.read(notebook, as_version=4).cells for each in cell.get("outputs", [])]
    return "".join(each.text for each in outputs if each.output_type == "stream" and each.name == "stdout")


@dataclass(frozen=True)
class Executed:
    """An execution that ended, and its folder."""

    process: subprocess.CompletedProcess[str]
    work: Path

    @property
    def cells(self) -> list[Any]:
        """The code of the executed notebook; papermill adds text above a cell that failed."""
        cells = nbformat.read(self.work / "n.ipynb", as_version=4).cells
        return [cell for cell in cells if cell.cell_type == "code"]


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def executed(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Executed:
    """A notebook with defaults for its parameters, written where there was another kernel."""
    notebook = write_notebook(
        tmp_path_factory.mktemp("executed") / "n.ipynb",
        "first = 1",
        "lr = 0.5; name = 'x'; on = False; kept = 2",
        "print(lr, name, on, kept)",
        "import sys\nprint('oh', file=sys.stderr)\nopen('made.txt', 'w').write('x')",
        parameters=1,
    )
    notebook.write_text(notebook.read_text().replace('"name": "python3"', '"name": "my-conda-env"'))
    done = execute(notebook, engine, params={"lr": 1e-3, "name": "it's {lr}", "on": True})
    return Executed(done, notebook.parent / "work")


@pytest.fixture(scope="module")
def failed(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Executed:
    """A notebook without a tagged cell, whose second cell fails."""
    notebook = write_notebook(
        tmp_path_factory.mktemp("failed") / "n.ipynb", "print(n, none)", "1 / 0", "print('after')"
    )
    return Executed(execute(notebook, engine, params={"n": 3, "none": None}), notebook.parent / "work")


class TestExecution:
    def test_sets_parameters_after_the_tagged_cell_and_before_those_that_use_them(self, executed: Executed) -> None:
        tags = [cell.metadata.get("tags", []) for cell in executed.cells]
        assert tags == [[], ["parameters"], ["injected-parameters"], [], []]
        assert printed(executed.work / "n.ipynb") == "0.001 it's {lr} True 2\n"

    def test_runs_cells_where_the_run_runs_and_shows_what_they_print(self, executed: Executed) -> None:
        assert executed.process.stdout == "0.001 it's {lr} True 2\n"
        assert "oh" in executed.process.stderr
        assert (executed.work / "made.txt").read_text() == "x"

    def test_a_kernel_name_that_is_not_here_is_replaced_by_this_python(self, executed: Executed) -> None:
        assert executed.process.returncode == 0, executed.process.stderr

    @pytest.mark.thorough
    def test_sets_parameters_first_where_no_cell_is_tagged(self, failed: Executed) -> None:
        assert failed.cells[0].metadata["tags"] == ["injected-parameters"]
        assert printed(failed.work / "n.ipynb") == "3 None\n"

    @pytest.mark.thorough
    def test_a_failing_cell_ends_it_with_one_sentence_and_the_notebook_is_kept(self, failed: Executed) -> None:
        assert failed.process.returncode == 1
        reason = failed.process.stderr.splitlines()[-1]
        assert reason == "n.ipynb: cell In [3] failed: ZeroDivisionError: division by zero"
        assert [bool(cell.outputs) for cell in failed.cells] == [False, True, True, False]

    @pytest.mark.thorough
    def test_leaving_a_cell_with_exit_is_no_failure(self, tmp_path: Path, engine: str) -> None:
        notebook = write_notebook(tmp_path / "n.ipynb", "print('before')", "import sys; sys.exit(0)", "1 / 0")
        done = execute(notebook, engine)
        assert done.returncode == 0, done.stderr
        assert printed(tmp_path / "work/n.ipynb") == "before\n"

    @pytest.mark.thorough
    def test_a_kernel_that_dies_is_a_failure_and_the_notebook_is_kept(self, tmp_path: Path, engine: str) -> None:
        notebook = write_notebook(tmp_path / "n.ipynb", "print('before')", "import os; os.kill(os.getpid(), 9)")
        done = execute(notebook, engine)
        assert done.returncode == 1
        assert "n.ipynb: the kernel died" in done.stderr
        assert printed(tmp_path / "work/n.ipynb") == "before\n"

    def test_what_was_executed_before_a_kill_is_kept(self, tmp_path: Path) -> None:
        notebook = write_notebook(tmp_path / "n.ipynb", "print('before')", "import time\nprint('on')\ntime.sleep(600)")
        often = "import sys; from fairmile.sweeps import notebooks; notebooks._WRITE_EVERY_S = 0; "
        argv = [sys.executable, "-c", f"{often} notebooks.main(sys.argv[1:])", str(notebook), "out.ipynb"]
        with subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(2)]
            process.kill()
        assert lines == ["before\n", "on\n"]
        assert printed(tmp_path / "out.ipynb") == "before\n"


class TestRefusals:
    @pytest.fixture
    def refusal(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refusal:
        """Return the exit code of an execution and its message; no kernel starts, so this process executes."""
        monkeypatch.chdir(tmp_path)

        def call(notebook: Path, out: str = "out.ipynb", *, params: dict[str, Any] | None = None) -> tuple[int, str]:
            monkeypatch.setenv("FAIRMILE_PARAMS", json.dumps(params or {}))
            return notebooks.main([str(notebook), out]), capsys.readouterr().err

        return call

    def test_a_notebook_is_never_overwritten_with_its_result(self, tmp_path: Path, refusal: Refusal) -> None:
        notebook = write_notebook(tmp_path / "n.ipynb", "print(1)")
        before = notebook.read_bytes()
        code, message = refusal(Path("n.ipynb"), "n.ipynb")
        assert (code, notebook.read_bytes()) == (2, before)
        assert "n.ipynb is both the notebook and its output" in message

    def test_a_missing_notebook(self, tmp_path: Path, refusal: Refusal) -> None:
        code, message = refusal(tmp_path / "nothing.ipynb")
        assert code == 2
        assert "no such file" in message

    @pytest.mark.parametrize("text", ["", "{}", "print(1)", '{"cells": 3, "nbformat": 4, "metadata": {}}'])
    def test_a_file_that_is_no_notebook(self, tmp_path: Path, refusal: Refusal, text: str) -> None:
        (tmp_path / "n.ipynb").write_text(text)
        code, message = refusal(tmp_path / "n.ipynb")
        assert code == 2, message
        assert "is not a notebook" in message

    def test_a_name_that_is_no_variable(self, tmp_path: Path, refusal: Refusal) -> None:
        code, message = refusal(write_notebook(tmp_path / "n.ipynb", "print(1)"), params={"a-b": 1})
        assert code == 2
        assert "'a-b' is not a valid variable name" in message

    def test_a_language_without_a_kernel(self, tmp_path: Path, refusal: Refusal) -> None:
        code, message = refusal(write_notebook(tmp_path / "n.ipynb", "print(1)", language="julia"))
        assert code == 3
        assert "needs the julia kernel 'none-such', which is not installed" in message

    @pytest.mark.parametrize("missing", ["nbclient", "nbformat", "jupyter_client"])
    def test_a_missing_package_is_named_with_what_installs_it(
        self, tmp_path: Path, refusal: Refusal, monkeypatch: pytest.MonkeyPatch, missing: str
    ) -> None:
        notebook = write_notebook(tmp_path / "n.ipynb", "print(1)")
        for module in [name for name in sys.modules if name == missing or name.startswith(f"{missing}.")]:
            monkeypatch.setitem(sys.modules, module, None)
        monkeypatch.setitem(sys.modules, missing, None)
        code, message = refusal(notebook)
        assert code == 3
        assert f"notebooks need {missing}" in message
        assert "pip install 'fairmile[notebooks]'" in message


class TestRuns:
    def test_metrics_logged_in_a_notebook_reach_the_run_and_the_notebook_is_an_output(
        self, runs: Runs, tmp_path: Path
    ) -> None:
        notebook = write_notebook(
            tmp_path / "train.ipynb",
            "lr = 1.0",
            "import fairmile.meter as fm\nfor step in range(3):\n    fm.log(loss=lr / (step + 1), step=step)",
            parameters=0,
        )
        run = runs.run(notebook_argv(notebook), params={"lr": 0.6}, outputs=("train-executed.ipynb",))
        assert run.state == RunState.DONE, runs.output(run.id)
        assert run.result.metrics["loss"].count == 3
        assert run.result.metrics["loss"].value == pytest.approx(0.2)
        assert run.result.outputs["train-executed.ipynb"].size_bytes > 0

    @pytest.mark.thorough
    def test_a_failing_cell_fails_a_run_whose_parameters_are_too_long_for_a_variable(
        self, runs: Runs, tmp_path: Path
    ) -> None:
        notebook = write_notebook(tmp_path / "n.ipynb", "print(len(text))", "1 / 0")
        run = runs.run(notebook_argv(notebook), params={"text": "x" * 200_000}, outputs=("n-executed.ipynb",))
        assert run.state == RunState.FAILED
        assert b"200000" in runs.output(run.id)
        assert run.result.outputs["n-executed.ipynb"].size_bytes > 0

    def test_a_kernel_does_not_outlive_its_run(self, tmp_path: Path) -> None:
        notebook = write_notebook(
            tmp_path / "n.ipynb", "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)"
        )
        work = tmp_path / "work"
        work.mkdir()
        process = subprocess.Popen(notebook_argv(notebook), cwd=work, stderr=subprocess.DEVNULL)
        try:
            pid = work / "pid"
            while not (pid.exists() and pid.read_text()):
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) != 0
            while Path(f"/proc/{pid.read_text()}").exists():
                time.sleep(0.05)
        finally:
            process.kill()
