"""From steps to a graph: which step comes after which, and the nodes that a step over several values becomes.

Two passes, both over plain data:

1. `StepGraph` has an edge between two steps where one states the other in `after`, or looks at its metrics, or where an
   input may be an output. It is checked before anything starts: cycles, unknown names, outputs claimed twice.
2. `Expansion` makes the nodes of one step after the other, in order. A step over what an earlier step makes cannot be
   expanded before that one is done: it stays one node, whose values are unknown.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any

from fairmile.base.errors import FairmileError, InvalidDocument, Problem, UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.placeholders import fill_words, names_in
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.words import did_you_mean
from fairmile.flows.model import Flow, FromFiles, Step, metric_condition
from fairmile.runs.record.values import Value, value_text
from fairmile.sweeps.axes import values as axis_values
from fairmile.sweeps.filters import Filter

_NOT_NAMES = ("", ".", "..")
_WILD = lazy_pattern(r"[*?\[]")
_HOLE = lazy_pattern(r"\{[A-Za-z_][\w.-]*\}")
_OF_RUNS = lazy_pattern(r"inputs\.\w+|run|source|python|seed")
_MOST_NODES = 1_000_000
_OTHERS = ("shell", "run", "notebook")  # what a step may have in the place of a command
# Says in which line of the file a part of a step stands, such as ("clean", "inputs"); None where there is no file.
LineOf = Callable[[Sequence[str]], int | None]
Points = Callable[[str], Sequence[Mapping[str, Value]]]  # of a sweep file


@dataclass(slots=True)
class Node:
    """One step to execute, with the values it has where its step is repeated."""

    name: str
    step: str
    values: Mapping[str, Value]
    inputs: Mapping[str, str]  # name → path, pattern or asset
    outputs: tuple[str, ...]
    needs: list[str] = field(default_factory=list)  # the nodes that must have ended
    unknown: str = ""  # the step that must have run before the values of this one are known


# Says what a node has made, as paths of the flow; None where that is not known yet.
Made = Callable[[Node], Sequence[str] | None]


def is_wild(path: str) -> bool:
    """Tell whether a path is a pattern."""
    return _WILD.search(path) is not None


@lru_cache(maxsize=4096)
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(path))


def matches(pattern: str, path: str) -> bool:
    """Tell whether a path is one of a pattern, or lies in a folder that the pattern names."""
    if is_wild(pattern):
        return _pattern(pattern).match(path) is not None
    return path == pattern or path.startswith(f"{pattern.rstrip('/')}/")


def may_overlap(one: str, other: str) -> bool:
    """Tell whether two patterns may name the same path, or one a folder that holds the other."""
    if not is_wild(one) or not is_wild(other):
        literal, pattern = (one, other) if not is_wild(one) else (other, one)
        return matches(pattern, literal) or matches(literal, pattern)
    first, second = _WILD.split(one)[0], _WILD.split(other)[0]
    last, final = _WILD.split(one)[-1].lstrip("]"), _WILD.split(other)[-1].lstrip("]")
    begins = first.startswith(second) or second.startswith(first)
    return begins and (last.endswith(final) or final.endswith(last))


def holes_open(path: str) -> str:
    """Return a path with placeholders as a pattern of what it may become."""
    return _HOLE.sub("*", path)


def placed(folder: str, path: str) -> str:
    """Return a path of a step as seen from the folder of the flow."""
    if folder and ("/" in path or path in _NOT_NAMES):
        return os.path.normpath(os.path.join(folder, path))
    if folder:
        start = _normal(folder)
        return path if start == "." else f"{start.rstrip('/')}/{path}"
    return os.path.normpath(path) if "/" in path else path


_normal = lru_cache(maxsize=256)(os.path.normpath)


def _folder_of(path: str) -> str:
    return os.path.dirname(path) if "/" in path else ""


class _Outputs:
    """Finds who gives a path, among many paths and patterns."""

    def __init__(self) -> None:
        self._literal: dict[str, str] = {}
        self._below: dict[str, dict[str, None]] = {}  # by folder: who gives something in it
        self._wild: dict[str, list[tuple[str, str]]] = {}  # by the folder that a pattern begins with

    def add(self, path: str, owner: str) -> str:
        """Note an output, and return who has claimed the same one before; empty where nobody did."""
        folder = _folder_of(path)
        if is_wild(path):
            folder = _folder_of(_WILD.split(path)[0])
            claims = self._wild.setdefault(folder, [])
            before = next((each for pattern, each in claims if pattern == path), "")
            claims.append((path, owner))
        else:
            before = self._literal.setdefault(path, owner)
            before = "" if before is owner else before
        while owner not in (below := self._below.setdefault(folder, {})):
            below[owner] = None
            folder = _folder_of(folder)
        return before

    def givers(self, path: str) -> Iterator[str]:
        """Yield who gives a path, something that a pattern matches, or something in a folder."""
        if is_wild(path):
            yield from (owner for each, owner in self._literal.items() if matches(path, each))
            yield from (owner for each in self._wild.values() for wild, owner in each if may_overlap(path, wild))
            return
        folder = path
        while True:
            if folder in self._literal:
                yield self._literal[folder]
            yield from (owner for wild, owner in self._wild.get(folder, ()) if matches(wild, path))
            if folder in ("", "/"):
                break
            folder = _folder_of(folder)
        yield from self._below.get(path, ())

    def is_named(self, path: str) -> bool:
        """Tell whether somebody gives a path by its name, and not only by a pattern that may mean it."""
        folder = path
        while folder not in self._literal and folder not in ("", "/"):
            folder = _folder_of(folder)
        return folder in self._literal or path in self._below


class StepGraph:
    """The steps of a flow in an order in which they can run; `line_of` says where a part stands in a file."""

    def __init__(self, flow: Flow, *, file: str = "", line_of: LineOf = lambda _: None) -> None:
        self.flow = flow
        self._file, self._line_of = file, line_of
        self._problems: list[Problem] = []
        self._outputs = _Outputs()
        self._taken_by: dict[str, Mapping[str, tuple[set[str], list[str]]]] = {}
        self.fixed: dict[str, list[Node]] = {}  # the nodes of steps whose values the flow itself tells
        for name, step in flow.steps.items():
            self._check_names(name, step)
            self._claim(name, step)
        self.files: dict[str, set[str]] = {}  # by step: the steps whose outputs it takes
        self.before: dict[str, set[str]] = {}  # by step: all that it comes after
        for name, step in flow.steps.items():
            self.files[name] = self._takes_from(name, step)
            self.before[name] = self.files[name] | self._stated(name, step)
        self.order = self._ordered()
        if self._problems:
            raise InvalidDocument(sorted(self._problems, key=lambda each: each.line or 0))

    def node(self, name: str, values: Mapping[str, Value]) -> Node:
        """Return the node of a step with some values; what it needs is not known yet."""
        step = self.flow.steps[name]
        texts = {key: value_text(value) for key, value in {**self.flow.params, **step.params, **values}.items()}
        if not texts:
            return Node(name, name, values, step.inputs, step.outputs)
        inputs = step.inputs
        if any("{" in each for each in inputs.values()):
            inputs = dict(zip(inputs, fill_words(tuple(inputs.values()), texts), strict=True))
        label = f"[{','.join(texts[key] for key in values)}]" if values else ""
        return Node(f"{name}{label}", name, values, inputs, fill_words(step.outputs, texts))

    def _patterns(self, name: str, paths: Iterable[str]) -> Iterator[str]:
        """Yield paths of a step whose values are not known yet as patterns of what they may become."""
        step = self.flow.steps[name]
        over = step.over if not isinstance(step.over, str) else {}
        texts = {key: each.glob for key, each in over.items() if isinstance(each, FromFiles) and each.glob}
        texts |= {key: value_text(value) for key, value in {**self.flow.params, **step.params}.items()}
        for path in fill_words(tuple(paths), texts):
            yield placed(step.folder, holes_open(path))

    def _claim(self, name: str, step: Step) -> None:
        """Note the outputs of a step, and its nodes where they are known already."""
        try:
            if not isinstance(step.over, str) and not any(isinstance(each, FromFiles) for each in step.over.values()):
                lists = [axis_values(each, typed=True, where=f"over.{key}") for key, each in step.over.items()]
                self.fixed[name] = [
                    self.node(name, dict(zip(step.over, each, strict=True))) for each in product(*lists)
                ]
        except UsageError as error:
            self._complain(str(error), name, "over")
        nodes = self.fixed.get(name)
        own: dict[str, str] = {}
        if nodes is None:
            own = dict.fromkeys(self._patterns(name, step.outputs), "")
        for node in nodes or ():
            for output in node.outputs:
                path = placed(step.folder, output)
                if path in own and not is_wild(path):
                    message = f"{output!r} is an output of both {own[path]} and {node.name}: put a variable into it"
                    self._complain(message, name, "outputs")
                    return
                own[path] = node.name
        for path in own:
            if other := self._outputs.add(path, name):
                self._complain(f"{path!r} is also an output of {other!r}", name, "outputs")
                return

    def _taken(self, name: str, step: Step) -> Iterable[str]:
        """Return the paths that a step takes, as seen from the folder of the flow."""
        if name in self.fixed:
            return {placed(step.folder, each) for node in self.fixed[name] for each in node.inputs.values()}
        over = step.over if not isinstance(step.over, str) else {}
        paths = [each.path for each in over.values() if isinstance(each, FromFiles)]
        return set(self._patterns(name, [*step.inputs.values(), *paths]))

    def may_stay(self, name: str, path: str) -> bool:
        """Tell whether an output may stay on the system of its step: all steps that take it are there and name it.

        What no step takes is a result of the flow, and comes home. So does what `over` reads, and what is taken as a
        part of a folder.
        """
        step = self.flow.steps[name]
        if step.keep or not step.system:
            return False
        is_taken = False
        for other, (literal, wild) in self._takers(name).items():
            is_named = path in literal or any(matches(each, path) for each in wild)
            if not is_named and not any(str(folder) in literal for folder in PurePosixPath(path).parents):
                continue
            if not is_named or self.flow.steps[other].system != step.system or name in self.sources(other):
                return False
            is_taken = True
        return is_taken

    def _takers(self, name: str) -> Mapping[str, tuple[set[str], list[str]]]:
        """Return the steps that take outputs of another one, with the paths and the patterns that each takes."""
        if name not in self._taken_by:
            taken: dict[str, tuple[set[str], list[str]]] = {}
            for other in (each for each, files in self.files.items() if name in files):
                paths = set(self._taken(other, self.flow.steps[other]))
                taken[other] = (
                    {each for each in paths if not is_wild(each)},
                    [each for each in paths if is_wild(each)],
                )
            self._taken_by[name] = taken
        return self._taken_by[name]

    def sources(self, name: str) -> list[str]:
        """Return the steps that make the files from which the values of another one come."""
        step = self.flow.steps[name]
        over = step.over if not isinstance(step.over, str) else {}
        paths = self._patterns(name, [each.path for each in over.values() if isinstance(each, FromFiles)])
        return sorted({owner for path in paths for owner in self._outputs.givers(path)} - {name})

    def _check_names(self, name: str, step: Step) -> None:
        """Complain about placeholders that nothing defines."""
        files = (*step.outputs, *step.inputs.values(), *step.env.values())
        if not any("{" in word for word in (*step.command, step.shell, step.on, *files)):
            return
        variables = set(step.over) if not isinstance(step.over, str) else set()
        known = {*self.flow.params, *step.params, *variables, *(f"inputs.{each}" for each in step.inputs)}
        if isinstance(step.over, str):  # what a sweep file has is seen when it is read
            return
        texts = {"command": step.command, "shell": (step.shell,), "outputs": step.outputs, "on": (step.on,)}
        texts |= {"inputs": tuple(step.inputs.values()), "env": tuple(step.env.values())}
        for key, words in texts.items():
            for each in names_in(words, known.__contains__):
                text = "".join(part for part in each.parts if isinstance(part, str))
                if each.must and text not in known and not _OF_RUNS.fullmatch(text):
                    near = did_you_mean(text, known)
                    self._complain(f"nothing defines {{{text}}}{f'; {near}' if near else ''}", name, key)

    def _takes_from(self, name: str, step: Step) -> set[str]:
        takes: set[str] = set()
        for path in self._taken(name, step):
            givers = set(self._outputs.givers(path))
            if name in givers and not is_wild(path) and not self._outputs.is_named(path):
                givers.discard(name)  # a file or an asset that its own pattern happens to match was there before
            takes |= givers
        if name in takes:
            self._complain("it takes its own output as an input", name, "inputs")
            takes.discard(name)
        return takes

    def _stated(self, name: str, step: Step) -> set[str]:
        stated = set()
        for other in step.after:
            inner = [each for each in self.flow.steps if each.startswith(f"{other}/")]
            if other in self.flow.steps or inner:
                stated.update(inner or [other])
            else:
                self._complain(f"there is no step {other!r}{self._near(other)}", name, "after")
        if name in stated:
            self._complain("it comes after itself", name, "after")
            stated.discard(name)
        if condition := metric_condition(step):
            stated |= self._looked_at(name, condition)
        return stated

    def _looked_at(self, name: str, condition: str) -> set[str]:
        """Return the steps whose metrics a condition names."""
        try:
            filter = Filter(condition)
        except UsageError as error:
            self._complain(
                f"{error.message}: expected `failed`, `always` or a condition such as train.loss < 0.1", name, "when"
            )
            return set()
        steps = set()
        for each in filter.names:
            step = next((other for other in self.flow.steps if each.startswith(f"{metric_word(other)}.")), "")
            if step:
                steps.add(step)
            else:
                near = self._near(each.rpartition(".")[0]) if "." in each else ""
                self._complain(f"{each!r} names no metric of a step: write STEP.METRIC{near}", name, "when")
        return steps

    def _ordered(self) -> list[str]:
        try:
            return list(TopologicalSorter(self.before).static_order())
        except CycleError as error:
            cycle = list(reversed(error.args[1]))
            self._complain(f"steps wait for each other: {' → '.join(cycle)}", cycle[0])
            return []

    def _near(self, name: str) -> str:
        near = did_you_mean(name, self.flow.steps)
        return f"; {near}" if near else ""

    def _complain(self, message: str, step: str, key: str = "") -> None:
        self._problems.append(self.problem(message, step, key))

    def problem(self, message: str, step: str, key: str = "", *, hint: str = "") -> Problem:
        """Return what is wrong with a step, or with one of its keys, and in which line."""
        place = [step, key] if key else [step]
        return Problem(message, ".".join(["steps", *place]), file=self._file, line=self._line_of(place), hint=hint)


def metric_word(step: str) -> str:
    """Return the name by which conditions call a step: what cannot stand in a name is an underscore."""
    return re.sub(r"\W", "_", step)


class Expansion:
    """Makes nodes of steps, which must be asked for in order; `points` reads a sweep file. Paths begin in `folder`."""

    def __init__(self, graph: StepGraph, folder: Path, points: Points) -> None:
        self._graph, self._folder, self._points = graph, folder, points
        self._of: dict[str, list[Node]] = {}
        self._outputs: dict[str, _Outputs] = {}  # of the nodes of each step
        self._count = 0

    def nodes(self, name: str, made: Made) -> list[Node]:
        """Return the nodes of a step, which are remembered for those that come after it."""
        graph = self._graph
        step = graph.flow.steps[name]
        nodes = graph.fixed.get(name)
        if nodes is None:
            waits = self._unknown(name, made)
            if waits:
                nodes = [Node(name, name, {}, step.inputs, step.outputs, unknown=waits)]
            else:
                nodes = [graph.node(name, values) for values in self._values(name, step, made)]
        self._count += len(nodes)
        if self._count > _MOST_NODES:
            raise UsageError(f"more than {_MOST_NODES:,} steps after `over`: split the flow")
        self._of[name] = nodes
        others = sorted(graph.before[name])
        whole = [other for other in others if len(self._of[other]) == 1 or other not in graph.files[name]]
        whole += [
            other for other in others if any(other == each or other.startswith(f"{each}/") for each in step.after)
        ]
        if name not in graph.fixed:  # its values are known when all nodes that make them are done
            whole += graph.sources(name)
        needs = dict.fromkeys(each.name for other in dict.fromkeys(whole) for each in self._of[other])
        parts = [self._index(other) for other in others if other not in whole]
        for node in nodes:
            node.needs = self._needs(node, step, needs, parts)
        return nodes

    def _needs(self, node: Node, step: Step, needs: Mapping[str, None], parts: Sequence[_Outputs]) -> list[str]:
        if not parts:
            return list(needs)
        own = dict(needs)
        for path in node.inputs.values():
            for outputs in parts:
                own |= dict.fromkeys(outputs.givers(placed(step.folder, path)))
        return list(own)

    def _index(self, name: str) -> _Outputs:
        """Return who of the nodes of a step gives what."""
        if name not in self._outputs:
            self._outputs[name] = _Outputs()
            folder = self._graph.flow.steps[name].folder
            for node in self._of[name]:
                for output in node.outputs:
                    self._outputs[name].add(placed(folder, output), node.name)
        return self._outputs[name]

    # Values

    def _unknown(self, name: str, made: Made) -> str:
        """Return a step that must run before the values of another one are known; empty where they are."""
        for other in self._graph.sources(name):
            if any(node.unknown or made(node) is None for node in self._of[other]):
                return other
        return ""

    def _values(self, name: str, step: Step, made: Made) -> Iterator[Mapping[str, Value]]:
        if isinstance(step.over, str):
            yield from self._points(os.path.join(self._folder, step.folder, step.over))
            return
        files = [path for other in self._graph.sources(name) for node in self._of[other] for path in made(node) or ()]
        lists = [
            self._from_files(name, step, each, files)
            if isinstance(each, FromFiles)
            else axis_values(each, typed=True, where=f"steps.{name}.over.{key}")
            for key, each in step.over.items()
        ]
        for combination in product(*lists):
            yield dict(zip(step.over, combination, strict=True))

    def _from_files(self, name: str, step: Step, source: FromFiles, made: Sequence[str]) -> list[Value]:
        """Return the values that files give, as paths that begin in the folder of the step."""
        root = os.path.join(self._folder, step.folder)
        if source.glob:
            own = [os.path.relpath(os.path.join(self._folder, each), root) for each in made]
            names: Sequence[Value] = own or glob.glob(source.glob, root_dir=root, recursive=True)
            if not names and not self._graph.sources(name):
                message = f"no file matches {source.glob}, and no step gives one"
                raise InvalidDocument([self._graph.problem(message, name, "over")])
            return sorted((each for each in names if not own or matches(source.glob, str(each))), key=str)
        path = os.path.join(root, source.path)
        try:
            text = Path(path).read_text(encoding="utf-8")
            listed: Any = json.loads(text) if source.json_ else [line for line in text.splitlines() if line.strip()]
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            message = f"cannot read the values in {path}: {why}"
            raise InvalidDocument([self._graph.problem(message, name, "over")]) from error
        if not isinstance(listed, list):
            hint = "write a JSON list of texts or numbers"
            raise InvalidDocument([self._graph.problem(f"{path} holds no list", name, "over", hint=hint)])
        return axis_values(listed, typed=False, where=f"steps.{name}.over: {path}") if listed else []


def check_steps(graph: StepGraph, checks: Mapping[str, Callable[[str, Step], None]]) -> None:
    """Raise all that checks of single steps raise, each with the place of its field; nothing is checked twice."""
    problems = []
    for name in graph.order:
        step = graph.flow.steps[name]
        for key, check in checks.items():
            try:
                check(name, step)
            except FairmileError as error:
                own = next((each for each in _OTHERS if key == "command" and getattr(step, each)), key)
                problems.append(graph.problem(str(error), name, own, hint=error.hint or ""))
    if problems:
        raise InvalidDocument(problems)
