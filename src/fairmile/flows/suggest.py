"""A flow proposed from the catalog: which programs prepare the data of a model, train it and evaluate it.

A program takes a role by the words of its name, title and keywords. Those that name the model or the data set, or are
named by them, go before those that only share their science. What a program reads is what its command asks for as
{inputs.NAME}; what it writes is the `output` of its card. Whatever the cards leave open is listed and marked in the
file. Where no program trains the model, a saved flow or a benchmark that pairs it with the data set does all of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairmile.base.errors import Conflict, NotFound
from fairmile.base.files import write_atomic
from fairmile.base.lazy import lazy, lazy_pattern
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_typed_dict import TypedDict
from fairmile.base.results import Result
from fairmile.base.words import slug

if TYPE_CHECKING:
    from fairmile.catalog.card import Card, as_list, id_of, text_of
    from fairmile.catalog.catalog import Catalog
    from fairmile.catalog.extract import links_of
    from fairmile.catalog.row import target_names
else:
    as_list = lazy("fairmile.catalog.card:as_list")
    id_of = lazy("fairmile.catalog.card:id_of")
    text_of = lazy("fairmile.catalog.card:text_of")
    links_of = lazy("fairmile.catalog.extract:links_of")
    target_names = lazy("fairmile.catalog.row:target_names")

# What each step does, by words; in the order of the steps.
_ROLES = {
    "preprocess": lazy_pattern(r"prepar|preproc|clean|binning|tokeni|augment|normali[sz]"),
    "train": lazy_pattern(r"train|fit\b|learn(?!ing)"),
    "evaluate": lazy_pattern(r"evaluat|validat|\btest|infer|predict|score"),
}
_OF_MODEL = lazy_pattern(r"model|weight|checkpoint|network")
_INPUT = lazy_pattern(r"\{inputs\.([\w-]+)\}")
_NAMED, _ALIKE = 2, 1  # what a statement and a common science are worth
_MOST = 1000
_WHOLE = "pipeline"  # the step that is a saved flow


class SuggestedStepDict(TypedDict):
    """A step with its program, and why it was chosen."""

    step: str
    program: str
    inputs: dict[str, str]
    outputs: list[str]
    reasons: list[str]


class SuggestionDict(TypedDict):
    """A proposed flow: its steps, what the cards leave open, and the text of its file."""

    model: str
    dataset: str
    steps: list[SuggestedStepDict]
    open: list[str]
    text: str
    file: str | None


@dataclass(frozen=True)
class SuggestedStep:
    """A step of the proposal."""

    step: str
    program: str
    inputs: dict[str, str]
    outputs: tuple[str, ...]
    reasons: tuple[str, ...]

    def to_dict(self) -> SuggestedStepDict:
        return {
            "step": self.step,
            "program": self.program,
            "inputs": self.inputs,
            "outputs": list(self.outputs),
            "reasons": list(self.reasons),
        }


@dataclass(frozen=True, repr=False)
class Suggestion(Result):
    """A flow that was proposed for a model and a data set."""

    model: str
    dataset: str
    steps: tuple[SuggestedStep, ...]
    open: tuple[str, ...]  # what somebody must still say
    file: Path | None = None

    @property
    def text(self) -> str:
        """The file of the flow."""
        lines = [
            f"# Proposed for {self.model} and {self.dataset}",
            f"name: {slug(self.model.split('/')[-1])}",
            "steps:",
        ]
        for each in self.steps:
            lines += [f"  # {reason}" for reason in each.reasons]
            lines += [f"  # to do: {line}" for line in self.open if line.startswith(f"{each.step}:")]
            lines.append(f"  {each.step}:")
            lines.append(f"    {'flow' if each.step == _WHOLE else 'run'}: {_quoted(each.program)}")
            if each.inputs:
                pairs = ", ".join(f"{name}: {_quoted(value)}" for name, value in each.inputs.items())
                lines.append(f"    inputs: {{{pairs}}}")
            if each.outputs:
                lines.append(f"    outputs: [{', '.join(map(_quoted, each.outputs))}]")
        return "\n".join(lines) + "\n"

    def summary(self) -> str:
        """Return the steps, and how much is left open."""
        steps = ", ".join(f"{each.step} by {each.program}" for each in self.steps)
        return f"{self.model} × {self.dataset}: {steps}" + (f"; {len(self.open)} to do" if self.open else "")

    def to_dict(self) -> SuggestionDict:
        """Return the steps, what is open, and the text."""
        return {
            "model": self.model,
            "dataset": self.dataset,
            "steps": [each.to_dict() for each in self.steps],
            "open": list(self.open),
            "text": self.text,
            "file": None if self.file is None else str(self.file),
        }


def suggest_flow(catalog: Catalog, model: str, dataset: str = "", output: Path | None = None) -> Suggestion:
    """Propose a flow for a model and a data set, the one that fits best if none is named; `output` gets its file."""
    if output is not None and output.exists():
        raise Conflict(f"{output} exists", hint="choose another name, or remove it")
    model_card = catalog.get(model, kind="model")
    dataset_card = catalog.get(dataset or _best_data(catalog, model), kind="dataset")
    steps, left = _Builder(catalog, model_card, dataset_card).build()
    if not steps:
        raise NotFound(
            f"no program of the catalog prepares, trains or evaluates {model_card.handle}",
            hint="the card of such a program has its `command`, and names the model in `mentions`",
        )
    suggestion = Suggestion(_short(model_card), _short(dataset_card), tuple(steps), tuple(left), output)
    if output is not None:
        write_atomic(output, suggestion.text)
    return suggestion


def _best_data(catalog: Catalog, model: str) -> str:
    matches = catalog.match(model=model, limit=1)
    if not matches:
        raise NotFound(f"no data set of the catalog fits {model}", hint="name one with --dataset")
    return matches[0].dataset


class _Builder:
    def __init__(self, catalog: Catalog, model: Card, dataset: Card) -> None:
        self._catalog, self._model, self._dataset = catalog, model, dataset
        self._open: list[str] = []

    def build(self) -> tuple[list[SuggestedStep], list[str]]:
        """Return the steps in their order, each with what those before it write, and what is left open."""
        ranked = self._ranked()
        steps: list[SuggestedStep] = []
        written: dict[str, Sequence[str]] = {}
        for role in _ROLES:
            best = max((each for each in ranked if role in each[2]), key=lambda each: each[0], default=None)
            if best is None:
                continue
            _, card, _, reasons = best
            outputs = _outputs(card)
            if not outputs and role != "evaluate":
                self._open.append(f"{role}: name the files that it writes under `outputs`")
            inputs = {name: self._source(role, name, written) for name in _input_names(card)}
            written[role] = outputs
            steps.append(SuggestedStep(role, _short(card), inputs, tuple(outputs), tuple(reasons)))
        if "train" not in written:
            for kind, step in (("workflow", _WHOLE), ("benchmark", "train")):
                if (whole := self._pairing(kind)) is not None:
                    reason = f"{_short(whole)} pairs the model with the data set; it prepares, trains and evaluates"
                    return [SuggestedStep(step, _short(whole), {}, (), (reason,))], []
        if steps and "train" not in written:
            self._open.append("no program of the catalog trains this model: add a step")
        return steps, self._open

    def _pairing(self, kind: str) -> Card | None:
        """Return a saved flow, or a benchmark, that names the model and the data set and can be run."""
        wanted = [set(target_names(each)) for each in (self._model, self._dataset)]
        for hit in self._catalog.find(kind, limit=_MOST):
            card = self._catalog.read(hit.row)
            targets = {target for _, target in links_of(card)}
            if card.get("mainEntity" if kind == "workflow" else "command") and all(targets & names for names in wanted):
                return card
        return None

    def _source(self, role: str, name: str, written: dict[str, Sequence[str]]) -> str:
        """Return what an input is: the model of the training, prepared data, or the data set itself."""
        if role == "evaluate" and _OF_MODEL.search(name.lower()) and "train" in written:
            return self._first(role, name, "train", written)
        if role != "preprocess" and "preprocess" in written:
            return self._first(role, name, "preprocess", written)
        return _short(self._model) if _OF_MODEL.search(name.lower()) and role == "evaluate" else _short(self._dataset)

    def _first(self, role: str, name: str, before: str, written: dict[str, Sequence[str]]) -> str:
        if written[before]:
            return written[before][0]
        self._open.append(f"{role}: say which file of {before} is the input {name}")
        return f"{before}-output"

    def _ranked(self) -> list[tuple[int, Card, list[str], list[str]]]:
        """Return programs with a command, what they are worth, the roles that their words say, and why."""
        ranked = []
        for card in self._programs():
            roles = _roles(card)
            worth, reasons = self._worth(card)
            if roles and worth and card.get("command"):
                ranked.append((worth, card, roles, reasons))
        return sorted(ranked, key=lambda each: str(each[1].handle))

    def _programs(self) -> Iterator[Card]:
        for hit in self._catalog.find("program", limit=_MOST):
            if not hit.row.gone:
                yield self._catalog.read(hit.row)

    def _worth(self, card: Card) -> tuple[int, list[str]]:
        worth, reasons = 0, []
        own = set(target_names(card))
        targets = {target for _, target in links_of(card)}
        for other, what in ((self._model, "model"), (self._dataset, "data set")):
            if targets & set(target_names(other)) or own & {target for _, target in links_of(other)}:
                worth += _NAMED
                reasons.append(f"{_short(card)} and the {what} name each other")
        if not reasons and (common := sorted(set(card.domains) & {*self._model.domains, *self._dataset.domains})):
            worth += _ALIKE
            reasons.append(f"{_short(card)} is for {', '.join(common)}, too")
        return worth, reasons


def _roles(card: Card) -> list[str]:
    words = " ".join([card.handle.name, card.title, *card.keywords]).lower()
    return [role for role, pattern in _ROLES.items() if pattern.search(words)][:1]


def _input_names(card: Card) -> list[str]:
    command = card.get("command")
    text = command if isinstance(command, str) else " ".join(map(str, as_list(command)))
    return list(dict.fromkeys(_INPUT.findall(text)))


def _outputs(card: Card) -> list[str]:
    return [name for value in as_list(card.get("output")) if (name := text_of(value) or id_of(value))]


def _short(card: Card) -> str:
    return f"{card.handle.kind}/{card.handle.name}"


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_./-]+", text) else json.dumps(text)
