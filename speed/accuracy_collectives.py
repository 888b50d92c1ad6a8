"""How far the models of collectives are off: against public NCCL tables, and against gloo and MPI measured here.

    python speed/accuracy_collectives.py [--data FOLDER] [--skip-here] [--summary]

Tables: the laws are made from nine sizes (1 MiB to 1 GiB, each about twice the one before) of some numbers of ranks and
predict every other row. Here: laws and tables are made from every second size and predict the others. Every group is
printed, and without --summary every row too.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fairmile.base.errors import FairmileError
from fairmile.base.units import format_duration, format_size
from fairmile.costs.collectives import nccl
from fairmile.costs.collectives.fit import CollectiveFit, fit_collective
from fairmile.costs.collectives.formulas import bus_factor
from fairmile.costs.collectives.measure import measure_collectives
from fairmile.costs.collectives.rings import cube_mesh_rings
from fairmile.costs.collectives.tables import MeasuredPoint

DATA = Path(os.environ.get("FAIRMILE_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
PUBLISHED = {"v100": {2: 23, 3: 45, 4: 85, 5: 37, 6: 46, 7: 87, 8: 135}}  # bus GB/s of long messages


def errors_line(name: str, errors: Sequence[float]) -> None:
    """Print mean, median, 90th percentile and worst of relative errors."""
    ordered = sorted(abs(error) for error in errors)
    mean, at = sum(ordered) / len(ordered), len(ordered)
    print(
        f"{name:58}{len(ordered):6}{mean:9.2%}{ordered[at // 2]:9.2%}{ordered[min(at - 1, int(0.9 * at))]:9.2%}"
        f"{ordered[-1]:9.2%}"
    )


def compare(
    name: str, points: Sequence[MeasuredPoint], model: Callable[[float, int], float], show_rows: bool
) -> list[float]:
    """Print how far a model is off for these points."""
    errors = []
    for point in points:
        told = model(point.size_bytes, point.ranks)
        errors.append(told / point.time_s - 1)
        if show_rows:
            print(
                f"    {point.collective:15}{point.ranks:4} ranks{format_size(int(point.size_bytes)):>12}"
                f"{format_duration(point.time_s):>11} measured{format_duration(told):>11} model{errors[-1]:+9.2%}"
            )
    errors_line(name, errors)
    return errors


def read_tables(file: Path) -> dict[str, dict[int, list[MeasuredPoint]]]:
    """Return GPU → ranks → points."""
    found: dict[str, dict[int, list[MeasuredPoint]]] = {}
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    for row in csv.DictReader(lines):
        ranks = int(row["nranks"])
        point = MeasuredPoint("all_reduce", float(row["size_bytes"]), ranks, float(row["time_ns"]) * 1e-9)
        found.setdefault(row["gpu"], {}).setdefault(ranks, []).append(point)
    return found


def nine(points: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    """Return nine sizes, each about twice the one before."""
    return [points[min(len(points) - 1, 2**power - 1)] for power in range(9)]


def public_tables(file: Path, show_rows: bool) -> None:
    """Compare with the all-reduce tables of A100 behind NVSwitch and of V100 with direct links."""
    tables = read_tables(file)
    print(f"\nNCCL all-reduce, one node ({file.name})")
    print(f"{'':58}{'rows':>6}{'mean':>9}{'median':>9}{'90 %':>9}{'worst':>9}")
    for gpu, groups in tables.items():
        rings = cube_mesh_rings if gpu == "v100" else None
        choices = [tuple(groups)] + [tuple(each for each in groups if each != out) for out in groups]
        for chosen in choices:
            used = [point for ranks in chosen for point in nine(groups[ranks])]
            fit = fit_collective("all_reduce", used, rings=rings)
            taught = ",".join(map(str, chosen))
            for ranks, points in groups.items():
                if ranks in chosen and chosen != tuple(groups):
                    continue
                held_out = [point for point in points if point not in used]
                kind = "other sizes" if ranks in chosen else "ranks never seen"
                compare(f"{gpu}, from 2..8 = {taught}: {ranks} ranks, {kind}", held_out, fit.time_s, show_rows)
            if chosen == tuple(groups):
                stated(gpu, fit)
        own_model(gpu, groups, show_rows)


def stated(gpu: str, fit: CollectiveFit) -> None:
    """Print bus bandwidths beside those that are stated for ranks which the table may lack."""
    for ranks in range(2, 9):
        bus = bus_factor("all_reduce", ranks) / fit.time_s(1e9, ranks)
        known = PUBLISHED.get(gpu, {}).get(ranks)
        beside = f", stated {known}: {bus / known - 1:+.1%}" if known else ""
        print(
            f"    {gpu} {ranks} ranks, 1 GB: {bus:6.1f} GB/s on the bus{beside}; error bar {fit.error_bar(ranks):.1%}"
        )


def own_model(gpu: str, groups: dict[int, list[MeasuredPoint]], show_rows: bool) -> None:
    """Compare with NCCL's own model, which is made to choose and has seen nothing of these tables but one bandwidth."""
    for ranks, points in groups.items():
        if gpu == "v100":
            rings = cube_mesh_rings(ranks)
            fabric = nccl.Fabric("volta", ranks, channels=max(1, int(2 * rings)), bus_gb_per_s=22.5 * rings)
        else:
            fabric = nccl.Fabric("ampere", ranks, channels=24, bus_gb_per_s=231.0)

        def model(size: float, _: int, fabric: nccl.Fabric = fabric) -> float:
            return nccl.choose("all_reduce", size, fabric).time_s

        compare(f"{gpu}, NCCL's own model: {ranks} ranks", points, model, show_rows)


