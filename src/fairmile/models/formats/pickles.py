"""Pickles, of scikit-learn, joblib and anybody: scanned in a process of its own, never loaded."""

from __future__ import annotations

import atexit
import json
import re
import select
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fairmile.models.formats import pickle_scan
from fairmile.models.formats.description import ModelDescription, TensorSpec, count_values
from fairmile.models.formats.source import MOST_BYTES, Source

_OLD = re.compile(rb"\(*(c[\w.]+\r?\n\w+\r?\n|[dl]p\d+\n|i[\w.]+\n\w+\n)|[\]}]q")  # protocols 0 and 1
_COMPRESSED = (b"\x78\x01", b"\x78\x9c", b"\x78\xda", b"\x78\x5e", b"\x1f\x8b")
_BINARY = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
# Whose classes a model of these frameworks consists of; anything else is worth a warning.
_KNOWN = ("sklearn.", "numpy.", "scipy.", "joblib.", "collections.", "torch.", "pandas.", "xgboost.", "lightgbm.")
_HARMLESS = frozenset(
    {"_codecs.encode", "builtins.object", "builtins.set", "builtins.frozenset", "builtins.slice", "builtins.range"}
    | {"builtins.complex", "builtins.bytearray", "builtins.list", "builtins.dict", "builtins.tuple", "builtins.int"}
    | {"copyreg._reconstructor", "copy_reg._reconstructor", "__builtin__.object", "__builtin__.set", "builtins.float"}
    | {"functools.partial", "datetime.datetime", "decimal.Decimal", "pathlib.PosixPath", "argparse.Namespace"}
)


