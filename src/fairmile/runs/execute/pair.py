"""Starts the two programs of a coupled run, and ends with the first: `pair SOLVER… : MODEL…`.

An ONNX file as the model is no program: the solver is told where it lies, and computes it. A model that begins with
an option is a part of the launcher's command, which starts both: `mpirun -n 3 SOLVER : -n 1 python model.py`.

This travels with the recorder. Both find the socket between them in FAIRMILE_COUPLE. The solver decides how the run
ends. The model then has a while to end by itself, since it may have learnt something that it still writes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from fairmile.base.onnx_library import find_onnx_library
from fairmile.meter import current, event
from fairmile.runs.record.values import is_job_part, is_onnx, split_coupled

TROUBLE = "coupled run"  # the event that tells of a program that did not start, or of a model that failed
_SOCKET, _COMPONENT, _LONGEST = "FAIRMILE_COUPLE", "FAIRMILE_COMPONENT", "FAIRMILE_COUPLE_END_S"
_RUNTIME, _FORWARDED, _MPI_JOB = "FAIRMILE_COUPLE_RUNTIME", "OMPI_MCA_mca_base_env_list", "mpi"
_LONGEST_S, _MOST_S, _GRACE_S = 300.0, 1_000_000.0, 10.0
_PASSED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def start(argv: Sequence[str]) -> int:
    """Run both programs and return the exit code of the solver; one that a signal ended ends this process by it."""
    solver_argv, model_argv = split_coupled(argv)
    if is_onnx(model_argv):
        library = find_onnx_library()
        found = {_RUNTIME: str(library)} if library is not None else {}
        return _become(solver_argv, found | os.environ | {_SOCKET: os.path.abspath(model_argv[0])})
    if is_job_part(model_argv):
        return _become(argv, _reach_all_nodes(argv) | os.environ | {_SOCKET: _MPI_JOB})
    longest_s = _longest_s()
    if longest_s is None:
        return 2
    for number in _PASSED:  # whoever sends one sends it to the whole group
        signal.signal(number, lambda *_: None)
    import shutil  # the recorder loads this module, and few runs are coupled
    import tempfile

    with tempfile.TemporaryDirectory(prefix="fairmile-couple-", ignore_cleanup_errors=True) as folder:
        shared = {_SOCKET: os.path.join(folder, "socket")}
        model = _begin(model_argv, shared | {_COMPONENT: "model"})
        if model is None:
            return 127
        try:
            solver = _begin(solver_argv, shared | {_COMPONENT: "solver"})
            code = 127 if solver is None else _wait(solver, model, folder)
        except BaseException:
            model.kill()
            raise
        if solver is None:
            model.kill()
            model.wait()
            return code
        shutil.rmtree(folder, ignore_errors=True)  # who still waits for ranks of the solver waits no longer
        _end(model, longest_s)
    if code < 0:
        with contextlib.suppress(OSError):  # nobody catches KILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _reach_all_nodes(argv: Sequence[str]) -> dict[str, str]:
    """Return what has Open MPI hand our variables to the other nodes, which other launchers do by themselves."""
    if "-x" in argv:  # which it takes only alone
        return {}
    own = {_SOCKET, *(name for name in os.environ if name.startswith("FAIRMILE_") and name != "FAIRMILE_METRICS_FD")}
    return {_FORWARDED: ";".join(sorted(own))}


def _become(argv: Sequence[str], variables: Mapping[str, str]) -> int:
    """Be the solver, which computes an ONNX file, or the launcher of both; return only where it cannot be started."""
    try:
        os.execvpe(argv[0], list(argv), variables)
    except OSError as error:
        _note(f"cannot start {argv[0]!r}: {error.strerror}")
        return 127


def _wait(solver: subprocess.Popen[bytes], model: subprocess.Popen[bytes], folder: str) -> int:
    """Wait for the solver, which waits for the model no longer than that lives: without it the folder goes."""

    import shutil

    def look() -> None:
        model.wait()
        shutil.rmtree(folder, ignore_errors=True)

    threading.Thread(target=look, daemon=True).start()
    return solver.wait()


def _begin(argv: Sequence[str], variables: dict[str, str]) -> subprocess.Popen[bytes] | None:
    # Both inherit where metrics go; what the environment says of a component is stronger than we are.
    try:
        return subprocess.Popen(argv, env=variables | os.environ | {_SOCKET: variables[_SOCKET]}, close_fds=False)
    except OSError as error:
        _note(f"cannot start {argv[0]!r}: {error.strerror}")
        return None


def _note(why: str) -> None:
    sys.stderr.write(f"fairmile: {why}\n")
    event(TROUBLE, reason=why)
    current().flush()


def _longest_s() -> float | None:
    """Return how long the model may go on after its solver; None if the variable states no time, which is noted."""
    text = os.environ.get(_LONGEST, "")
    with contextlib.suppress(ValueError):
        if 0 <= (longest_s := float(text or _LONGEST_S)) <= _MOST_S:
            return longest_s
    _note(f"{_LONGEST} is {text!r}: expected seconds, at most {_MOST_S:,.0f}")
    return None


def _end(model: subprocess.Popen[bytes], longest_s: float) -> None:
    """Wait until the model has ended, end it if it does not, and note what was wrong."""
    why = ""
    try:
        model.wait(longest_s)
    except subprocess.TimeoutExpired:
        why = f"the model still ran {longest_s:g} s after the solver had ended, and was ended"
        model.terminate()
        try:
            model.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            model.kill()
            model.wait()
    if not why and model.returncode:
        name = signal.Signals(-model.returncode).name if model.returncode < 0 else ""
        why = f"the model was ended by {name}" if name else f"the model ended with exit code {model.returncode}"
    if why:
        _note(why)


if __name__ == "__main__":
    sys.exit(start(sys.argv[1:]))