def here(backend: str, ranks: Sequence[int], show_rows: bool) -> None:
    """Measure on this machine; learn from every second size and predict the others."""
    sizes = [int(4 ** (power / 2)) * 4 for power in range(4, 21)]  # an odd number: both ends are learnt from
    try:
        found = measure_collectives(backend, ranks, sizes, seconds=0.2)
    except FairmileError as error:
        print(f"\n{backend}: not measured: {error}")
        return
    print(f"\n{found.library}, {os.cpu_count()} cores here, median of repeats (of the quickest repeat in brackets)")
    print(f"{'':58}{'rows':>6}{'mean':>9}{'median':>9}{'90 %':>9}{'worst':>9}")
    everything: list[float] = []
    for statistic in ("time_s", "best_s"):
        points = [
            MeasuredPoint(row["collective"], float(row["size_bytes"]), row["ranks"], row[statistic])
            for row in found.rows
        ]
        everything = []
        for name in dict.fromkeys(point.collective for point in points):
            mine = [point for point in points if point.collective == name]
            order = {count: sorted({p.size_bytes for p in mine if p.ranks == count}) for count in ranks}
            used = [p for p in mine if order[p.ranks].index(p.size_bytes) % 2 == 0]
            fit = fit_collective(name, used)
            by_formula = fit.algorithm.algorithm if fit.algorithm else "none"
            for count in ranks:
                rest = [p for p in mine if p.ranks == count and p not in used]
                label = f"{'(' if statistic == 'best_s' else ''}{name}, {count} ranks, {by_formula} fits best"
                everything += compare(label + (")" if statistic == "best_s" else ""), rest, fit.time_s, show_rows)
        errors_line(f"all of {backend}, {statistic}", everything)


def main() -> int:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--skip-here", action="store_true")
    parser.add_argument("--summary", action="store_true", help="print every group, not every row")
    arguments = parser.parse_args()
    file = arguments.data / "perf" / "nccl_allreduce.csv"
    if file.is_file():
        public_tables(file, not arguments.summary)
    else:
        print(f"the public tables are not in {arguments.data}", file=sys.stderr)
    if not arguments.skip_here:
        here("gloo", (2, 4), not arguments.summary)
        here("mpi", (2, 4), not arguments.summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
