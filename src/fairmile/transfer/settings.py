"""How transfers behave; each field is a setting `transfer.NAME`, `hubs` the settings `hubs.NAME`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from fairmile.base.quick_dataclass import dataclass

# Where the interfaces of hubs are.
HUBS = {
    "huggingface": "https://huggingface.co",
    "zenodo": "https://zenodo.org",
    "openml": "https://www.openml.org",
    "openml_search": "https://es.openml.org",
}


@dataclass(frozen=True)
class Settings:
    """How transfers behave."""

    connections: int = 16  # per source of a large file
    segment_bytes: int = 16 << 20  # the largest range asked for at once
    stall_s: float = 10.0  # a connection without a byte for so long is given up
    unsized_bytes: int = 64 << 30  # the most of a file whose size neither its card nor its source tells
    retries: int = 5  # attempts in a row without a new byte before a source is given up
    socket_buffer_bytes: int = 0  # 0 leaves it to the system, which adapts it
    limits: Mapping[str, str] = field(default_factory=dict)  # host or * → "20 MB/s 08:00-18:00, 200 MB/s"
    fetchers: Mapping[str, Any] = field(default_factory=dict)  # name → argv template of a declared command
    s3_endpoint: str = ""  # another S3 service than Amazon's
    globus_collection: str = ""  # the collection of this machine, into which Globus writes
    hubs: Mapping[str, str] = field(default_factory=lambda: dict(HUBS))
    globus_root: str = "/"  # the folder of this machine that is its root
