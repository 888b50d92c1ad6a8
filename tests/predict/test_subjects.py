"""What a prediction can be asked for, and what is said where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmile.base.errors import FairmileError, UsageError
from fairmile.predict.memory.descriptions import Transformer
from fairmile.predict.subjects import Subject, parameters_of, subject_of
from fairmile.resolve import Nouns, Target, resolve

GPT = "kind: transformer\nlayers: 2\nhidden: 64\nheads: 4\nvocab: 100\nseq: 16\nbatch: 2\n"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "step.py").write_text("")
    (tmp_path / "gpt.yaml").write_text(GPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def step_of(target: Target) -> Path:
    """Stand for the benchmarks, which have one step."""
    return Path("/suite/mnist/step.py")


def find_subject(word: str) -> Subject:
    return subject_of(resolve(word, Nouns(), for_="predict"), step_of)


def test_code_is_a_file_and_its_function(place: Path) -> None:
    assert find_subject("step.py:make_it") == Subject("step.py:make_it", place / "step.py", "make_it")


def test_the_function_is_build_where_none_is_named(place: Path) -> None:
    assert find_subject("./step.py") == Subject("./step.py", place / "step.py", "build")


@pytest.mark.parametrize(("content", "what"), [("", "is empty"), ("# nothing\n", "is empty"), ("- 1\n", "has no")])
def test_a_file_without_fields_describes_no_model(place: Path, content: str, what: str) -> None:
    (place / "gpt.yaml").write_text(content)
    with pytest.raises(UsageError, match=f"gpt.yaml is not a model description: it {what}"):
        find_subject("gpt.yaml")


def test_the_parameters_of_a_function_are_read_without_running_it(place: Path) -> None:
    (place / "step.py").write_text("import nosuch\n\ndef build(width, /, batch_size=8, *, scale=-1.0, names=()): ...\n")
    target = find_subject("step.py")
    assert parameters_of(target) == {"width": None, "batch_size": 8, "scale": None, "names": None}
    (place / "step.py").write_text("def build(:")
    assert parameters_of(target) == {}
    assert parameters_of(find_subject("gpt.yaml")) == {}


def test_a_colon_in_a_folder_is_no_function(place: Path) -> None:
    (place / "a:b").mkdir()
    (place / "a:b" / "step.py").write_text("")
    assert find_subject("a:b/step.py:other").file == place / "a:b" / "step.py"


def test_a_name_is_looked_up_and_its_batch_has_a_known_name() -> None:
    found = subject_of(Target("mnist", "benchmark"), step_of)
    assert (found.file, found.function, found.batch_argument) == (Path("/suite/mnist/step.py"), "build", "batch_size")
    assert find_subject("step.py").batch_argument == ""


def test_a_description_needs_no_code(place: Path) -> None:
    found = find_subject("gpt.yaml")
    assert (found.file, found.description) == (
        None,
        Transformer(layers=2, hidden=64, heads=4, vocab=100, seq=16, batch=2),
    )


def test_a_card_in_a_file_is_none(place: Path) -> None:
    (place / "card.json").write_text('{"@type": "SoftwareSourceCode"}')
    assert find_subject("card.json").file == Path("/suite/mnist/step.py")


@pytest.mark.parametrize(
    ("target", "written", "message"),
    [
        ("step.py:", None, "step.py:: '' is not a function name"),
        ("step.py:a-b", None, "step.py:a-b: 'a-b' is not a function name"),
        ("step.py:a:b", None, "step.py:a:b: 'a:b' is not a function name"),
        ("nosuch.py:build", None, "no such file: nosuch.py"),
        ("nosuch.yaml", None, "no such file: nosuch.yaml"),
        ("nosuch", None, "'nosuch' is not a file here, a benchmark or an asset of the catalog"),
        ("bad.yaml", b"\xff\xfe", "bad.yaml:1: is not UTF-8 text"),
        ("bad.yaml", b"kind: [", "bad.yaml:1"),
        ("bad.yaml", b"", "bad.yaml is not a model description: it is empty"),
        ("bad.json", b"[1]", "bad.json is not a model description: it has no fields"),
        ("bad.yaml", b"kind: mlp\nlayers: 2\n", "bad.yaml"),
        ("bad.yaml", GPT.replace("layers: 2", "layers: two").encode(), "bad.yaml:2 layers: Input should be"),
        ("bad.yaml", (GPT + "colour: red\n").encode(), "bad.yaml:8 colour: Extra inputs are not permitted"),
    ],
)
def test_what_names_nothing_is_told_in_one_sentence(
    place: Path, target: str, written: bytes | None, message: str
) -> None:
    if written is not None:
        (place / target).write_bytes(written)
    with pytest.raises(FairmileError) as told:
        find_subject(target)
    assert message in str(told.value)
    assert "\n" not in str(told.value)
