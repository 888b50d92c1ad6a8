"""The form of an event catalog."""

from __future__ import annotations

from fairmile.benchmarks.harness.schema import Field, Schema

SCHEMA: Schema = {
    "CSV with a header, compressed or not; ComCat's names and SCSN text are read as well": (
        Field("time_utc", "text", ("events",), "origin time, ISO 8601"),
        Field("lat", "float64", ("events",), "latitude", "degree"),
        Field("lon", "float64", ("events",), "longitude, east positive", "degree"),
        Field("depth_km", "float64", ("events",), "depth; empty where it is not known", "km"),
        Field("mag", "float64", ("events",), "magnitude; empty where it is not known"),
    )
}
