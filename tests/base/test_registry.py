from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import MissingExtra, NotFound, Unsupported
from fairmile.base.registry import Plugin, Registry

Module = Callable[[str, str], None]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Module]:
    """Write a module that can be imported by name until the test ends."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def schedulers(**table: Plugin) -> Registry[Any]:
    return Registry("scheduler", table, entry_points="fairmile.test.schedulers")


def test_an_implementation_is_imported_at_its_first_use(module: Module) -> None:
    module("fm_slurm", "class Slurm: name = 'slurm'\n")
    registry = schedulers(slurm=Plugin("fm_slurm:Slurm", summary="the Slurm queue"))
    assert registry.summary("slurm") == "the Slurm queue"
    assert "fm_slurm" not in sys.modules
    assert registry["slurm"].name == "slurm"
    assert dict(registry.items()) == {"slurm": registry["slurm"]}


def test_an_attribute_of_an_attribute_can_be_the_target() -> None:
    assert schedulers(x=Plugin("os:path.join"))["x"] is __import__("os").path.join


def test_an_unknown_name_suggests_the_nearest_and_lists_all() -> None:
    registry = schedulers(local=Plugin("os:name"), slurm=Plugin("os:name"))
    with pytest.raises(NotFound) as caught:
        registry["slrum"]
    assert str(caught.value) == "no scheduler named 'slrum'; did you mean 'slurm'?"
    assert caught.value.hint == "known: local, slurm"
    with pytest.raises(NotFound, match=r"^no scheduler named 'zzz'(?:\n|$)"):
        registry.summary("zzz")


def test_a_missing_dependency_names_the_extra_that_installs_it(module: Module) -> None:
    module("fm_flux", "import flux_that_nobody_has.core\n")
    with pytest.raises(Unsupported) as caught:
        schedulers(flux=Plugin("fm_flux:Flux", extra="flux"))["flux"]
    assert str(caught.value) == "scheduler 'flux' needs flux_that_nobody_has"
    assert caught.value.hint == "pip install 'fairmile[flux]'"


def test_a_missing_dependency_without_an_extra_is_named(module: Module) -> None:
    module("fm_flux", "import flux_that_nobody_has\n")
    with pytest.raises(Unsupported, match="needs flux_that_nobody_has, which cannot be imported"):
        schedulers(flux=Plugin("fm_flux:Flux"))["flux"]


def test_a_wrong_target_in_our_own_table_is_a_defect_and_not_a_missing_extra(module: Module) -> None:
    module("fm_ok", "")
    with pytest.raises(ModuleNotFoundError):
        schedulers(x=Plugin("fm_no_such_module:X", extra="x"))["x"]
    with pytest.raises(AttributeError):
        schedulers(x=Plugin("fm_ok:X"))["x"]


def install(folder: Path, points: str) -> None:
    info = folder / "fm_stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fm-stranger\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[fairmile.test.schedulers]\n{points}")


def test_an_installed_entry_point_is_found_when_the_table_lacks_the_name(tmp_path: Path, module: Module) -> None:
    module("fm_stranger", "class Own: pass\nclass Slurm: pass\n")
    install(tmp_path, "own = fm_stranger:Own\nslurm = fm_stranger:Slurm\n")
    registry = schedulers(slurm=Plugin("os:name"))
    assert registry.names() == list(registry) == ["slurm", "own"]
    assert len(registry) == 2
    assert registry["own"].__name__ == "Own"
    assert registry["slurm"] == __import__("os").name  # the table wins
    assert registry.summary("own") == "from fm-stranger"
    assert "own" in registry
    assert "other" not in registry


def test_a_name_in_the_table_is_found_without_reading_entry_points() -> None:
    registry = schedulers(local=Plugin("os:name"))
    assert "local" in registry
    assert registry["local"]
    assert registry._installed is None


def test_failures_lists_each_that_cannot_be_loaded_with_its_error(tmp_path: Path, module: Module) -> None:
    module("fm_stranger", "raise SystemExit('bad manners')\n")
    module("fm_flux", "import flux_that_nobody_has\n")
    install(tmp_path, "rude = fm_stranger:X\ngone = fm_not_there:X\n")
    failed = schedulers(local=Plugin("os:name"), flux=Plugin("fm_flux:Flux", extra="flux")).failures()
    assert {name: type(error) for name, error in failed.items()} == {
        "flux": MissingExtra,
        "rude": SystemExit,
        "gone": Unsupported,
    }
