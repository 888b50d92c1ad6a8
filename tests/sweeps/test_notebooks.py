"""Notebooks as programs of runs, executed by real kernels."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fairmile.runs.record.run import RunState
from fairmile.runs.runs import Runs
from fairmile.sweeps.notebooks import notebook_argv
from fairmile.workspace import Workspace

pytest.importorskip("ipykernel", reason="needs ipykernel")
nbformat = pytest.importorskip("nbformat", reason="needs nbformat")

ENGINES = ["papermill", "nbclient"]
START = "import sys; from fairmile.sweeps import notebooks; sys.exit(notebooks.main(sys.argv[1:]))"
WITHOUT = "import sys; sys.modules[{0!r}] = None; " + START
WITHOUT_PAPERMILL = START.replace("sys.exit", "notebooks._has_papermill = lambda: False; sys.exit")


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
    notebook: Path, engine: str = "papermill", *, params: dict[str, Any] | None = None, code: str = ""
) -> subprocess.CompletedProcess[str]:
    """Execute a notebook in a folder `work` beside it, as a run does."""
    work = notebook.parent / "work"
    work.mkdir(exist_ok=True)
    code = code or (WITHOUT_PAPERMILL if engine == "nbclient" else "")
    module = ["-c", code] if code else ["-m", "fairmile.sweeps.notebooks"]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("FAIRMILE_")}
    if params is not None:
        environ["FAIRMILE_PARAMS"] = json.dumps(params)
    argv = [sys.executable, *module, str(notebook), f"{notebook.stem}.ipynb"]
    return subprocess.run(argv, cwd=work, env=environ, capture_output=True, text=True, timeout=120)


def printed(notebook: Path) -> str:
    """Return what the cells of an executed notebook have printed."""
    outputs = [each for cell in nbformat.read(notebook, as_version=4).cells for each in cell.get("outputs", [])]
    return "".join(each.text for each in outputs if each.output_type == "stream" and each.name == "stdout")


@pytest.mark.parametrize("engine", ENGINES)
class TestExecution:
    def test_sets_parameters_after_the_tagged_cell_and_before_those_that_use_them(
        self, tmp_path: Path, engine: str
    ) -> None:
        notebook = write_notebook(
            tmp_path / "n.ipynb", "first = 1", "lr = 0.5; name = 'x'; on = False", "print(lr, name, on)", parameters=1
        )
        done = execute(notebook, engine, params={"lr": 1e-3, "name": "it's {lr}", "on": True})
        assert done.returncode == 0, done.stderr
        cells = nbformat.read(tmp_path / "work/n.ipynb", as_version=4).cells
        assert [cell.metadata.get("tags", []) for cell in cells] == [[], ["parameters"], ["injected-parameters"], []]
        assert printed(tmp_path / "work/n.ipynb") == "0.001 it's {lr} True\n"

    @pytest.mark.thorough
    def test_sets_parameters_first_where_no_cell_is_tagged(self, tmp_path: Path, engine: str) -> None:
        done = execute(write_notebook(tmp_path / "n.ipynb", "print(n, none)"), engine, params={"n": 3, "none": None})
        assert done.returncode == 0, done.stderr
        assert printed(tmp_path / "work/n.ipynb") == "3 None\n"

    @pytest.mark.thorough
    def test_runs_cells_where_the_run_runs_and_shows_what_they_print(self, tmp_path: Path, engine: str) -> None:
        notebook = write_notebook(
            tmp_path / "n.ipynb",
            "lr = 0.5",
            "import sys\nprint('loss', lr)\nprint('oh', file=sys.stderr)\nopen('made.txt', 'w').write('x')",
            parameters=0,
        )
        done = execute(notebook, engine)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "loss 0.5\n"
        assert "oh" in done.stderr
        assert (tmp_path / "work/made.txt").read_text() == "x"

    @pytest.mark.thorough
    def test_a_failing_cell_ends_it_with_one_sentence_and_the_notebook_is_kept(
        self, tmp_path: Path, engine: str
    ) -> None:
        notebook = write_notebook(tmp_path / "n.ipynb", "print('before')", "1 / 0", "print('after')")
        done = execute(notebook, engine)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == "n.ipynb: cell In [2] failed: ZeroDivisionError: division by zero"
        assert printed(tmp_path / "work/n.ipynb") == "before\n"

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


class TestRefusals:
    def test_a_notebook_is_never_overwritten_with_its_result(self, tmp_path: Path) -> None:
        notebook = write_notebook(tmp_path / "n.ipynb", "print(1)")
        before = notebook.read_bytes()
        done = subprocess.run([*notebook_argv("n.ipynb")[:-1], "n.ipynb"], cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, notebook.read_bytes()) == (2, before)
        assert "n.ipynb is both the notebook and its output" in done.stderr

    def test_a_missing_notebook(self, tmp_path: Path) -> None:
        done = execute(tmp_path / "nothing.ipynb")
        assert done.returncode == 2
        assert "no such file" in done.stderr

    @pytest.mark.parametrize("text", ["", "{}", "print(1)", '{"cells": 3, "nbformat": 4, "metadata": {}}'])
    def test_a_file_that_is_no_notebook(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "n.ipynb").write_text(text)
        done = execute(tmp_path / "n.ipynb")
        assert done.returncode == 2, done.stderr
        assert "is not a notebook" in done.stderr

    def test_a_name_that_is_no_variable(self, tmp_path: Path) -> None:
        done = execute(write_notebook(tmp_path / "n.ipynb", "print(1)"), params={"a-b": 1})
        assert done.returncode == 2
        assert "'a-b' is not a valid variable name" in done.stderr

    def test_a_language_without_a_kernel(self, tmp_path: Path) -> None:
        done = execute(write_notebook(tmp_path / "n.ipynb", "print(1)", language="julia"))
        assert done.returncode == 3
        assert "needs the julia kernel 'none-such', which is not installed" in done.stderr

    @pytest.mark.parametrize("missing", ["nbclient", "nbformat", "jupyter_client"])
    def test_a_missing_package_is_named_with_what_installs_it(self, tmp_path: Path, missing: str) -> None:
        done = execute(write_notebook(tmp_path / "n.ipynb", "print(1)"), code=WITHOUT.format(missing))
        assert done.returncode == 3
        assert f"notebooks need {missing}" in done.stderr
        assert "pip install 'fairmile[notebooks]'" in done.stderr
        assert "Traceback" not in done.stderr

    @pytest.mark.thorough
    def test_a_kernel_name_that_is_not_here_is_replaced_by_this_python(self, tmp_path: Path) -> None:
        notebook = write_notebook(tmp_path / "n.ipynb", "print(1)")
        notebook.write_text(notebook.read_text().replace('"name": "python3"', '"name": "my-conda-env"'))
        assert execute(notebook).returncode == 0


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
    def test_parameters_too_long_for_a_variable_come_from_the_record(self, runs: Runs, tmp_path: Path) -> None:
        notebook = write_notebook(tmp_path / "n.ipynb", "print(len(text))")
        run = runs.run(notebook_argv(notebook), params={"text": "x" * 200_000})
        assert run.state == RunState.DONE, runs.output(run.id)
        assert b"200000" in runs.output(run.id)

    @pytest.mark.thorough
    def test_a_failing_cell_fails_the_run(self, runs: Runs, tmp_path: Path) -> None:
        run = runs.run(notebook_argv(write_notebook(tmp_path / "n.ipynb", "1 / 0")), outputs=("n-executed.ipynb",))
        assert run.state == RunState.FAILED
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
