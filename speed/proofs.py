"""How exactly the models of benchmarks come out in ONNX: `python speed/proofs.py [NAME…]`, a row for each.

Benchmarks that learn quickly are trained for one epoch, the others keep their first weights. *Function* is the largest
difference of source and file in float64, relative to the largest value; then how far the source and the file are from
float64 in their own precision. The exit code is 1 where a proof does not hold.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from fairmile.workspace import Workspace

TRAINED = ("sgemm", "mnist", "uno", "earthquake", "stemdl", "opencatalyst")
FIRST: dict[str, dict[str, Any]] = {"miniweather": {}, "cosmoflow": {"size": 16}, "cloudmask": {}, "deepcam": {}}


def proof_of(workspace: Workspace, name: str, folder: Path) -> dict[str, Any]:
    """Convert the model of a benchmark and return its proof."""
    how: dict[str, Any] = {"params": FIRST.get(name, {})}
    if name in TRAINED:
        how = {"weights": workspace.runs.run(name, params={"epochs": 1}).id}
    converted = workspace.models.convert(name, "onnx", out=folder / f"{name}.onnx", **how)
    assert converted.proof is not None
    return dict(converted.proof)


def main(names: list[str]) -> int:
    failed = 0
    print(f"{'benchmark':<14} {'function':>9} {'source':>9} {'file':>9} {'ratio':>6}")
    with tempfile.TemporaryDirectory(prefix="proofs-") as folder:
        workspace = Workspace.open(overrides={"home": str(Path(folder) / "home")})
        for name in names or [*TRAINED, *FIRST]:
            proof = proof_of(workspace, name, Path(folder))
            function, rounding = proof["function"], proof["rounding"]
            cells = [f"{function['largest']:.1e}" if function else "–"]
            cells += [f"{rounding[each]:.1e}" for each in ("source", "result")] if rounding else ["–", "–"]
            ratio = f"{rounding['ratio']:.1f}" if rounding and rounding["ratio"] is not None else "–"
            verdict = "" if proof["holds"] else "  does not hold"
            print(f"{name:<14} {' '.join(f'{each:>9}' for each in cells)} {ratio:>6}{verdict}", flush=True)
            failed += not proof["holds"]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
