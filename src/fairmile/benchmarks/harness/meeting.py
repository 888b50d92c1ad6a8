"""Where the processes of a run meet: the group of torch, whichever launcher started them."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fairmile.base.errors import SystemFailure, UsageError
from fairmile.benchmarks.harness.ranks import Ranks

_JOBS = ("FAIRMILE_JOB_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID")
_NODES = ("FAIRMILE_NODES", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "LSB_HOSTS")


_torch: Any = torch.distributed  # whose names for stores its types do not tell
_STARTS = itertools.count()  # of groups in this process; all ranks count alike


def join_group(ranks: Ranks, device: torch.device, environ: Mapping[str, str]) -> bool:
    """Join the other ranks; False when a group was there already, which is then not ours to leave."""
    if torch.distributed.is_initialized():
        return False
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        # A later group must not find where the ranks of an earlier one could be reached.
        store = _torch.PrefixStore(f"fairmile/{next(_STARTS)}", _store(ranks, _url(ranks, environ)))
        torch.distributed.init_process_group(backend, store=store, rank=ranks.rank, world_size=ranks.size)
        if backend == "nccl":  # which only meets the others when it is used first
            torch.distributed.all_reduce(torch.zeros(1, device=device))
    except (RuntimeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        if "Duplicate GPU" in str(error):
            raise UsageError(
                f"rank {ranks.rank} of {ranks.size} does not have its own GPU",
                hint="start as many ranks on a node as it has GPUs, or use device=cpu",
            ) from error
        reasons = str(error).strip().splitlines() or [type(error).__name__]
        raise SystemFailure(
            f"rank {ranks.rank} of {ranks.size} could not join the others over {backend}: {reasons[0]}",
            hint="check that MASTER_ADDR and MASTER_PORT name the node of the first rank and a free port there",
        ) from error
    return True


@functools.cache  # it answers on its port for as long as the process lives
def _store(ranks: Ranks, url: str) -> Any:
    if not url:
        return _torch.HashStore()
    return next(_torch.rendezvous(url, ranks.rank, ranks.size))[0]


def _url(ranks: Ranks, environ: Mapping[str, str]) -> str:
    """Return where the ranks meet, in the words of torch; one rank alone meets nobody."""
    if ranks.size == 1:
        return ""
    if "MASTER_ADDR" in environ and "MASTER_PORT" in environ:
        return "env://"
    address, port = meeting_point(ranks, environ)
    return f"tcp://{address}:{port}"


def leave_group() -> None:
    """Leave the other ranks."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def meeting_point(ranks: Ranks, environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the address and port of the first rank, from what the scheduler and the launcher say."""
    return environ.get("MASTER_ADDR") or _first_node(ranks, environ), _port(environ)


def _first_node(ranks: Ranks, environ: Mapping[str, str]) -> str:
    if ranks.local_size >= ranks.size:
        return "127.0.0.1"
    for name in _NODES:
        if environ.get(name):
            return first_of_nodes(environ[name])
    file = environ.get("PBS_NODEFILE", "")
    if file and Path(file).is_file():
        return Path(file).read_text().split()[0]
    raise UsageError(
        f"MASTER_ADDR is not set, so {ranks.size} ranks cannot find the first one",
        hint="set MASTER_ADDR to the node of the first rank, and MASTER_PORT to a free port there",
    )


def first_of_nodes(text: str) -> str:
    """Return the first node of a list as Slurm or others write it: `gpu[03-07,9],login1` is gpu03."""
    word = re.match(r"[^\s,\[]+(\[[^\]]*\][^\s,\[]*)?", text.strip())
    if word is None:
        raise UsageError(f"{text!r} is not a list of nodes")
    return re.sub(r"\[([^\],\-]+)[^\]]*\]", r"\1", word[0])


def _port(environ: Mapping[str, str]) -> int:
    if environ.get("MASTER_PORT"):
        return int(environ["MASTER_PORT"])
    named = next((environ[name] for name in _JOBS if environ.get(name)), "")
    digits = re.sub(r"\D", "", named)[-9:]
    # Without a job, all ranks of a launcher on one node have the same parent.
    return 10000 + int(digits or os.getppid()) % 20000
