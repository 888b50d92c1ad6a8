"""Module blocks: the lines between `# MODULES BEGIN system software…` and `# MODULES END`, made and kept up to date."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Protocol, TypedDict

from fairmile.base.errors import Conflict, InvalidDocument, NotFound, Problem, UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.words import did_you_mean
from fairmile.systems.headers import Header, refusals
from fairmile.systems.model import Partition, SoftwareSet, System
from fairmile.systems.module_lines import merge

BEGIN = "# MODULES BEGIN"
END = "# MODULES END"
_MARKER = lazy_pattern(r"(?P<indent>[ \t]*)#[ \t]*MODULES[ \t]+(?:BEGIN(?P<words>(?:[ \t][^\r\n]*)?)|END[ \t]*)\r?\n?")


class Known(Protocol):
    """Where systems are looked up by name."""

    def __getitem__(self, name: str) -> System: ...


class BlockNameDict(TypedDict):
    """The system and software that a module block names."""

    system: str
    software: list[str]


class BlockDict(BlockNameDict):
    """A module block as JSON; `text` has the two markers, `lines` do not."""

    text: str
    lines: list[str]
    notes: list[str]


class EvaluationDict(TypedDict):
    """How a script changes, as JSON."""

    file: str
    changed: bool
    written: bool
    diff: str
    blocks: list[BlockNameDict]
    notes: list[str]


@dataclass(frozen=True, repr=False)
class Block(Result):
    """A module block, and what its reader should know: one sentence each."""

    system: str
    software: tuple[str, ...]
    lines: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The block with its two markers, each line ended."""
        return "".join(f"{line}\n" for line in (self.begin, *self.lines, END))

    @property
    def begin(self) -> str:
        return " ".join([BEGIN, self.system, *self.software])

    def to_dict(self) -> BlockDict:
        """Return the block as `fairmile system modules --json` prints it."""
        return {
            "system": self.system,
            "software": list(self.software),
            "text": self.text,
            "lines": list(self.lines),
            "notes": list(self.notes),
        }

    def summary(self) -> str:
        """Return the system, the software and the lines."""
        return f"{' '.join([self.system, *self.software])}: {'; '.join(self.lines)}"


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """A script with its blocks updated, and how it differs from before; `written` says whether its file was changed."""

    text: str
    diff: str
    changed: bool
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]
    file: str = ""
    written: bool = False

    def to_dict(self) -> EvaluationDict:
        """Return the changes as `fairmile system eval --json` prints them."""
        return {
            "file": self.file,
            "changed": self.changed,
            "written": self.written,
            "diff": self.diff,
            "blocks": [{"system": block.system, "software": list(block.software)} for block in self.blocks],
            "notes": list(self.notes),
        }

    def summary(self) -> str:
        """Return the file and whether it changes."""
        verdict = "written" if self.written else "would change" if self.changed else "is up to date"
        return f"{self.file or 'the script'} {verdict}: {len(self.blocks)} blocks"


def module_block(system: System, software: Sequence[str], partition: str = "") -> Block:
    """Return the block that sets up `software` on a system, for a partition or where its jobs go by default.

    The lines are those of the system's file, whatever published rules say; the notes tell where they disagree.
    Lines of several frameworks are merged; those that cannot stand together raise Conflict.
    """
    names = tuple(dict.fromkeys(software))
    if not names:
        raise UsageError("a module block needs at least one framework", hint=_has(system))
    for name in names:
        if twin := next((other for other in names if other != name and framework_of(other) == framework_of(name)), ""):
            raise UsageError(f"{name} and {twin} are variants of one framework", hint="name one of them")
    chosen = choose_sets(system, names, partition)
    lines, decisions = merge([(name, each.lines) for name, each in zip(names, chosen, strict=True)])
    notes = [note for name, each in zip(names, chosen, strict=True) for note in _about(system, name, each, partition)]
    return Block(system.name, names, tuple(lines), tuple(dict.fromkeys([*_trust(system), *decisions, *notes])))


