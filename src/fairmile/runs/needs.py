"""Hardware and frameworks that a card declares, compared with the machine before a run starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import UsageError
from fairmile.base.lazy import lazy, lazy_pattern
from fairmile.base.paths import find_program
from fairmile.base.quick_dataclass import dataclass
from fairmile.runs.execute import capture
from fairmile.runs.record.record import Captured

if TYPE_CHECKING:
    from fairmile.catalog.card import as_list
    from fairmile.jobs.queue import Jobs
    from fairmile.jobs.request_rules import make_request
    from fairmile.jobs.spec import JobSpec
    from fairmile.runs.record.spec import RunSpec
    from fairmile.systems.model import System
else:
    as_list = lazy("fairmile.catalog.card:as_list")
    make_request = lazy("fairmile.jobs.request_rules:make_request")
    JobSpec = lazy("fairmile.jobs.spec:JobSpec")

_PURL = lazy_pattern(r"pkg:(?:pypi|conda)/(?:[^/@?#]+/)?([^/@?#]+)")
_NAME = lazy_pattern(r"[A-Za-z][A-Za-z0-9_-]*")
# Frameworks and distributed layers, each with the packages or programs that bring it; others are not checked.
_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly", "intel-tensorflow"),
    "keras": ("keras", "tensorflow", "tensorflow-cpu", "tensorflow-gpu"),
    "jax": ("jax",),
    "flax": ("flax",),
    "horovod": ("horovod",),
    "deepspeed": ("deepspeed",),
    "mpi4py": ("mpi4py",),
    "ray": ("ray",),
    "lightning": ("lightning", "pytorch-lightning"),
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"),
    "scikit-learn": ("scikit-learn",),
}
_PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "horovod": ("horovodrun",),
    "deepspeed": ("deepspeed",),
    "mpi": ("mpirun", "mpiexec", "srun", "jsrun"),
}
_ALIASES = {
    "pytorch": "torch",
    "ddp": "torch",
    "gloo": "torch",
    "sklearn": "scikit-learn",
    "tensorflow-gpu": "tensorflow",
    "tensorflow-cpu": "tensorflow",
    "tf": "tensorflow",
    "pytorch-lightning": "lightning",
    "openmpi": "mpi",
    "mpich": "mpi",
}
# What a text about hardware asks for, by words of it; the first that fits.
_VENDORS = (
    ("nvidia", lazy_pattern(r"\b(?:nvidia|cuda|sm_\d+|nccl|[vah]100|h200|gh200|b200|t4)\b", re.IGNORECASE)),
    ("amd", lazy_pattern(r"\b(?:amd|rocm|rccl|mi\d{2,3}[ax]?)\b.*|\bradeon\b", re.IGNORECASE)),
    ("intel", lazy_pattern(r"\b(?:xpu|gaudi|ponte vecchio|intel (?:data center )?gpu)\b", re.IGNORECASE)),
    ("graphcore", lazy_pattern(r"\b(?:ipu|graphcore)s?\b", re.IGNORECASE)),
    ("tpu", lazy_pattern(r"\btpus?\b", re.IGNORECASE)),
    ("any", lazy_pattern(r"\b(?:gpu|accelerator|coprocessor)s?\b", re.IGNORECASE)),
)
_OWN = "builtin/benchmark/"
_IN_EXTRA = {"torch", "scikit-learn"}  # what the extra `benchmarks` installs
_CPU = lazy_pattern(r"\b(?:cpu|processor|xeon|epyc|x86|arm|cores?)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Need:
    """One thing that a card declares, and what was found; `met` is None where that is not known."""

    declared: str
    met: bool | None
    found: str  # the name in records

    def __str__(self) -> str:
        word = {True: "found", False: "missing", None: "unknown"}[self.met]
        return f"{self.declared}: {word} ({self.found})"


@dataclass(frozen=True)
class Offer:
    """What a place offers: GPUs as (vendor, model), None where nobody knows, and how to look for software."""

    place: str
    gpus: tuple[tuple[str, str], ...] | None
    software: Callable[[str], tuple[bool | None, str]]
    hint: str = ""
    is_here: bool = False  # whether what is installed beside Fairmile serves there


def declared_needs(bodies: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the hardware, frameworks and distributed layers that cards declare, as they write them."""
    needs: dict[str, None] = {}
    for body in bodies:
        texts = [str(each) for each in as_list(body.get("processorRequirements")) if isinstance(each, str)]
        needs |= dict.fromkeys(text for text in texts if _vendor(text))
        for key in ("machineLearningFramework", "framework", "softwareRequirements"):
            for text in (each for each in as_list(body.get(key)) if isinstance(each, str)):
                if name := _framework(text):
                    needs[name] = None
    return tuple(needs)


def check_needs(needs: Sequence[str], offer: Offer) -> list[Need]:
    """Compare what is declared with what a place offers."""
    return [_checked(need, offer) for need in needs]


