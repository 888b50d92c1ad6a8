"""Parameters that many routes share, as the description of the API states them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import Field

# An id or a name of ours: never a path, since some calls take both.
Id = Annotated[str, Path(max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
# A name, handle, id, DOI or digest of an asset; only catalogs are asked.
AssetName = Annotated[str, Path(min_length=1, max_length=500)]
Limit = Annotated[int, Query(ge=1, le=200, description="most results in one answer")]
Cursor = Annotated[str, Query(max_length=500, pattern="^[A-Za-z0-9_-]*$", description="from the Link header")]
Word = Annotated[str, Query(max_length=200)]
DryRun = Annotated[bool, Query(description="say what would happen, and do nothing")]
ParamValue = Annotated[str, Field(max_length=1_000)] | bool | int | float  # of a run