def choose_sets(system: System, software: Sequence[str], partition: str = "") -> list[SoftwareSet]:
    """Return one software set for each framework, the first that fit the partition, or one another's partitions.

    `FRAMEWORK:VARIANT` takes that variant alone.
    """
    if partition and partition not in system.partitions:
        raise _unknown("partition", partition, system, list(system.partitions))
    candidates: list[list[SoftwareSet]] = []
    for name in software:
        known = _sets_of(system, name)
        sets = [each for each in known if not partition or _fits(each, partition)]
        if not sets:
            places = dict.fromkeys(place for each in known for place in each.partitions)
            raise Conflict(
                f"{name} on {system.name} is available for {', '.join(places)}, not for partition {partition!r}",
                hint="name one of these partitions, or none",
            )
        candidates.append(sets)
    for sets_together in itertools.product(*candidates):
        if any(all(_fits(each, place) for each in sets_together) for place in system.partitions):
            return list(sets_together)
    homes = "; ".join(f"{name} runs on {_places(sets)}" for name, sets in zip(software, candidates, strict=True))
    raise Conflict(f"no partition of {system.name} has all of {', '.join(software)}: {homes}")


def newer_variants(system: System, word: str, chosen: SoftwareSet) -> list[str]:
    """Return the words of variants whose lines are newer than the chosen ones and work on the same partition."""
    name = framework_of(word)
    return [
        f"{name}:{variant}"
        for variant, each in system.variants(name).items()
        if each.dated > chosen.dated and (not chosen.partition or _fits(each, chosen.partition))
    ]


def framework_of(word: str) -> str:
    """Return the framework of `FRAMEWORK` or `FRAMEWORK:VARIANT`."""
    return word.partition(":")[0]


def _sets_of(system: System, word: str) -> Sequence[SoftwareSet]:
    """Return the software sets that a word means; NotFound where there are none."""
    name, colon, variant = word.partition(":")
    if name not in system.software:
        raise _unknown("software", name, system, list(system.software))
    if not colon:
        return system.software[name]
    variants = system.variants(name)
    if variant not in variants:
        near = did_you_mean(variant, variants)
        raise NotFound(
            f"{name} on {system.name} has no variant {variant!r}" + (f"; {near}" if near else ""),
            hint=f"its variants: {', '.join(variants)}",
        )
    return [variants[variant]]


def _fits(each: SoftwareSet, partition: str) -> bool:
    return not each.partitions or partition in each.partitions


def _places(sets: Sequence[SoftwareSet]) -> str:
    return ", ".join(dict.fromkeys(place for each in sets for place in each.partitions)) or "every partition"


def _unknown(kind: str, name: str, system: System, known: list[str]) -> NotFound:
    near = did_you_mean(name, known)
    hint = _has(system) if kind == "software" else f"its partitions: {', '.join(known)}"
    return NotFound(f"no {kind} {name!r} on {system.name}" + (f"; {near}" if near else ""), hint=hint)


def _has(system: System) -> str:
    if not system.software:
        return f"no software is registered for {system.name}; add it to a system file of your own"
    return f"{system.name} has: {', '.join(system.software)}"


def _trust(system: System) -> Iterator[str]:
    if system.retired:
        yield f"{system.name} was retired on {system.retired}."
    if system.verified is None:
        yield f"The description of {system.name} is unverified."


def _about(system: System, word: str, chosen: SoftwareSet, partition: str) -> Iterator[str]:
    name, colon, _ = word.partition(":")
    sets, variants = system.software[name], system.variants(name)
    rivals = {
        variant: each
        for variant, each in variants.items()
        if not colon and each is not chosen and (not partition or _fits(each, partition))
    }
    if rivals:
        own = next(variant for variant, each in variants.items() if each is chosen)
        yield f"{name} on {system.name} has {len(sets)} variants; used: {own}, {_known_by(chosen)}."
        yield from (f"Not used: {name}:{variant}, {_known_by(each)}." for variant, each in rivals.items())
    if not chosen.lines:
        yield f"{name} needs no modules on {system.name}."
    if chosen.container:
        command = " ".join(chosen.container)
        yield f"{name} on {system.name} is in a container: job scripts start programs with `{command}`."
    if _doubted(system, name, sets.index(chosen)):
        yield f"The lines of {name} on {system.name} are unverified."
    for sentence in chosen.disagrees:
        yield f"{name} on {system.name}: {sentence} Fairmile follows the system's file."
    if chosen.note:
        yield f"{name} on {system.name}: {chosen.note}"
    if chosen.age:
        yield (
            f"The lines of {name} on {system.name} are {chosen.age}."
            f" `fairmile system report {system.name}` there shows which modules changed."
        )


