"""What is kept of a sweep or a study, typed: it is read and written here, and picked apart nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any

from fairmile.base.errors import SystemFailure, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.runs.record.values import Value
from fairmile.sweeps.model import Objective
from fairmile.sweeps.tuning.engine import Settings

_FORMAT = "fairmile-sweep/1"
_SOURCE_FORMAT = 1


@dataclass(frozen=True)
class Source:
    """All that a definition is made of: the texts of its files, and what the command line says."""

    files: tuple[str, ...] = ()  # absolute paths, in their order
    texts: Mapping[str, str] = field(default_factory=dict)  # by path, of the files and of those that they name
    shown: Mapping[str, str] = field(default_factory=dict)  # by path, how messages name a file
    params: Mapping[str, Any] = field(default_factory=dict)  # axes that go before those of the files
    what: str = ""  # the name of an asset
    command: tuple[str, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)  # other keys of a file, such as `select`
    folder: str = ""  # where relative paths of the command line start
    allow_code: bool = False

    def to_dict(self) -> dict[str, Any]:
        document = asdict(self) | {"files": list(self.files), "command": list(self.command)}
        return {"format": _SOURCE_FORMAT, **document}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Source:
        if document.get("format") != _SOURCE_FORMAT:
            raise UsageError("the definition of the sweep was written by another version", hint="update fairmile")
        fields = {name: value for name, value in document.items() if name != "format"}
        return cls(**fields | {"files": tuple(fields["files"]), "command": tuple(fields["command"])})


@dataclass(frozen=True)
class StudyRecord:
    """What makes a sweep a study: how its trials are chosen, from which distributions, and by which metrics."""

    settings: Settings
    distributions: Mapping[str, Mapping[str, Any]]
    objectives: tuple[Objective, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "settings": asdict(self.settings),
            "distributions": {name: dict(each) for name, each in self.distributions.items()},
            "objectives": [asdict(each) for each in self.objectives],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> StudyRecord:
        objectives = tuple(Objective(**each) for each in document["objectives"])
        return cls(Settings(**document["settings"]), document["distributions"], objectives)


@dataclass(frozen=True)
class SweepRecord:
    """A sweep or a study as its folder keeps it."""

    id: str
    name: str
    created: float
    source: Source
    count: int = 0  # of points; a study has none beforehand
    template: str = ""  # the name of a file in the folder
    axes: Mapping[str, list[Value]] = field(default_factory=dict)
    system: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)  # what its runs share, as JSON of a RunSpec
    values: Mapping[str, str] = field(default_factory=dict)  # what placeholders of inputs stand for
    best: str = ""  # the metric that its file names
    combine: tuple[str, ...] = ()  # the command that combines the results
    notes: tuple[str, ...] = ()
    study: StudyRecord | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)  # of a study: what was said beside its file

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "format": _FORMAT,
            "id": self.id,
            "name": self.name,
            "created": self.created,
            "source": self.source.to_dict(),
            "count": self.count,
            "template": self.template,
            "axes": dict(self.axes),
            "system": self.system,
            "spec": dict(self.spec),
            "values": dict(self.values),
            "best": self.best,
            "combine": list(self.combine),
            "notes": list(self.notes),
        }
        if self.study is not None:
            document |= {"study": self.study.to_dict(), "changes": dict(self.changes)}
        return document

    @classmethod
    def from_dict(cls, document: Any, where: str) -> SweepRecord:
        """Read what was kept; SystemFailure names `where` where that is damaged."""
        try:
            study = document.get("study")
            return cls(
                id=document["id"],
                name=document["name"],
                created=float(document["created"]),
                source=Source.from_dict(document["source"]),
                count=int(document["count"]),
                template=document.get("template", ""),
                axes=document["axes"],
                system=document["system"],
                spec=document["spec"],
                values=document["values"],
                best=document.get("best") or "",
                combine=tuple(document.get("combine") or ()),
                notes=tuple(document.get("notes") or ()),
                study=StudyRecord.from_dict(study) if study is not None else None,
                changes=document.get("changes", {}),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SystemFailure(f"{where} is damaged: expected the record of a sweep") from error
