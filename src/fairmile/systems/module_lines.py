"""Shell lines that set up modules: what each does, and the lines of several frameworks as one sequence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from fairmile.base.errors import Conflict
from fairmile.base.quick_dataclass import dataclass

Effect = Literal["purge", "use", "load", "unload", "other"]

_LOAD = frozenset(("load", "add", "try-load", "try-add", "load-any"))
_UNLOAD = frozenset(("unload", "del", "delete", "rm", "remove"))
_USE = frozenset(("use", "unuse"))
_STAGES = frozenset(("stages", "lumi", "stdenv"))
_APART = "put them into two scripts, or make a software set for both in a file of your own"
# A module system keeps one member of each family: loading a second one throws out the first and what was built on it.
_FAMILIES = {
    "compiler": frozenset(
        ("gcc", "nvhpc", "intel", "intel-compilers", "clang", "llvm", "aocc", "pgi", "xl", "nvidia-compilers")
    ),
    "MPI": frozenset(
        ("openmpi", "parastationmpi", "psmpi", "intelmpi", "impi", "intel-mpi", "mpich", "mvapich2", "cray-mpich")
    ),
}


@dataclass(frozen=True)
class ModuleLine:
    """One line of a script as far as modules are concerned."""

    text: str
    effect: Effect
    loads: tuple[str, ...] = ()
    unloads: tuple[str, ...] = ()
    start: str = ""  # what stands before the names, such as `ml` or `module load`

    def without(self, modules: Iterable[str]) -> ModuleLine:
        """Return the line that loads only what is not among `modules`."""
        gone = set(modules)
        left = [f"-{name}" for name in self.unloads] + [name for name in self.loads if name not in gone]
        return read_line(" ".join([self.start, *left]))


def read_line(text: str) -> ModuleLine:
    """Return what a shell line does with modules; a line that does more than one command is `other`."""
    words = text.split()
    if not words or words[0] not in ("ml", "module") or re.search(r"[;&|`<>#]|\$\(", text):
        return ModuleLine(text, "other")
    at = 1
    while at < len(words) and words[at].startswith("--"):
        at += 1
    verb = words[at] if at < len(words) else ""
    if verb in ("purge", "reset"):
        return ModuleLine(text, "purge")
    if verb in _USE:
        return ModuleLine(text, "use")
    if verb in _LOAD or verb in _UNLOAD:
        names, start = words[at + 1 :], " ".join(words[: at + 1])
        return _naming(text, start, names, unloading=verb in _UNLOAD)
    if words[0] == "ml" and verb and verb not in ("swap", "switch", "list", "save", "restore", "avail", "spider"):
        return _naming(text, " ".join(words[:at]), words[at:])
    return ModuleLine(text, "other")


def _naming(text: str, start: str, names: Sequence[str], *, unloading: bool = False) -> ModuleLine:
    gone = tuple(name.removeprefix("-") for name in names if unloading or name.startswith("-"))
    loads = () if unloading else tuple(name for name in names if not name.startswith("-"))
    if not names:
        return ModuleLine(text, "other")
    return ModuleLine(text, "load" if loads else "unload", loads, gone, start)


def merge(sets: Sequence[tuple[str, Sequence[str]]]) -> tuple[list[str], list[str]]:
    """Return the lines that serve every framework at once, and what had to be decided, in sentences.

    `sets` are (framework, its lines). Each framework's lines keep their order; what several have comes once. Lines
    that cannot stand together raise Conflict with both frameworks named. Identical lines are taken as they are.
    """
    different = {tuple(lines) for _, lines in sets if lines}
    if len(different) <= 1:
        return list(next(iter(different), ())), []
    parsed = [(name, [read_line(line) for line in lines]) for name, lines in sets if lines]
    _refuse_contradictions(parsed)
    head: list[ModuleLine] = []
    body: list[ModuleLine] = []
    tail: list[ModuleLine] = []
    for name, lines in parsed:
        first, middle, last = _sections(lines)
        for whole, part in ((head, first), (body, middle), (tail, last)):
            _weave(whole, part, name)
    return [line.text for line in (*_purged_once(head), *_each_once(body), *tail)], _decisions(parsed)


def _sections(lines: list[ModuleLine]) -> tuple[list[ModuleLine], list[ModuleLine], list[ModuleLine]]:
    """Return what comes before the first module is loaded, the loading, and what is thrown out at the end.

    Another framework's purge would undo loading that came before it, and another's loading would bring back what
    was thrown out: so the first parts of all come first and the last parts last.
    """
    start = next((at for at, line in enumerate(lines) if line.effect == "load"), len(lines))
    end = len(lines)
    while end > start and lines[end - 1].effect == "unload":
        end -= 1
    return lines[:start], lines[start:end], lines[end:]


def _weave(whole: list[ModuleLine], part: list[ModuleLine], name: str) -> None:
    """Bring the lines of one more framework into the lines so far; neither loses its order."""
    pending: list[ModuleLine] = []
    cursor = 0
    for line in part:
        place = _same_place(whole, line)
        if place is None:
            pending.append(line)
            continue
        if place < cursor:
            raise Conflict(
                f"the line {line.text!r} of {name} comes before {whole[cursor - 1].text!r} in another framework's "
                f"lines and after it in its own",
                hint=_APART,
            )
        if set(whole[place].loads) < set(line.loads):
            whole[place] = line
        whole[place:place] = pending
        cursor = place + len(pending) + 1
        pending = []
    whole += pending


def _same_place(whole: list[ModuleLine], line: ModuleLine) -> int | None:
    """Return where the line stands already, or one that loads all that it loads, or part of it and nothing else."""
    for place, each in enumerate(whole):
        if each.text == line.text:
            return place
    for place, each in enumerate(whole):
        if each.effect == line.effect == "load" and not (each.unloads or line.unloads):
            ours, theirs = set(each.loads), set(line.loads)
            if ours <= theirs or theirs <= ours:
                return place
    return None


def _each_once(lines: list[ModuleLine]) -> list[ModuleLine]:
    """Return the lines without modules that are loaded already: loading a stage anew resets what it gives."""
    loaded: set[str] = set()
    kept: list[ModuleLine] = []
    for line in lines:
        if line.effect == "purge":
            loaded.clear()
        known = loaded.intersection(line.loads)
        if not known:
            kept.append(line)
        elif known != set(line.loads) or line.unloads:
            kept.append(line.without(known))
        loaded.update(line.loads)
        loaded.difference_update(line.unloads)
    return kept


def _purged_once(head: list[ModuleLine]) -> list[ModuleLine]:
    """Return the first lines with one purge, the most thorough, before any place for modules is named."""
    purges = [line for line in head if line.effect == "purge"]
    if not purges:
        return head
    strongest = next((line for line in purges if "--force" in line.text.split()), purges[0])
    rest = [line for line in head if line.effect != "purge"]
    at = next((place for place, line in enumerate(rest) if line.effect == "use"), len(rest))
    return [*rest[:at], strongest, *rest[at:]]


def _decisions(parsed: Sequence[tuple[str, list[ModuleLine]]]) -> list[str]:
    purging = [name for name, lines in parsed if any(line.effect == "purge" for line in lines)]
    others = [name for name, _ in parsed if name not in purging]
    if not purging or not others:
        return []
    verb = "begin" if len(purging) > 1 else "begins"
    return [f"{_and(purging)} {verb} with a purge, {_and(others)} not: the purge comes first for all."]


def _refuse_contradictions(parsed: Sequence[tuple[str, list[ModuleLine]]]) -> None:
    by_name: dict[str, tuple[str, str]] = {}
    by_family: dict[str, tuple[str, str]] = {}
    gone: dict[str, str] = {}
    for framework, lines in parsed:
        own: dict[str, tuple[str, str]] = {}
        own_families: dict[str, tuple[str, str]] = {}
        for module in (module for line in lines for module in line.loads):
            name = module_name(module)
            _compare(by_name.get(name), module, framework, "only one version of a module is loaded")
            family = _family(name)
            held = by_family.get(family) if family else None
            if held is not None and module_name(held[0]) != name:
                _compare(held, module, framework, f"only one {family} is loaded")
            if name in gone or module in gone:
                other = gone.get(name) or gone[module]
                raise Conflict(f"{framework} loads {module}, which {other} unloads", hint=_APART)
            own[name] = (module, framework)
            if family:
                own_families[family] = (module, framework)
        for module in (module for line in lines for module in line.unloads):
            held = by_name.get(module_name(module))
            if held is not None and module in (held[0], module_name(held[0])):
                raise Conflict(f"{framework} unloads {module}, which {held[1]} loads", hint=_APART)
            gone[module] = framework
        by_name |= own
        by_family |= own_families


def _compare(held: tuple[str, str] | None, module: str, framework: str, why: str) -> None:
    if held is not None and held[0] != module:
        if module_name(module).casefold() in _STAGES:
            why = "a script has one stage"
        raise Conflict(f"{held[1]} loads {held[0]} and {framework} loads {module}: {why}", hint=_APART)


def module_name(module: str) -> str:
    """Return the name of a module without its version: `GCC` of `GCC/11.2.0`."""
    return module.rpartition("/")[0] or module


def _family(name: str) -> str:
    folded = name.casefold()
    if folded.startswith("prgenv-"):
        return "compiler"
    return next((family for family, members in _FAMILIES.items() if folded in members), "")


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
