"""`cloudmesh.gpu.gpu.Gpu` as published: what nvidia-smi tells of the GPUs of this machine, once or again and again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from fairmile.base.commands import Here
from fairmile.base.errors import Integrity, UsageError

_TIMEOUT_S = 60
# The parts of nvidia-smi's description that system() and status() show.
_SYSTEM = ("product_name", "product_brand", "product_architecture", "vbios_version", "inforom_version")
_STATUS = ("fan_speed", "utilization", "temperature", "supported_gpu_target_temp", "clocks", "voltage")
_POWER = ("gpu_power_readings", "power_readings", "module_power_readings")
_DRAWS = ("power_draw", "instant_power_draw", "average_power_draw")
_LOAD = ("gpu_util", "memory_util", "encoder_util", "decoder_util")
_WIDTHS = (3, 3, 3, 3, 5, 8)


class Gpu:
    """Asks nvidia-smi; `sep` stands between date and time in logs."""

    def __init__(self, sep: str = "T") -> None:
        self.sep = sep
        self.running = True

    @property
    def count(self) -> int:
        """The number of GPUs."""
        return len(self._gpus())

    def vendor(self) -> str | None:
        """Return the vendor of the GPUs."""
        return "NVIDIA" if self.count else None

    def system(self) -> list[dict[str, Any]]:
        """Return what does not change, for each GPU."""
        return [{**_part(gpu, _SYSTEM), "vendor": "NVIDIA"} for gpu in self._gpus()]

    def status(self) -> list[dict[str, Any]]:
        """Return load, temperature, power and clocks, for each GPU."""
        return [_part(gpu, (*_STATUS, *_POWER)) for gpu in self._gpus()]

    def ps(self) -> dict[int, Any]:
        """Return the processes on each GPU."""
        return {number: (gpu.get("processes") or {}).get("process_info") for number, gpu in enumerate(self._gpus())}

    def smi(self, output: str | None = None, filename: str | None = None) -> Any:
        """Return what nvidia-smi prints, as text, or its description as `xml`, `json` (data) or `yaml`."""
        if output is None and filename is None:
            return _ask()
        text = Path(filename).read_text(encoding="utf-8") if filename is not None else _ask("-q", "-x")
        if output in (None, "xml"):
            return text
        document = _parse(text)
        if output == "json":
            return document
        if output == "yaml":
            return json.dumps(document, indent=1) + "\n"  # every JSON text is YAML
        raise UsageError(f"nvidia-smi has no output format {output!r}", hint="use xml, json or yaml")

    def watch(
        self,
        logfile: str | None = None,
        delay: float = 1.0,
        repeated: int | None = None,
        dense: bool = False,
        gpu: Iterable[int | str] | None = None,
    ) -> None:
        """Log load, temperature and power every `delay` seconds, `repeated` times or until `running` is false."""
        left = -1 if repeated is None else int(repeated)
        with ExitStack() as stack:
            stream = sys.stdout if logfile is None else stack.enter_context(open(logfile, "w", encoding="utf-8"))
            gpus = self._gpus()
            numbers = list(range(len(gpus))) if gpu is None else [int(each) for each in gpu]
            columns = ("id", "gpu_util %", "memory_util %", "encoder_util %", "decoder_util %", "gpu_temp C")
            heads = (f"{number} {name}" for number in numbers for name in (*columns, "power_draw W"))
            print(f"# time, {', '.join(heads)}", file=stream)
            due = time.monotonic()
            while self.running and left != 0:
                line = ", ".join([_now(self.sep), *(_line(number, gpus[number]) for number in numbers)])
                print(line.replace(" ", "") if dense else line, file=stream, flush=True)
                left -= 1
                if left != 0:
                    due += float(delay)
                    time.sleep(max(0.0, due - time.monotonic()))
                    gpus = self._gpus()

    def _gpus(self) -> list[dict[str, Any]]:
        gpus: list[dict[str, Any]] = self.smi(output="json")["nvidia_smi_log"].get("gpu", [])
        return gpus

    def __str__(self) -> str:
        return json.dumps(self._gpus(), indent=2)


def _ask(*options: str) -> str:
    return Here().run(["nvidia-smi", *options], timeout_s=_TIMEOUT_S).stdout


def _parse(text: str) -> dict[str, Any]:
    """Return the description as data: elements by name, several of one name as a list; the GPUs are always a list."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise Integrity(f"nvidia-smi's description cannot be parsed: {error}") from error
    log = _value(root)
    gpus = log.get("gpu", []) if isinstance(log, dict) else []
    return {root.tag: {**log, "gpu": gpus if isinstance(gpus, list) else [gpus]} if isinstance(log, dict) else {}}


def _value(element: ElementTree.Element) -> Any:
    values: dict[str, Any] = {f"@{name}": text for name, text in element.attrib.items()}
    for child in element:
        value = _value(child)
        if child.tag not in values:
            values[child.tag] = value
        elif isinstance(values[child.tag], list):
            values[child.tag].append(value)
        else:
            values[child.tag] = [values[child.tag], value]
    return values or (element.text or "").strip() or None


def _part(gpu: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: gpu[name] for name in names if name in gpu}


def _line(number: int, gpu: Mapping[str, Any]) -> str:
    power: Mapping[str, Any] = next((gpu[name] for name in _POWER if name in gpu), {})
    draw = next((power[name] for name in _DRAWS if name in power), "N/A")
    load = gpu.get("utilization") or {}
    values = [load.get(name, "N/A") for name in _LOAD] + [(gpu.get("temperature") or {}).get("gpu_temp", "N/A"), draw]
    return ", ".join(
        [
            f"{number:>3}",
            *(f"{str(value).split(' ')[0]:>{width}}" for value, width in zip(values, _WIDTHS, strict=True)),
        ]
    )


def _now(sep: str) -> str:
    return datetime.now().isoformat(sep=sep, timespec="microseconds")
