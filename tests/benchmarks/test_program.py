"""How the program of a benchmark is found and run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairmile.base.errors import NotFound, Unsupported
from fairmile.benchmarks import program

SETTINGS = """\
from dataclasses import dataclass
from fairmile.benchmarks.harness.settings import TrainSettings, option

@dataclass(frozen=True, kw_only=True)
class Settings(TrainSettings):
    height: float = option({height}, "metres")
"""
PROGRAM = """\
from settings import Settings

def run(session):
    session.say(f"height {session.settings(Settings).height}")
"""


def benchmark(folder: Path, *, height: float = 1.5, text: str = PROGRAM) -> Path:
    folder.mkdir()
    (folder / "card.jsonld").write_text("{}")
    (folder / "settings.py").write_text(SETTINGS.format(height=height))
    (folder / "benchmark.py").write_text(text)
    return folder


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FAIRMILE_PARAMS", "FAIRMILE_SEED", "FAIRMILE_INPUT_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    monkeypatch.delitem(__import__("sys").modules, "settings", raising=False)
    monkeypatch.chdir(tmp_path)


def test_those_that_come_along_each_have_card_settings_program_and_readme() -> None:
    assert {"cosmoflow", "earthquake", "miniweather", "mnist"} <= set(program.names())
    for name in program.names():
        folder = program.folder_of(name)
        for file in ("card.jsonld", "settings.py", "schema.py", "benchmark.py", "README.md", "__init__.py"):
            assert (folder / file).is_file(), f"{name}/{file}"
        assert json.loads((folder / "card.jsonld").read_text())["command"].endswith(f" -m fairmile.benchmarks {name}")


def test_a_folder_runs_with_its_own_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([str(benchmark(tmp_path / "tides"))]) == 0
    assert capsys.readouterr().out == "height 1.5\n"


def test_two_folders_do_not_share_settings(tmp_path: Path) -> None:
    low, high = benchmark(tmp_path / "low", height=1), benchmark(tmp_path / "high", height=9)
    heights = [program.load(each, "settings").Settings().height for each in (low, high, low)]
    assert heights == [1, 9, 1]


def test_an_error_is_one_sentence_and_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAIRMILE_PARAMS", '{"hight": 3}')
    assert program.main([str(benchmark(tmp_path / "tides"))]) == 2
    assert capsys.readouterr().err == "error: no parameter named 'hight'\nhint: did you mean 'height'?\n"


def test_a_full_disk_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "def run(session):\n    with open('/dev/full', 'w') as stream:\n        stream.write('x' * 100_000)\n"
    assert program.main([str(benchmark(tmp_path / "tides", text=text))]) == 3
    told = capsys.readouterr().err
    assert "No space left on device" in told
    assert "hint: the disk is full" in told


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(NotFound, match="no benchmark named 'earthquak'") as caught:
        program.folder_of("earthquak")
    assert caught.value.hint == "did you mean 'earthquake'?"


def test_a_folder_without_a_card_is_none(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"is not a benchmark: it has no card\.jsonld"):
        program.folder_of(str(tmp_path))


def test_a_missing_package_is_told_with_what_installs_it(tmp_path: Path) -> None:
    folder = benchmark(tmp_path / "tides", text="import nosuchpackage\n")
    with pytest.raises(Unsupported, match="the benchmark tides needs nosuchpackage") as caught:
        program.load(folder, "benchmark")
    assert "fairmile[benchmarks]" in str(caught.value.hint)


def test_a_file_that_lacks_what_it_is_for_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([str(benchmark(tmp_path / "tides", text="height = 3"))]) == 2
    assert "benchmark.py defines no run\n" in capsys.readouterr().err


def test_a_file_that_fails_is_not_taken_for_a_whole_one_the_next_time(tmp_path: Path) -> None:
    folder = benchmark(tmp_path / "tides", text="def run(session): pass\nraise ValueError('broken')")
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            program.load(folder, "benchmark")