def _known_by(each: SoftwareSet) -> str:
    facts = [f"for {', '.join(each.partitions)}" if each.partitions else "", each.note.rstrip("."), each.source]
    return "; ".join(filter(None, facts)) or "for every partition"


def _doubted(system: System, name: str, place: int) -> bool:
    return any(system.is_unverified(f"software.{name}{at}.lines") for at in ("", f"[{place}]"))


# Scripts


@dataclass(frozen=True)
class _Span:
    """A block as it stands in a script: the first and the last of its lines, counted from 0."""

    first: int
    last: int
    indent: str
    system: str
    software: tuple[str, ...]


def evaluate(
    text: str,
    systems: Known,
    *,
    to: str = "",
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    partition: str = "",
    file: str = "",
) -> Evaluation:
    """Return a script with each of its module blocks as it ought to be today.

    `to` moves every block to another system, `add` and `remove` change the software they name. Without `partition`
    the one that the script's own `#SBATCH` lines ask for is taken where it is known. Nothing outside the markers is
    changed; with `to`, the notes tell which of the lines there the new system would refuse. Markers that do not
    pair, and names that are not known, raise InvalidDocument with every such line.
    """
    mark = "\ufeff" if text.startswith("\ufeff") else ""  # before the first line, and no part of it
    lines = _lines(text.removeprefix(mark))
    spans = _spans(lines, file)
    if not spans:
        raise UsageError(
            f"{file or 'the script'} has no module block",
            hint=f"insert the output of `fairmile system modules SYSTEM SOFTWARE` where the modules belong ({BEGIN} …)",
        )
    _refuse_absent(remove, spans, file)
    inside = {at for span in spans for at in range(span.first, span.last + 1)}
    header = Header.read([(at + 1, line) for at, line in enumerate(lines) if at not in inside])
    blocks: list[Block] = []
    notes: list[str] = []
    problems: list[Problem] = []
    for span in spans:
        try:
            system = systems[to or span.system]
            names = _wanted(span, add, remove)
            block, remarks = _block_for(system, names, partition, header)
        except (NotFound, Conflict, UsageError) as error:
            if isinstance(error, InvalidDocument):
                raise
            problems.append(Problem(str(error), file=file, line=span.first + 1, hint=error.hint or ""))
            continue
        blocks.append(block)
        notes += [*remarks, *block.notes, *_already(span, add)]
    if problems:
        raise InvalidDocument(problems)
    if to:
        notes += refusals(header, systems[to], _partition_of(systems[to], blocks[0], partition, header))
    changed = mark + "".join(_replaced(lines, spans, blocks))
    diff = _diff(text, changed, file)
    return Evaluation(changed, diff, changed != text, tuple(blocks), tuple(dict.fromkeys(notes)), file)


