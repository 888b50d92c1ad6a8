"""Notebooks as programs of runs: parameters go in, cells are executed, the executed notebook is kept as an output.

    python -m fairmile.sweeps.notebooks NOTEBOOK OUT

The parameters are those of the run that this process is part of (FAIRMILE_PARAMS). As papermill has it, they are set
in a cell of their own after the one tagged `parameters`, or before all others where none is. What cells print goes to
the output of the run. A cell with `time_s` in its metadata is interrupted after that many seconds.

nbclient executes. Papermill does where a notebook in another language than Python gets parameters: importing it takes
as long as importing everything else.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import (
    FairmileError,
    MissingExtra,
    NotFound,
    RunFailed,
    SystemFailure,
    Unsupported,
    UsageError,
)
from fairmile.base.files import write_atomic
from fairmile.base.lazy import lazy

if TYPE_CHECKING:
    from fairmile.runs.record.layout import read_record
    from fairmile.runs.record.values import Value
else:
    read_record = lazy("fairmile.runs.record.layout:read_record")

_LONGEST_REASON = 300
_WRITE_EVERY_S = 10  # a job may be killed at its time limit


def notebook_argv(notebook: str | Path, python: str = sys.executable) -> tuple[str, ...]:
    """Return the command that executes a notebook into NAME-executed.ipynb in the folder it is started in."""
    return python, "-m", "fairmile.sweeps.notebooks", str(notebook), f"{Path(notebook).stem}-executed.ipynb"


def execute_notebook(notebook: Path, out: Path, params: Mapping[str, Value]) -> None:
    """Execute a notebook with parameters and write it to `out`, also when a cell fails, which raises RunFailed."""
    for name in params:
        if not name.isidentifier():
            raise UsageError(
                f"{name!r} is not a valid variable name in a notebook", hint="use letters, digits and underscores"
            )
    if not notebook.is_file():
        raise NotFound(f"no such file: {notebook}")
    if out.exists() and os.path.samefile(notebook, out):
        raise UsageError(f"{out} is both the notebook and its output", hint="run it in another folder")
    try:
        import nbclient.exceptions
        import nbformat
        from jupyter_client.kernelspec import NoSuchKernel
    except ImportError as error:
        raise MissingExtra(f"notebooks need {error.name}", "notebooks") from error
    document = _read(notebook, nbformat)
    kernel = _kernel(document, notebook)
    try:
        if params and _language(document) != "python":
            _by_papermill(document, out, params, kernel)
        else:
            _by_nbclient(document, out, params, kernel, nbformat)
    except NoSuchKernel as error:
        raise MissingExtra(f"{notebook} needs the kernel {error.name!r}", "notebooks") from error
    except nbclient.exceptions.DeadKernelError as error:
        raise RunFailed(
            f"{notebook}: the kernel died", hint="it may have run out of memory; the output up to there is kept"
        ) from error


def _read(notebook: Path, nbformat: Any) -> Any:
    try:
        return nbformat.read(notebook, as_version=4)
    except OSError as error:
        raise SystemFailure(f"cannot read {notebook}: {error.strerror}") from error
    except (ValueError, TypeError, AttributeError, KeyError, nbformat.ValidationError) as error:
        raise UsageError(f"{notebook} is not a notebook: {' '.join(str(error).split())[:_LONGEST_REASON]}") from error


def _kernel(document: Any, notebook: Path) -> str:
    """Return the kernel that a notebook names, or this Python's where it names one that is not here."""
    from jupyter_client.kernelspec import KernelSpecManager

    name, language = str(document.metadata.get("kernelspec", {}).get("name", "")), _language(document)
    if "kernelspec" not in document.metadata:  # as one that a program wrote
        document.metadata["kernelspec"] = {"name": name or "python3", "language": language, "display_name": language}
    installed = KernelSpecManager().find_kernel_specs()
    if name in installed:
        return name
    if language != "python":
        raise Unsupported(
            f"{notebook} needs the {language} kernel {name!r}, which is not installed",
            hint=f"installed: {', '.join(sorted(installed)) or 'none'}",
        )
    return "python3"


def _language(document: Any) -> str:
    named = document.metadata.get("kernelspec", {}).get("language")
    return str(named or document.metadata.get("language_info", {}).get("name", "python"))