class _Scanner:
    """The process that scans pickles: started with the first and asked for each further one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def scan(self, path: Path, offset: int, length: int) -> dict[str, Any]:
        """Return what a part of a file is, read as a pickle; a scan that fails or takes too long says why."""
        with self._lock:
            process = self._running()
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(json.dumps([str(path.absolute()), offset, length]) + "\n")
                process.stdin.flush()
                # The process stops by itself; this is for one that cannot.
                is_ready, _, _ = select.select([process.stdout], [], [], pickle_scan.MOST_SECONDS + 10)
                line = process.stdout.readline() if is_ready else ""
            except OSError:
                line = ""
            if not line:
                self.stop()
                return {"error": "the scan was stopped: it needed too much time or memory", "imports": []}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            # Without site-packages and without settings from the environment: nobody's code runs in it.
            command = [sys.executable, "-I", "-S", pickle_scan.__file__]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            atexit.register(self.stop)
        return self._process

    def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):
                    if stream is not None:
                        stream.close()


_scanner = _Scanner()


def scan(source: Source, data: memoryview | bytes | None = None, offset: int = 0) -> dict[str, Any]:
    """Return what a pickle is: the file from `offset` on, or `data` where the file holds it compressed."""
    if data is None:
        return _scanner.scan(source.path, offset, len(source.view) - offset)
    with _as_file(data) as path:
        return _scanner.scan(path, 0, len(data))


@contextmanager
def _as_file(data: memoryview | bytes) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile(prefix="fairmile-") as file:
        file.write(data)
        file.flush()
        yield Path(file.name)


def _unpacked(source: Source, most: int) -> bytes:
    """Return the first bytes of a file that joblib compressed; empty where it is none."""
    try:
        return zlib.decompressobj(wbits=47).decompress(source.view, most)
    except zlib.error:
        return b""


def recognises(source: Source) -> bool:
    """Tell whether the first bytes are those of a pickle, of any protocol."""
    if source.head[:2] in _BINARY or (source.head[:2] in _COMPRESSED and _unpacked(source, 2) in _BINARY):
        return True
    return bool(_OLD.match(source.head)) and bytes(source.view[-1:]) in (b".", b"\n")


def read(source: Source) -> ModelDescription:
    """Return what a pickle declares: its class and what loading it would import and call."""
    data = _unpacked(source, MOST_BYTES) if source.head[:2] in _COMPRESSED else None
    if data is not None and len(data) >= MOST_BYTES:
        raise source.damaged("pickle", f"it unpacks to more than {MOST_BYTES:,} bytes")
    answer = scan(source, data)
    if answer.get("error"):
        raise source.damaged("pickle", answer["error"])
    if answer["legacy_torch"] or (not answer["class"].startswith("sklearn.") and _is_of(answer, "torch.")):
        return state_description(source, answer, {"container": "before PyTorch 1.6"} if answer["legacy_torch"] else {})
    if answer["class"].startswith("sklearn."):
        return _sklearn(source, answer)
    weights = tuple(TensorSpec(name, kind, tuple(shape)) for name, kind, shape in answer["tensors"])
    return ModelDescription(
        str(source.path),
        "pickle",
        "",
        len(source.view),
        parameters=count_values(weights) if weights else None,
        weights=weights,
        runs_code=True,
        imports=tuple(answer["imports"]),
        details={"class": answer["class"], "protocol": str(answer["protocol"])},
        warnings=warnings_of(answer),
    )


def _is_of(answer: Mapping[str, Any], package: str) -> bool:
    return any(each.startswith(package) for each in answer["imports"])


def state_description(source: Source, answer: Mapping[str, Any], details: Mapping[str, str]) -> ModelDescription:
    """Return the description of tensors that PyTorch saved, or of a whole module, which is a pickle like any other."""
    weights = tuple(TensorSpec(name, kind, tuple(shape)) for name, kind, shape in answer["tensors"])
    is_plain = answer["class"] in ("dict", "collections.OrderedDict", "list", "tuple") or not answer["called"]
    is_plain = is_plain or answer["class"].startswith("torch._utils._rebuild")
    runs_code = not is_plain or not all(_is_plain_torch(each) for each in answer["imports"])
    return ModelDescription(
        str(source.path),
        "pytorch-state-dict" if is_plain else "pickle",
        "pytorch",
        len(source.view),
        parameters=count_values(weights),
        weights=weights,
        runs_code=runs_code,
        imports=tuple(answer["imports"]) if runs_code else (),
        details={**({} if is_plain else {"class": answer["class"]}), **details},
        warnings=warnings_of(answer),
    )


def _is_plain_torch(name: str) -> bool:
    """Tell whether PyTorch imports the name even when it loads weights alone."""
    module, _, last = name.rpartition(".")
    if module == "torch":
        return last.endswith("Storage") or last.islower() or last in ("Size", "Tensor")
    return (
        (module == "torch._utils" and last.startswith("_rebuild"))
        or name in ("collections.OrderedDict", "collections.defaultdict", "torch.nn.parameter.Parameter")
        or (module.startswith("torch.storage") and last.endswith("Storage"))
    )


def _sklearn(source: Source, answer: Mapping[str, Any]) -> ModelDescription:
    facts = answer["facts"]
    weights = tuple(TensorSpec(name, kind, tuple(shape)) for name, kind, shape in answer["tensors"])
    version = str(facts.get("_sklearn_version", ""))
    return ModelDescription(
        str(source.path),
        "sklearn-pickle",
        "scikit-learn",
        len(source.view),
        producer=f"scikit-learn {version}".strip(),
        inputs=sklearn_inputs(_first_number(facts, weights)),
        parameters=count_values(weights),
        weights=weights,
        operators=estimators(answer["imports"]),
        runs_code=True,
        imports=tuple(answer["imports"]),
        details={"class": answer["class"], "protocol": str(answer["protocol"])},
        warnings=warnings_of(answer),
    )


def _first_number(facts: Mapping[str, Any], weights: tuple[TensorSpec, ...]) -> int | None:
    """Return how many features an estimator takes: as it says, or of a pipeline as its first step's arrays say."""
    number = facts.get("n_features_in_")
    if isinstance(number, int):
        return number
    first = next((each for each in weights if each.name.startswith("steps.0.") and each.shape), None)
    length = first.shape[-1] if first is not None and first.shape else None
    return length if isinstance(length, int) else None


def sklearn_inputs(features: int | None) -> tuple[TensorSpec, ...]:
    """Return the input table of an estimator with this number of features."""
    return (TensorSpec("X", "float64", (None, features)),) if features else ()


def estimators(imports: list[str]) -> dict[str, int]:
    """Return the classes of scikit-learn among imports, each once."""
    classes = (each.rpartition(".")[2] for each in imports if each.startswith("sklearn."))
    return {name: 1 for name in sorted(set(classes)) if name[:1].isupper()}


def warnings_of(answer: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what loading would call beyond the frameworks that models are made of."""
    names = dict.fromkeys([*answer.get("called", ()), *answer["imports"]])
    unusual = [each for each in names if each not in _HARMLESS and not each.startswith(_KNOWN)]
    if not unusual:
        return ()
    more = f" and {len(unusual) - 5} more" if len(unusual) > 5 else ""
    return (f"loading it would run {', '.join(unusual[:5])}{more}",)