def _lines(text: str) -> list[str]:
    """Return the lines with their ends; only a line feed ends one."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def _spans(lines: Sequence[str], file: str) -> list[_Span]:
    spans: list[_Span] = []
    problems: list[Problem] = []
    begun: tuple[int, str, list[str]] | None = None
    for at, line in enumerate(lines):
        marker = _MARKER.fullmatch(line)
        if marker is None:
            continue
        if marker["words"] is not None:
            if begun is not None:
                message = f"a module block begins inside the one that began in line {begun[0] + 1}"
                problems.append(Problem(message, file=file, line=at + 1, hint=f"end the first one with '{END}'"))
            begun = at, marker["indent"], marker["words"].split()
            if not begun[2]:
                message = "the marker names no system"
                problems.append(Problem(message, file=file, line=at + 1, hint=f"write '{BEGIN} SYSTEM SOFTWARE…'"))
        elif begun is None:
            message = "a module block ends here that was not started"
            problems.append(
                Problem(message, file=file, line=at + 1, hint="remove the line, or add the missing marker above")
            )
        else:
            first, indent, words = begun
            spans.append(_Span(first, at, indent, "".join(words[:1]), tuple(words[1:])))
            begun = None
    if begun is not None:
        message = "the module block has no end"
        problems.append(Problem(message, file=file, line=begun[0] + 1, hint=f"add '{END}' after its last line"))
    if problems:
        raise InvalidDocument(problems)
    return spans


def _refuse_absent(remove: Sequence[str], spans: Sequence[_Span], file: str) -> None:
    named = dict.fromkeys(each for span in spans for name in span.software for each in (name, framework_of(name)))
    for name in remove:
        if name not in named:
            near = did_you_mean(name, named)
            raise NotFound(
                f"no module block of {file or 'the script'} names {name!r}, so it cannot be removed"
                + (f"; {near}" if near else ""),
                hint=f"named there: {', '.join(named) or 'nothing'}",
            )


def _wanted(span: _Span, add: Sequence[str], remove: Sequence[str]) -> list[str]:
    chosen = {framework_of(name) for name in add if ":" in name}
    kept = [name for name in span.software if framework_of(name) not in chosen]
    names = [name for name in dict.fromkeys((*kept, *add)) if not {name, framework_of(name)} & {*remove}]
    if not names and span.software:
        raise UsageError("nothing would be left in the block", hint="delete the block instead, or add other software")
    if not names:
        raise UsageError("the marker names no software", hint=f"write '{BEGIN} {span.system} SOFTWARE…'")
    return names


def _already(span: _Span, add: Sequence[str]) -> Iterator[str]:
    for name in add:
        if name in span.software:
            yield f"The block in line {span.first + 1} names {name} already."


def _block_for(system: System, names: Sequence[str], partition: str, header: Header) -> tuple[Block, list[str]]:
    if partition or header.partition not in system.partitions:
        return module_block(system, names, partition), []
    try:
        block = module_block(system, names, header.partition)
    except Conflict:
        # Names that are not known and lines that cannot stand together raise here as well.
        block = module_block(system, names)
        line = f"Line {header.partition_line} requests {header.partition}"
        remark = f"{line}, for which these lines are unverified."
        return block, [remark]
    plain = module_block(system, names)
    remark = f"The lines are those for {header.partition}, which line {header.partition_line} requests."
    return block, [remark] if plain.lines != block.lines else []


def _partition_of(system: System, block: Block, partition: str, header: Header) -> tuple[str, Partition] | None:
    """Return the partition that the jobs of a moved script go to."""
    chosen = partition or (header.partition if header.partition in system.partitions else "")
    if not chosen:
        homes = [each.partition for each in choose_sets(system, block.software)]
        chosen = next(filter(None, homes), system.default_partition)
    return (chosen, system.partitions[chosen]) if chosen else None


def _replaced(lines: Sequence[str], spans: Sequence[_Span], blocks: Sequence[Block]) -> Iterator[str]:
    at = 0
    for span, block in zip(spans, blocks, strict=True):
        yield from lines[at : span.first]
        begin, end = lines[span.first], lines[span.last]
        ending = begin[len(begin.rstrip("\r\n")) :]
        yield from (f"{span.indent}{line}{ending}" for line in (block.begin, *block.lines))
        # The last line of a file may have no end, and keeps having none.
        yield f"{span.indent}{END}{end[len(end.rstrip(chr(13) + chr(10))) :]}"
        at = span.last + 1
    yield from lines[at:]


def _diff(old: str, new: str, file: str) -> str:
    name = file or "script"
    diff = difflib.unified_diff(_lines(old), _lines(new), name, name)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in diff)
