"""The description of a system as MLCommons asks for it, from what the records of its runs captured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairmile.base.units import format_size
from fairmile.benchmarks.submission.logs import RunLog

# Every field that the committee's checker looks for; those of the second tuple need a meaningful answer.
_OPTIONAL = (
    "host_processor_frequency",
    "host_processor_caches",
    "host_processor_interconnect",
    "accelerator_frequency",
    "accelerator_on-chip_memories",
    "accelerator_interconnect_topology",
    "hw_notes",
    "sw_notes",
)
_NEEDED = (
    "submitter",
    "division",
    "status",
    "system_name",
    "number_of_nodes",
    "host_processors_per_node",
    "host_processor_model_name",
    "host_processor_core_count",
    "host_processor_vcpu_count",
    "host_memory_capacity",
    "host_memory_configuration",
    "host_storage_type",
    "host_storage_capacity",
    "host_networking",
    "host_networking_topology",
    "accelerators_per_node",
    "cooling",
    "framework",
    "other_software_stack",
    "operating_system",
)
_OF_ACCELERATORS = (
    "accelerator_model_name",
    "accelerator_host_interconnect",
    "accelerator_memory_configuration",
    "accelerator_memory_capacity",
    "accelerator_interconnect",
)
_FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX", "mxnet": "MXNet"}
_STACK = ("nvidia-cudnn", "nvidia-nccl", "nvidia-cuda-runtime", "horovod", "mpi4py", "numpy", "h5py", "fairmile")


def describe_system(log: RunLog, labels: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, str]:
    """Return the description of the system that a run used; `given` are the fields that the user states.

    Unknown fields are empty. All values are texts: the committee's checker joins them.
    """
    hardware, software = log.run.hardware, log.run.captured.software
    cpu, gpus = hardware.get("cpu") or {}, hardware.get("gpus") or []
    storage: Mapping[str, Any] = next(iter((hardware.get("storage") or {}).values()), {})
    accelerators = log.value("accelerators_per_node")
    packages = dict(line.partition("==")[::2] for line in log.run.captured.environment.lock)
    fields: dict[str, Any] = {
        **dict.fromkeys((*_NEEDED, *_OF_ACCELERATORS, *_OPTIONAL), ""),
        **labels,
        "number_of_nodes": log.value("number_of_nodes") or 1,
        "host_processors_per_node": cpu.get("sockets"),
        "host_processor_model_name": cpu.get("model"),
        "host_processor_core_count": cpu.get("cores"),
        "host_processor_vcpu_count": cpu.get("threads"),
        "host_memory_capacity": _size(hardware.get("memory_bytes")),
        "host_storage_type": storage.get("type"),
        "host_storage_capacity": _size(storage.get("size_bytes")),
        "host_networking": ", ".join(map(str, hardware.get("interconnect") or ())),
        "accelerators_per_node": len(gpus) if accelerators is None else accelerators,
        "framework": ", ".join(f"{name} {packages[key]}" for key, name in _FRAMEWORKS.items() if key in packages),
        "other_software_stack": ", ".join(_stack(packages, log.run.captured.environment.python)),
        "operating_system": " ".join(filter(None, (software.get("os"), software.get("kernel")))),
    }
    if gpus:
        fields["accelerator_model_name"] = gpus[0].get("model")
        fields["accelerator_memory_capacity"] = _size(gpus[0].get("memory_bytes"))
    fields |= given
    return {name: "" if value is None else str(value) for name, value in fields.items()}


def unanswered(description: Mapping[str, str]) -> list[str]:
    """Return the fields that need a meaningful answer and have none."""
    has_accelerators = description["accelerators_per_node"] not in ("", "0")
    needed: Sequence[str] = (*_NEEDED, *_OF_ACCELERATORS) if has_accelerators else _NEEDED
    return [name for name in needed if not description[name]]


def _stack(packages: Mapping[str, str], python: str) -> list[str]:
    known = [f"{name} {version}" for name, version in sorted(packages.items()) if name.startswith(_STACK)]
    return ([f"Python {python}"] if python else []) + known


def _size(value: Any) -> str:
    return format_size(int(value)) if isinstance(value, int | float) and value else ""