def unmet(name: str, checked: Sequence[Need], offer: Offer) -> UsageError | None:
    """Return the error that names all that is declared and missing; None where nothing is."""
    missing = [each for each in checked if each.met is False]
    if not missing:
        return None
    declared = ", ".join(each.declared for each in missing)
    start = f"{offer.place} has "
    offered = ", ".join(dict.fromkeys(each.found.removeprefix(start) for each in missing))
    sentence = f"{name} declares that it needs {declared}, but {start}{offered}"
    remedies = "; ".join(filter(None, [offer.hint, "--anyway runs it regardless"]))
    if name.startswith(_OWN) and {each.declared for each in missing} <= _IN_EXTRA and offer.is_here:
        return UsageError(f"{sentence} ({remedies})", hint="pip install 'fairmile[benchmarks]'")
    return UsageError(sentence, hint=remedies)


def needs_record(checked: Sequence[Need], captured: Captured) -> list[dict[str, Any]]:
    """Return the result of a check as a record holds it; what was built meanwhile tells what was not known before."""
    lock = captured.environment.lock
    settled = [each if each.met is not None else _in_packages(each, lock) for each in checked]
    return [asdict(each) for each in settled]


def offer_for(spec: RunSpec, argv: Sequence[str], jobs: Callable[[], Jobs], environ: Mapping[str, str]) -> Offer:
    """Return what the place offers that a run goes to: this machine, where it executes `argv`, or a system.

    Of a system its description tells.
    """
    if not spec.system:
        return _local_offer(spec.environment, argv, environ)
    machine = jobs().machines[spec.system]
    job = JobSpec(argv=spec.argv, resources=spec.resources, software=spec.software, launch=spec.launch)
    partition = make_request(machine.filled(job), machine.system, check_account=False).partition
    return _system_offer(machine.system, partition, spec.software)


def _local_offer(environment: str, argv: Sequence[str], environ: Mapping[str, str]) -> Offer:
    """Return the GPUs of this machine, and the packages of the Python that a program uses."""
    gpus = []
    for each in capture.hardware().get("gpus") or ():
        model = str(each.get("model") or "GPU")
        gpus.append(("amd" if re.search(r"amd|radeon|instinct", model, re.IGNORECASE) else "nvidia", model))

    def software(name: str) -> tuple[bool | None, str]:
        if environment:
            return None, f"the environment {environment} should provide {name}"
        seen = capture.environment(argv, environ)
        if not seen.python:
            seen = capture.environment(["python3"], environ)
        package = _in_packages(Need(name, None, ""), seen.lock)
        programs = (find_program(each, environ.get("PATH")) for each in _PROGRAMS.get(name, ()))
        program = next(filter(None, programs), "")
        return (True, package.found or program) if package.met or program else (False, f"this machine has no {name}")

    return Offer("this machine", tuple(gpus), software, "--on SYSTEM runs it elsewhere", is_here=True)


def _system_offer(system: System, partition: str, asked: Sequence[str]) -> Offer:
    """Return what a system offers by its description, in the partition that a job goes to."""
    here = system.partitions[partition]
    # Of a machine that no file describes, an absent GPU is only one that nobody wrote down.
    unknown = None if not system.sources else ()
    gpus = ((here.gpu.vendor, here.gpu.model),) * here.gpu.count if here.gpu is not None else unknown

    def software(name: str) -> tuple[bool | None, str]:
        for each in ("ddp", "pytorch", "torch") if name == "torch" else (name,):
            if each in (word.partition(":")[0] for word in asked):
                return True, f"the software {each} of {system.name}"
        return None, f"the description of {system.name} does not say whether it has {name}"

    others = [name for name, each in system.partitions.items() if each.gpu is not None]
    hint = f"--partition {others[0]} has GPUs" if here.gpu is None and others else ""
    return Offer(f"the partition {partition} of {system.name}", gpus, software, hint)


def _in_packages(need: Need, lock: Sequence[str]) -> Need:
    """Return a need as met where one of the packages that bring it is in a lock."""
    names = {line.partition("==")[0].lower().replace("_", "-"): line for line in lock}
    wanted = _PACKAGES.get(_framework(need.declared), ())
    version = next((names[package] for package in wanted if package in names), "")
    return Need(need.declared, True, version) if version else need


def _checked(need: str, offer: Offer) -> Need:
    vendor = _vendor(need)
    if not vendor:
        met, offered = offer.software(_framework(need) or need)
        return Need(need, met, offered)
    if offer.gpus is None:
        return Need(need, None, f"the GPUs of {offer.place} are not known")
    matching = [model for own, model in offer.gpus if vendor in ("any", own)]
    if matching:
        return Need(need, True, f"{len(matching)} × {matching[0]}")
    others = ", ".join(dict.fromkeys(model for _, model in offer.gpus))
    return Need(need, False, f"{offer.place} has {f'only {others}' if others else 'no GPU'}")


def _vendor(text: str) -> str:
    """Return whose accelerator a text asks for; empty where it asks for none."""
    name = next((vendor for vendor, words in _VENDORS if words.search(text)), "")
    is_processor = name in ("amd", "intel") and _CPU.search(text) and not re.search(r"gpu|rocm", text, re.IGNORECASE)
    return "" if is_processor else name


def _framework(text: str) -> str:
    """Return the framework or layer of our table that a text names; empty where it names none."""
    purl = _PURL.match(text)
    named = purl[1] if purl else (match[0] if (match := _NAME.match(text.strip())) and "://" not in text else "")
    name = named.lower().replace("_", "-")
    name = _ALIASES.get(name, name)
    return name if name in _PACKAGES or name in _PROGRAMS else ""
