"""Model files recognised by content: CPU time for each format, and for 10,000 files of all of them.

`python speed/models.py [FILES]`; the samples are those of the tests.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from fairmile.models.formats import recognise

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "tests" / "models" / "formats" / "data"
TARGET_S = 60.0


def cpu_s() -> float:
    """Return the CPU time of this process and of those that it waited for."""
    times = os.times()
    return times.user + times.system


def scanner_s() -> float:
    """Return the CPU time of the process that scans pickles, which is this one's only child."""
    total = 0.0
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def main(number: int) -> None:
    """Print the times of each sample and of many copies."""
    samples = [ROOT / "docs" / "examples" / "tides.onnx"]
    samples += sorted(each for each in SAMPLES.iterdir() if each.suffix != ".py" and each.name != "__pycache__")
    recognise(SAMPLES / "pipeline.pkl")  # starts the scanner
    print(f"{'file':<20} {'format':<20} {'CPU ms':>7}")
    for sample in samples:
        times = []
        for _ in range(20):
            start = time.process_time()
            described = recognise(sample)
            times.append((time.process_time() - start) * 1e3)
        print(f"{sample.name:<20} {described.format:<20} {statistics.median(times):>7.2f}")
    with tempfile.TemporaryDirectory() as folder:
        copies = []
        for index in range(number):
            sample = samples[index % len(samples)]
            copy = Path(folder) / f"{index}-{sample.name}"
            (shutil.copytree if sample.is_dir() else shutil.copy)(sample, copy)
            copies.append(copy)
        start, start_scanner = cpu_s(), scanner_s()
        for copy in copies:
            recognise(copy)
        spent = cpu_s() - start + scanner_s() - start_scanner
    print(
        f"{number:,} files: {spent:.1f} s CPU, {spent / number * 1e3:.2f} ms each (target: {TARGET_S:.0f} s for 10,000)"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
