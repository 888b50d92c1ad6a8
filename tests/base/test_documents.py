"""Documents are models of pydantic that are built without looking for plug-ins."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pydantic import BaseModel, ValidationError
from pydantic.plugin import _loader

from fairmile.base.documents import Document, StrictDocument, without_plugins


def test_a_strict_document_refuses_unknown_keys_and_changes() -> None:
    class Buoy(StrictDocument):
        depth_m: float

    buoy = Buoy.model_validate({"depth_m": 3})
    with pytest.raises(ValidationError):
        Buoy.model_validate({"depth_m": 3, "colour": "red"})
    with pytest.raises(ValidationError):
        buoy.depth_m = 4.0  # type: ignore[misc]


def test_only_documents_are_built_without_plug_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(_loader, "_plugins", None)
    monkeypatch.setattr(_loader, "entry_points", lambda group: asked.append(group) or [])

    class Buoy(Document):
        depth_m: float

    assert asked == []

    class Ship(BaseModel):
        draught_m: float

    assert asked == ["pydantic"]


def test_an_error_leaves_plug_ins_to_others() -> None:
    with pytest.raises(ZeroDivisionError), without_plugins():
        raise ZeroDivisionError
    assert sys.modules["pydantic.plugin._loader"] is _loader


def test_a_document_is_built_at_its_first_use_without_plug_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(_loader, "_plugins", None)
    monkeypatch.setattr(_loader, "entry_points", lambda group: asked.append(group) or [])

    class Harbour(Document):
        buoys: list[str]

    assert not Harbour.__pydantic_complete__
    assert Harbour.model_validate({"buoys": ["red"]}).model_dump() == {"buoys": ["red"]}
    assert Harbour.__pydantic_complete__ and asked == []


def test_no_module_of_a_command_has_pydantic_look_for_plug_ins() -> None:
    code = (
        "import fairmile.flows.model, fairmile.envs.spec, fairmile.catalog.forms, fairmile.systems.check\n"
        "import fairmile.predict.memory.descriptions, fairmile.runs.record.spec, fairmile.sweeps.own_format\n"
        "from fairmile.runs.record.spec import RunSpec\n"
        "RunSpec(name='a', argv=('true',))\n"
        "import sys\n"
        "assert 'pydantic.plugin._loader' not in sys.modules and 'importlib.metadata' not in sys.modules"
    )
    environ = {name: value for name, value in os.environ.items() if name != "PYDANTIC_DISABLE_PLUGINS"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environ)