def _by_papermill(document: Any, out: Path, params: Mapping[str, Value], kernel: str) -> None:
    try:
        from papermill import PapermillExecutionError
        from papermill import execute_notebook as execute
    except ImportError as error:
        raise MissingExtra(f"parameters of a notebook in {_language(document)} need papermill", "notebooks") from error
    try:
        execute(
            document,
            str(out).replace("{", "{{").replace("}", "}}"),  # papermill fills parameters into paths
            parameters=dict(params),
            kernel_name=kernel,
            progress_bar=False,
            timeout_func=_time_limit,
            interrupt_on_timeout=True,
            stdout_file=sys.stdout,
            stderr_file=sys.stderr,
        )
    except PapermillExecutionError as error:
        raise _cell_failed(out, error.exec_count, error.ename, error.evalue) from error


def _by_nbclient(document: Any, out: Path, params: Mapping[str, Value], kernel: str, nbformat: Any) -> None:
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    class Client(NotebookClient):
        running: Any = None

        def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
            self.running = cell
            if msg["msg_type"] == "stream":
                stream = sys.stderr if msg["content"]["name"] == "stderr" else sys.stdout
                stream.write(msg["content"]["text"])
                stream.flush()
            return super().process_message(msg, cell, cell_index)

    written = time.monotonic()

    def write(**_: Any) -> None:
        nonlocal written
        if time.monotonic() - written >= _WRITE_EVERY_S:
            write_atomic(out, nbformat.writes(document) + "\n")
            written = time.monotonic()

    if params:
        _inject(document, params, nbformat)
    client = Client(
        document, kernel_name=kernel, timeout_func=_time_limit, interrupt_on_timeout=True, on_cell_executed=write
    )
    try:
        client.execute()
    except CellExecutionError as error:
        if error.ename == "SystemExit" and error.evalue in ("", "0"):
            return
        raise _cell_failed(out, client.running.execution_count, error.ename, error.evalue) from error
    finally:
        write_atomic(out, nbformat.writes(document) + "\n")


def _time_limit(cell: Any) -> int | None:
    limit = cell.metadata.get("time_s")
    return limit if isinstance(limit, int) and limit > 0 else None


def _inject(document: Any, params: Mapping[str, Value], nbformat: Any) -> None:
    lines = ["# Parameters", *(f"{name} = {_literal(value)}" for name, value in params.items())]
    cell = nbformat.v4.new_code_cell("\n".join(lines), metadata={"tags": ["injected-parameters"]})

    def tagged(tag: str) -> list[int]:
        return [at for at, each in enumerate(document.cells) if tag in each.metadata.get("tags", [])]

    old, defaults = tagged("injected-parameters"), tagged("parameters")
    if old:
        document.cells[old[0]] = cell
    else:
        document.cells.insert(defaults[0] + 1 if defaults else 0, cell)


def _literal(value: Value) -> str:
    return repr(value) if not isinstance(value, float) or value - value == 0 else f"float({str(value)!r})"


def _cell_failed(notebook: Path, count: int | None, kind: str, message: str) -> RunFailed:
    why = " ".join(f"{kind}: {message}".split())
    if len(why) > _LONGEST_REASON:
        why = why[:_LONGEST_REASON] + "…"
    return RunFailed(f"{notebook.name}: cell In [{count or '?'}] failed: {why}")


def _run_params(environ: Mapping[str, str]) -> dict[str, Value]:
    """Return the parameters of the run that this process is part of."""
    text = environ.get("FAIRMILE_PARAMS")
    if text:
        try:
            params = json.loads(text)
        except ValueError as error:
            raise UsageError(f"FAIRMILE_PARAMS is not JSON: {error}") from error
        if not isinstance(params, dict):
            raise UsageError("FAIRMILE_PARAMS is not a JSON object")
        return params
    folder = environ.get("FAIRMILE_RUN")
    if folder:  # too many for a variable: the record has them
        try:
            return dict(read_record(Path(folder)).spec.params)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SystemFailure(f"{folder} has no record of this run, so its parameters are unknown") from error
    return {}


def main(arguments: Sequence[str]) -> int:
    """Execute a notebook as the program of a run and return the exit code."""
    try:
        if len(arguments) != 2:
            raise UsageError("expected two arguments: NOTEBOOK OUT")
        execute_notebook(Path(arguments[0]), Path(arguments[1]), _run_params(os.environ))
    except FairmileError as error:
        sys.stdout.flush()
        sys.stderr.write(f"{error}\n" + (f"  {error.hint}\n" if error.hint else ""))
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
