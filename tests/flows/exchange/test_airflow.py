"""The Airflow DAG of a flow: tasks with complete commands in the same order."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fairmile.base.errors import UsageError
from fairmile.flows.flows import Flows

AIRFLOW = "apache-airflow==3.3.2"
Write = Callable[[str], Path]
FLOW = """\
params: {word: "{{ ds }}"}
steps:
  make: {shell: 'echo "{n} {word}" > {n}.txt', over: {n: 1..2}, outputs: '{n}.txt'}
  it's all: {shell: 'cat *.txt > all.out', inputs: '*.txt', outputs: all.out, retries: 2, backoff: 1m, timeout: 1h}
  break: {shell: 'echo $LEVEL > level.out; exit 99 # not.sh', env: {LEVEL: "it's 3 {{ds}}"}, after: it's all}
  never: {command: touch never.out, after: break}
  mend: {command: touch mended.out, after: break, when: failed}
  tell: {command: sh tell.sh, after: [break, mend], when: always}
"""
# Reads the file as a scheduler does, and runs the DAG in this process.
JUDGE = """\
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
assert not bag.import_errors, bag.import_errors
dag = bag.dags["flow"]
run = dag.test()
states = {each.task_id: str(each.state) for each in run.get_task_instances()}
edges = {task.task_id: sorted(task.upstream_task_ids) for task in dag.tasks}
open(sys.argv[2], "w").write(json.dumps({"states": states, "edges": edges, "state": str(run.state)}))
"""


def test_each_step_is_a_task_with_its_command_and_what_comes_before_it(flows: Flows, write: Write) -> None:
    Path("tell.sh").touch()
    text = flows.export(write(FLOW), to="airflow").text
    compile(text, "dag.py", "exec")
    lines = text.splitlines()
    tasks = [line.partition("'")[2].partition("'")[0] for line in lines if "= Command(" in line]
    assert tasks == ["make_1", "make_2", "it_s_all", "break", "never", "mend", "tell"]
    (joined,) = (line for line in lines if line.startswith("    tasks['it_s_all'] = "))
    for part in (
        *('task_display_name="it\'s all"', "retries=2", "retry_delay=timedelta(seconds=60.0)"),
        *("retry_exponential_backoff=2", "execution_timeout=timedelta(seconds=3600.0)", "cwd=FOLDER"),
    ):
        assert part in joined
    assert "    tasks['it_s_all'] << [tasks['make_1'], tasks['make_2']]" in lines
    (mend,) = (line for line in lines if line.startswith("    tasks['mend'] = "))
    assert "trigger_rule='one_failed'" in mend


def test_a_step_of_a_system_goes_to_the_queue_of_that_name(flows: Flows, write: Write) -> None:
    file = write("steps: {a: {command: hostname, on: jureca/dc-gpu}}\n")
    assert "queue='jureca/dc-gpu'" in flows.export(file, to="airflow").text


@pytest.mark.parametrize("format", ["airflow", "snakemake"])
def test_a_condition_on_metrics_cannot_be_exported(format: str, flows: Flows, write: Write) -> None:
    file = write("steps:\n  a: {command: echo loss 1}\n  b: {command: echo, when: a.loss < 1}\n")
    with pytest.raises(UsageError, match=r"step 'b' runs when 'a\.loss < 1'"):
        flows.export(file, to=format)


@pytest.fixture(scope="session")
def airflow_python() -> Path:
    """The Python of an environment with Airflow, which is made once beside our own."""
    folder = Path(sys.prefix) / "airflow"
    python = folder / "bin" / "python"
    if not (folder / "bin" / "airflow").exists():
        uv = Path(sys.executable).with_name("uv")
        subprocess.run([uv, "venv", "-q", "--clear", "--python", sys.executable, folder], check=True)
        subprocess.run([uv, "pip", "install", "-q", "--python", python, AIRFLOW], check=True)
    return python


@pytest.fixture
def airflow_environ(airflow_python: Path, tmp_path: Path) -> dict[str, str]:
    """Variables by which Airflow has a home of its own, with the tables that are made once beside its environment."""
    kept, home = Path(sys.prefix) / "airflow" / "home", tmp_path / "airflow"
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environ |= {"AIRFLOW__CORE__LOAD_EXAMPLES": "False", "HOME": str(tmp_path)}
    if not kept.exists():
        made = tmp_path / "made"
        making = [airflow_python, "-c", "from airflow.utils.db import initdb; initdb()"]
        subprocess.run(making, env=environ | {"AIRFLOW_HOME": str(made)}, capture_output=True, check=True)
        shutil.copytree(made, partial := kept.with_name(f"home.{os.getpid()}"))
        partial.rename(kept)
    home.mkdir()
    shutil.copy(kept / "airflow.db", home)
    return environ | {"AIRFLOW_HOME": str(home)}


@pytest.mark.thorough
def test_airflow_reads_and_runs_it(
    flows: Flows, write: Write, airflow_python: Path, airflow_environ: dict[str, str]
) -> None:
    Path("tell.sh").write_text("echo told > told.out")
    Path("dags").mkdir()
    Path("dags/flow.py").write_text(flows.export(write(FLOW), to="airflow").text)
    environ = airflow_environ | {"AIRFLOW__CORE__DAGS_FOLDER": os.path.abspath("dags")}
    done = subprocess.run(
        [airflow_python, "-c", JUDGE, "dags", "verdict.json"], env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    verdict = json.loads(Path("verdict.json").read_text())
    assert verdict["edges"] == {
        **{"make_1": [], "make_2": [], "it_s_all": ["make_1", "make_2"], "break": ["it_s_all"]},
        **{"never": ["break"], "mend": ["break"], "tell": ["break", "mend"]},
    }
    good = dict.fromkeys(("make_1", "make_2", "it_s_all", "mend", "tell"), "success")
    assert verdict["states"] == {**good, "break": "failed", "never": "upstream_failed"}
    assert Path("all.out").read_text() == "1 {{ ds }}\n2 {{ ds }}\n"
    assert Path("level.out").read_text() == "it's 3 {{ds}}\n"
    assert Path("mended.out").exists() and Path("told.out").exists() and not Path("never.out").exists()
