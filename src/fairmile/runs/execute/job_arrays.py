"""Job arrays whose tasks execute members of a batch, on systems that share our files and on remote ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import FairmileError
from fairmile.base.files import write_failure
from fairmile.jobs.spec import After, Resources
from fairmile.runs.execute.batches import ArrayState, Frozen, array_job, batch_folder
from fairmile.runs.execute.cancellation import cancel_name
from fairmile.runs.execute.remote_batches import RemoteBatches

if TYPE_CHECKING:  # only jobs in an environment need it
    from fairmile.envs.envs import Envs
    from fairmile.jobs.queue import Jobs


class Arrays:
    """The job arrays of one workspace; whoever submits one chooses its key, which never becomes two."""

    def __init__(self, root: Path, jobs: Jobs, envs: Callable[[], Envs]) -> None:
        self._jobs = jobs
        self._envs = envs
        self._remote = RemoteBatches(root, jobs)

    def submit(
        self,
        frozen: Frozen,
        worker: Sequence[str],
        count: int,
        key: str,
        *,
        at_once: int | None = None,
        resources: Mapping[str, Any] | None = None,
        after: tuple[After, ...] = (),
    ) -> ArrayState:
        """Submit a job array, so many tasks of which run together, and which begins `after` other jobs.

        `worker` are the words that make Python the worker of a task, `resources` what a task needs where that is not
        what the specification says.
        """
        spec = frozen.spec
        needs = spec.resources if resources is None else Resources.model_validate(resources)
        if self.is_remote(spec.system):
            asked = {"count": count, "at_once": at_once, "resources": needs}
            return self._submit_remote(frozen, worker, key, after, **asked)
        words = (sys.executable, "-P", *worker)
        job = array_job(spec, words, count=count, at_once=at_once, resources=needs, key=key)
        if spec.environment:
            digest = self._envs().build(spec.environment).digest
            job = self._jobs.in_environment(job, self._envs(), digest, system=spec.system)
        return ArrayState.of(self._jobs.submit(job.model_copy(update={"after": after}), system=spec.system))

    def _submit_remote(
        self, frozen: Frozen, worker: Sequence[str], key: str, after: tuple[After, ...], **asked: Any
    ) -> ArrayState:
        job = self._remote.job(frozen, worker, key=key, **asked).model_copy(update={"after": after})
        try:
            return ArrayState.of(self._jobs.submit(job, system=frozen.spec.system))
        except FairmileError:
            if self._jobs.find(key) is None:  # else it may have arrived
                self._remote.forget(key)
            raise

    def get(self, key: str) -> ArrayState | None:
        """Return where the job array with a key stands; None where it was never submitted.

        The records of tasks that have ended elsewhere are here then.
        """
        job = self._jobs.find(key)
        return None if job is None else self._remote.state(key, job)

    def batch_of(self, key: str) -> Path | None:
        """Return the folder of the batch whose members a job array executes; None where it executes no batch."""
        job = self._jobs.spec_of(key)
        return self._remote.batch_of(key) or (batch_folder(job) if job is not None else None)

    def cancel(self, key: str) -> None:
        """End a job array, where there is one."""
        job = self.get(key)
        if job is not None and not job.is_over:
            self._jobs.cancel([job.job])

    def cancel_members(self, key: str, folder: Path, ids: Sequence[str]) -> None:
        """Have a job array end some of its members, or never begin them, and go on with the others."""
        names = [cancel_name(id, key) for id in ids]
        self._remote.touch(key, names)
        try:
            for name in names:
                (folder / name).touch()
        except OSError as error:
            raise write_failure(str(folder), error) from error

    def is_remote(self, system: str) -> bool:
        """Tell whether a system is reached over ssh, and sees no file of this machine."""
        return bool(self._jobs.machines[system].reach.host)

    def scheduler(self, system: str) -> str:
        """Return the dialect of a system's scheduler, such as `slurm`."""
        return self._jobs.machines[system].system.scheduler.dialect

    def limit_s(self, system: str, partition: str = "") -> float | None:
        """Return the longest time that a system gives a job; None where nobody knows."""
        return self._jobs.machines[system].limit_s(partition)
