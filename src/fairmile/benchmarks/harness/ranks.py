"""Which of the processes of a run this one is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Ranks:
    """The place of a process among all of a run."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def nodes(self) -> int:
        return -(-self.size // self.local_size)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Ranks:
        """Return what torchrun, srun or mpirun say; none of them: one process."""
        for rank, size, local_rank, per_node in _LAUNCHERS:
            if rank in environ and size in environ:
                many = int(environ[size])
                return cls(int(environ[rank]), many, int(environ.get(local_rank, 0)), _local(environ, per_node, many))
        return cls()


def _local(environ: Mapping[str, str], name: str, many: int) -> int:
    """Return how many processes a node has, of a variable that counts them, as 4 or 4(x2), or the nodes."""
    number = re.match(r"\d+", environ.get(name, ""))
    if number is None:
        return many
    count = max(int(number[0]), 1)
    return -(-many // count) if name.endswith("NNODES") else count


# Of Slurm what only srun sets: the script of a job has a SLURM_PROCID and SLURM_NTASKS too, but is one process.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_NNODES"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)
