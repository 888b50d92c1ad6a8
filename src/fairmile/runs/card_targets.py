"""What becomes a run: the card of an asset that says how it is run."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.placeholders import fill_words
from fairmile.base.words import slug
from fairmile.catalog.card import ENVIRONMENT_LINKS, Card, as_list
from fairmile.catalog.needs import environment_of
from fairmile.resolve import Word
from fairmile.runs.needs import declared_needs
from fairmile.runs.record.spec import MetricSpec
from fairmile.runs.record.values import Value
from fairmile.runs.runnable import Runnable, checked_spec, merged

if TYPE_CHECKING:
    from fairmile.catalog.catalog import Catalog

_DATA_LINKS = ("evaluationDataset", "input", "trainedOn", "acceptsDataset")
_INCLUDED = "{python} -m fairmile.benchmarks "  # of a benchmark whose program comes with Fairmile
_OWN_FOLDER = "{benchmark}"
_PROGRAM_LINKS = ("isBasedOn", "instrument", "evaluationSoftware", "hasPart")


def card_target(
    catalog: Catalog, card: Card, dataset: str, changes: Mapping[str, Any], file: Path | None = None
) -> Runnable:
    """Return what a card with a command means; one in a file needs not be in the catalog and runs beside that file."""
    command = changes.get("argv") or card.get("command")
    name = str(file or card.handle)
    if not command:
        raise UsageError(
            f"{name} cannot be run: its card has no `command`",
            hint=f"`fairmile run {name} -- COMMAND…` runs a command with its files",
        )
    argv = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    data = dataset or ("" if card.get("makesData") is True else _data_of(catalog, card))
    fields: dict[str, Any] = {
        "name": slug(card.handle.name)[:64] or "run",
        "argv": tuple(argv),
        "params": _hyperparameters(card),
        "metrics": _metrics(card),
        "outputs": tuple(str(each) for each in as_list(card.get("outputs"))),
    }
    sources = _sources(catalog, card) if file is None else _addresses(card) or _programs(catalog, card)
    if file is None:
        fields["asset"] = str(card.handle)
    elif any(_OWN_FOLDER in word for word in argv):  # the program lies beside the card, and works elsewhere
        beside = str(file.absolute().parent)
        fields |= {"argv": fill_words(argv, {"benchmark": beside}), "code": (beside,)}
    elif not sources:
        fields |= {"folder": str(file.absolute().parent), "code": (str(file.absolute()),)}
    if data:
        if Word(data).is_path:
            raise UsageError(
                f"{data} is a path, not a data set of the catalog", hint=f"--data data={data} gives a file or a folder"
            )
        fields["dataset"] = str(catalog.get(data).handle)
        fields["inputs"] = {"data": {"asset": fields["dataset"]}}
    bodies: list[Mapping[str, Any]] = [card.body]
    for place in (card,) if file is None else [to for key, to in card.links if key in ENVIRONMENT_LINKS]:
        if "environment" not in fields and (environment := environment_of(catalog, place)) is not None:
            fields["environment"] = str(card.handle) if place is card else place
            bodies.append(environment)
    if needs := declared_needs(bodies):
        fields["needs"] = needs
    declared = frozenset(fields["params"])
    return Runnable(checked_spec(merged(fields, changes)), sources, where=f"the command of {name}", declared=declared)


def _hyperparameters(card: Card) -> dict[str, Value]:
    stated = card.get("hyperparameters")
    return (
        {k: v for k, v in stated.items() if v is None or isinstance(v, str | int | float | bool)}
        if isinstance(stated, Mapping)
        else {}
    )


def _metrics(card: Card) -> dict[str, Any]:
    match = card.get("matchSpec")
    if not isinstance(match, Mapping) or not isinstance(match.get("metric"), str):
        return {}
    direction = match.get("direction")
    return {match["metric"]: MetricSpec(better=direction if direction in ("lower", "higher") else "")}


def _data_of(catalog: Catalog, card: Card) -> str:
    """Return the data set that a card names for itself, where it names exactly one that is there."""
    match = card.get("matchSpec")
    named = list(match.get("datasets", [])) if isinstance(match, Mapping) else []
    named += [target for key, target in card.links if key in _DATA_LINKS]
    assets = []
    for name in dict.fromkeys(named):
        try:
            assets.append(str(catalog.get(str(name), kind="dataset").handle))
        except (NotFound, UsageError):
            continue
    if len(assets) > 1:
        raise UsageError(f"{card.handle} needs a data set: {', '.join(assets)}", hint="name one of them after it")
    return assets[0] if assets else ""


def _sources(catalog: Catalog, card: Card) -> tuple[str, ...]:
    """Return what brings the files of a card's command: the card itself, or the programs that it links to."""
    if _INCLUDED in card.text("command"):
        return ()
    return (str(card.handle),) if card.files or card.text("codeRepository") else _programs(catalog, card)


def _programs(catalog: Catalog, card: Card) -> tuple[str, ...]:
    programs = []
    for key, target in card.links:
        with contextlib.suppress(NotFound, UsageError):
            if key in _PROGRAM_LINKS and (program := catalog.get(target)).kind == "program":
                programs.append(str(program.handle))
    return tuple(dict.fromkeys(programs))


def _addresses(card: Card) -> tuple[str, ...]:
    """Return where the files of a card lie that no catalog holds; those beside it need not be brought."""
    named = [card.text("codeRepository"), *(each.url or "" for each in card.files)]
    return tuple(dict.fromkeys(each for each in named if "://" in each or each.startswith("git@")))
