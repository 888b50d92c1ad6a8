"""The launchers that a job can name; `plain` starts its program as it is."""

from __future__ import annotations

from typing import Literal

Launch = Literal["torchrun", "srun", "mpirun", "mpiexec", "jsrun", "flux", "horovodrun", "deepspeed", "ray", "plain"]
