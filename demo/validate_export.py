"""Has an export judged by the validator of its own format, offline, and says so in one line.

Run: python demo/validate_export.py croissant FILE | rocrate FOLDER
Exit: 0 accepted, 1 refused, 2 wrong usage, 3 the validator is not installed.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_VALIDATION = Path(__file__).parents[1] / "tests" / "support" / "rocrate_validation.py"
_PROCESS_RUN = "https://w3id.org/ro/wfrun/process/"


def check_croissant(path: Path) -> list[str]:
    """Return what mlcroissant finds wrong with the file."""
    import mlcroissant

    logging.getLogger("absl").setLevel(logging.ERROR)
    try:
        dataset = mlcroissant.Dataset(jsonld=str(path))
    except (mlcroissant.ValidationError, ValueError) as error:
        return [" ".join(str(error).split())]
    return sorted(dataset.metadata.issues.errors)


def check_rocrate(path: Path) -> list[str]:
    """Return what roc-validator finds wrong with the crate, as RO-Crate 1.1 and, for a run, as Process Run Crate."""
    folder = path if path.is_dir() else path.parent
    spec = importlib.util.spec_from_file_location("rocrate_validation", _VALIDATION)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    metadata = json.loads((folder / "ro-crate-metadata.json").read_text(encoding="utf-8"))
    profile = "process-run-crate-0.5" if _is_run(metadata) else "ro-crate-1.1"
    issues: list[str] = module.validate_crate(folder, profile)
    return issues


def _is_run(metadata: dict[str, Any]) -> bool:
    roots = [entity for entity in metadata["@graph"] if entity.get("@id") == "./"]
    return any(_PROCESS_RUN in json.dumps(root.get("conformsTo")) for root in roots)


VALIDATORS = {"croissant": ("mlcroissant", check_croissant), "rocrate": ("roc-validator", check_rocrate)}


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in VALIDATORS:
        print(f"usage: validate_export.py {'|'.join(VALIDATORS)} PATH", file=sys.stderr)
        return 2
    package, check = VALIDATORS[arguments[0]]
    try:
        name = f"{package} {version(package)}"
    except PackageNotFoundError:
        print(f"{package} is not installed: pip install 'fairmile[interop]'", file=sys.stderr)
        return 3
    path = Path(arguments[1])
    if not path.exists():
        print(f"{path} does not exist", file=sys.stderr)
        return 2
    issues = check(path)
    print(f"{name}: {path.name} is " + (f"refused: {'; '.join(issues)}" if issues else "valid"))
    return 1 if issues else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
