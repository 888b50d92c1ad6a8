"""Which of the processes of a run this one is."""

from __future__ import annotations

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
        return max(self.size // max(self.local_size, 1), 1)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Ranks:
        """Return what torchrun, srun or mpirun say; none of them: one process."""
        for rank, size, local_rank, local_size in _LAUNCHERS:
            if rank in environ and size in environ:
                many = int(environ[size])
                tasks = environ.get(local_size, "")
                per_node = int(tasks) if tasks.isdecimal() else many
                return cls(int(environ[rank]), many, int(environ.get(local_rank, 0)), per_node)
        return cls()


_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "FAIRMILE_LOCAL_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
