"""The runs of a workspace, as executors need them: launched, brought up to date, ended, and kept."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fairmile.base.errors import Unsupported, UsageError
from fairmile.base.files import write_failure
from fairmile.base.lazy import lazy
from fairmile.runs.execute.cancellation import cancel_file
from fairmile.runs.execute.executor import Launch, PreparedRun
from fairmile.runs.execute.preparation import Preparation
from fairmile.runs.execute.processes import end_run, is_here, wait_until
from fairmile.runs.execute.program import Ending
from fairmile.runs.execute.recorder import finish
from fairmile.runs.record.commands import start_command
from fairmile.runs.record.ledger import Ledger
from fairmile.runs.record.record import RunRecord
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.values import COUPLED, is_job_part, is_onnx, split_coupled
from fairmile.runs.reuse import keep_inputs, keep_outputs
from fairmile.runs.services import Services

if TYPE_CHECKING:
    from fairmile.jobs.queue import JobStatus
    from fairmile.runs.execute.carrier import collect
else:
    collect = lazy("fairmile.runs.execute.carrier:collect")


class WorkspaceRuns:
    """What executors ask of the runs in a ledger."""

    def __init__(
        self, ledger: Ledger, preparation: Preparation, services: Services, environ: Mapping[str, str]
    ) -> None:
        self.ledger, self.preparation = ledger, preparation
        self.jobs, self.envs = services.jobs, services.envs
        self._store, self._environ = services.store, environ

    def launch(self, work: PreparedRun) -> Launch:
        """Materialize what a run works on, and return how its program is started; one that has begun before goes on."""
        spec, record = work.spec, work.record
        if record.attempts:
            return Launch(record.argv or spec.argv, self._resuming(work), {})
        values = self.preparation.materialize(record, work.folder, code=work.from_snapshot)
        argv = start_command(spec, values)
        env = {**self._environ, **spec.env}
        if spec.environment:
            argv, added = self._inside(record, argv)
            env = {**self._environ, **added, **spec.env}
        if record.container:  # where its log goes lies beside the folder that it works in
            env["FAIRMILE_BIND"] = str(work.folder)
        if spec.params.get("stage"):  # it wants its data where they are read fastest
            env["FAIRMILE_POOLS"] = os.pathsep.join(str(pool.folder) for pool in self._store().pools.by_rank())
        return Launch(argv, env, spec.env)

    def _inside(self, record: RunRecord, argv: tuple[str, ...]) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """Return what starts a command in the environment of a run, and what that adds to the variables."""
        shell, digest = self.envs().shell, record.captured.environment.digest
        solver, model = split_coupled(argv)
        if not record.spec.coupled or is_job_part(model):
            command = shell(digest, argv)
            return tuple(command.argv), command.env
        if record.container:
            raise Unsupported("the programs of a coupled run share memory, which two containers do not")
        command = shell(digest, solver)
        words = model if is_onnx(model) else shell(digest, model).argv
        return (*command.argv, COUPLED, *words), command.env

    def _resuming(self, work: PreparedRun) -> dict[str, str]:
        env = {**self._environ, "FAIRMILE_RESUME": "1"}
        if work.record.container:
            env["FAIRMILE_BIND"] = str(work.folder)
        name = work.record.captured.environment.digest if work.spec.environment else ""
        return env | dict(self.envs().shell(name).env) if name else env

    def conclude(self, run: Run) -> None:
        """Keep what a run that succeeded made and read, and let it tell what the next one of its name will take."""
        if run.state is not RunState.DONE:
            return
        keep_outputs(self._store, run)
        keep_inputs(self._store, run)
        self.ledger.remember(run)

    def collect(self, reference: str, arrays: dict[str, JobStatus | None] | None = None) -> Run:
        """Return a run; one that a job carries, or whose recorder is gone, is brought up to date.

        `arrays` keeps, from one call to the next, where job arrays stand, each of which carries many runs.
        """
        ledger = self.ledger
        run = ledger.get(reference)
        if run.job is not None and run.result is None:
            return collect(run, self.jobs(), arrays if arrays is not None else {})
        state = ledger.state_of(run)
        is_own = not run.packed and run.folder.parent == ledger.root
        if state is RunState.INTERRUPTED and run.result is None and is_own:
            return self._settled(run)
        if state is RunState.RUNNING and ledger.is_orphaned(run):
            return run.in_state(state, "the recorder was killed, but the program is still running")
        return run if state is run.state else run.in_state(state)

    def end(self, id: str) -> None:
        """End a run that some process of this machine executes, politely first."""
        run = self.collect(id)
        if run.state.is_end:
            return
        if run.record.inside:
            raise UsageError(f"run {run.id} was recorded inside another program", hint="end that program")
        if run.trial is not None and not self.ledger.is_orphaned(run) and self._end_trial(run):
            return
        if not end_run(run.folder, run.record.attempts[-1].holder):
            self._settled(run, RunState.CANCELLED)

    def _end_trial(self, run: Run) -> bool:
        """Have the worker of a trial end it, and go on with others; False where none executes it, as after a resume."""
        wish = cancel_file(run.folder)
        try:
            wish.touch()
        except OSError as error:
            raise write_failure(str(run.folder), error) from error
        is_seen = wait_until(lambda: not wish.exists())
        if not is_seen and is_here(run.record.attempts[-1].holder):
            wish.unlink(missing_ok=True)
            return False
        wait_until(lambda: self.collect(run.id).state.is_end)
        return True

    def _settled(self, run: Run, state: RunState = RunState.INTERRUPTED) -> Run:
        """Write the end of a run whose recorder was killed, from all that was written until then."""
        record = run.record.copy()
        started = record.attempts[-1].started
        last = max((file.stat().st_mtime for file in run.folder.glob("*.*")), default=started)
        reason = "the recorder was killed, or the machine lost power"
        if state is RunState.CANCELLED:
            reason = "cancelled after the recorder was killed"
        ending = Ending(str(state), reason=reason)
        finish(run.folder, record, ending, max(last - started, 0.0), {"watch": "interrupted"})
        return Run(record, run.folder)
