"""What a training step frees serves the next one."""

from __future__ import annotations

import subprocess
import sys

STEPS = """
import resource
import numpy as np
from fairmile.benchmarks.harness.host_memory import reuse_freed_memory

{first}

def step():
    held = [np.ones(3 << 20, np.uint8) for _ in range(16)]
    del held

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(first):
    done = subprocess.run([sys.executable, "-c", STEPS.format(first=first)], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_steps_take_no_fresh_pages_once_freed_memory_is_reused():
    assert page_faults("reuse_freed_memory()") * 10 < page_faults("")
