"""Measures what a watch costs at 10 Hz, as share of one core, by source; each beside the bound of 1 %.

The sources that this machine lacks are measured on trees of files as other machines have them, GPUs excepted.

Run: python speed/watch.py [SECONDS]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fairmile.meter.sources import Source, Where, find_sources
from fairmile.meter.sources.amd import Amd
from fairmile.meter.sources.cray import Cray
from fairmile.meter.sources.host import Host
from fairmile.meter.sources.process import ProcessTree
from fairmile.meter.sources.rapl import Rapl
from fairmile.meter.watch import Watch

BOUND_PERCENT = 1.0


def measure(name: str, sources: Sequence[Source], seconds: float, file: Path | None = None) -> None:
    channels = sum(len(source.channels()) for source in sources)
    with Watch(sources, file, period_s=0.1) as watch:
        began = time.monotonic()
        time.sleep(seconds)
        percent = 100 * watch.cpu_s / (time.monotonic() - began)
    verdict = "" if percent <= BOUND_PERCENT else "  above the bound"
    print(f"{name:<44} {channels:3} channels {percent:6.3f} % of one core, {watch.skipped} skipped{verdict}")


def trees(root: Path) -> None:
    """Write the files of a node with two sockets, the counters of a Cray and eight AMD GPUs."""
    for number in range(4):
        _write(root / f"sys/class/powercap/intel-rapl:{number // 2}{':0' if number % 2 else ''}", {
            "name": "dram" if number % 2 else f"package-{number // 2}",
            "max_energy_range_uj": "262143328850",
            "energy_uj": "1000000",
        })  # fmt: skip
    names = ["power", "energy", "cpu_power", "cpu_energy", "memory_power", "memory_energy", "freshness"]
    names += [f"accel{number}_{what}" for number in range(4) for what in ("power", "energy")]
    _write(root / "sys/cray/pm_counters", dict.fromkeys(names, "245 W 1700000000000000 us"))
    for card in range(8):
        device = root / f"sys/class/drm/card{card}/device"
        _write(
            device, {"vendor": "0x1002", "gpu_busy_percent": "5", "mem_info_vram_used": "5", "mem_busy_percent": "5"}
        )
        monitor = ("power1_average", "energy1_input", "temp1_input", "freq1_input", "freq2_input")
        _write(device / "hwmon/hwmon1", dict.fromkeys(monitor, "1000000"))


def _write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trees(folder)
        measure("nothing", [], seconds)
        measure("host", [Host(Where())], seconds)
        measure("process (one)", [ProcessTree(Where())], seconds)
        children = [subprocess.Popen(["sleep", "1000"]) for _ in range(32)]
        try:
            measure("process (33 in its tree)", [ProcessTree(Where())], seconds)
        finally:
            for child in children:
                child.kill()
                child.wait()
        measure("host and process, with the log", [Host(Where()), ProcessTree(Where())], seconds, folder / "log")
        measure("rapl (2 sockets with memory)", [Rapl(Where(folder))], seconds)
        measure("cray (node, parts, 4 accelerators)", [Cray(Where(folder))], seconds)
        measure("amd (8 GPUs)", [Amd(Where(folder))], seconds)
        found = find_sources(["nvidia"])
        if found.sources:
            measure("nvidia", found.sources, seconds)
        for sentence in found.missing.values():
            print(f"not measured: {sentence}")


if __name__ == "__main__":
    main()
