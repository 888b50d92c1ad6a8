"""An MPI program that times itself with the meter: rank 0 works longer, the other waits for it in MPI_Allreduce."""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

from fairmile.meter import flush, span

STEPS = 5
LONGER_S = 0.2


def main() -> None:
    """Take a few steps and leave the spans in the log of the run."""
    world = MPI.COMM_WORLD
    mine, all_ = np.ones(1024), np.empty(1024)
    world.Barrier()
    for step in range(STEPS):
        with span("step", n=step):
            with span("work"):
                if world.rank == 0:
                    world.recv(source=1)  # however busy the machine is, the other one is done first
                    time.sleep(LONGER_S)
                else:
                    world.send(step, dest=0)
            with span("MPI_Allreduce", bytes=mine.nbytes):
                world.Allreduce(mine, all_)
    flush()


if __name__ == "__main__":
    main()
