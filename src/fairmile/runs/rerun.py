"""The same once more, from the record alone, and how it differs."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairmile.base.errors import Conflict, NotFound, UsageError
from fairmile.base.html_tables import rows_table
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.runs.execute import capture
from fairmile.runs.record.commands import is_inside
from fairmile.runs.record.record import Captured, CapturedCode, ReadFile
from fairmile.runs.record.run import Metric, Run
from fairmile.runs.record.values import is_speed
from fairmile.runs.results import RerunDict, VerdictDict

if TYPE_CHECKING:
    from fairmile.runs.record.spec import Input, RunSpec

# Two runs of one program on one machine differ by rounding and by the order of threads; what matters is declared.
DEFAULT_TOLERANCE = 0.05
_SHOWN = 5


@dataclass(frozen=True, repr=False)
class Verdict(Result):
    """Whether one thing is the same in both runs; None if unknown."""

    what: str
    same: bool | None
    detail: str

    def to_dict(self) -> VerdictDict:
        return {"what": self.what, "same": self.same, "detail": self.detail}

    def summary(self) -> str:
        return f"{self.what} { ({True: 'same', False: 'differs', None: 'unknown'}[self.same]) }: {self.detail}"


@dataclass(frozen=True, repr=False)
class Rerun(Result):
    """A run, its rerun, and how the two differ."""

    original: Run
    again: Run
    verdicts: tuple[Verdict, ...]

    @property
    def reproduced(self) -> bool:
        """Whether the same went in, and it ended as before with metrics within their tolerance.

        Where there is no metric, the bytes of the outputs decide.
        """
        judged = ["code", "end", "input ", "metric "]
        if not any(each.what.startswith("metric ") for each in self.verdicts):
            judged.append("output ")
        return all(each.same is not False for each in self.verdicts if each.what.startswith(tuple(judged)))

    def to_dict(self) -> RerunDict:
        return {
            "original": self.original.id,
            "again": self.again.id,
            "reproduced": self.reproduced,
            "verdicts": [each.to_dict() for each in self.verdicts],
        }

    def summary(self) -> str:
        return f"{self.again.id} {'reproduces' if self.reproduced else 'does not reproduce'} {self.original.id}"

    def _repr_html_(self) -> str:
        words = {True: "same", False: "differs", None: "unknown"}
        return rows_table(
            ["what", "verdict", "detail"], [(each.what, words[each.same], each.detail) for each in self.verdicts]
        )


def check_repeatable(original: Run, is_stored: Callable[[str], bool]) -> None:
    """Refuse a run that cannot be done again from its record; `is_stored` tells whether the store has all of a tree."""
    if original.result is None:
        hint = f"`fairmile run --resume {original.id}` resumes it" if original.state.is_end else "wait until it ends"
        raise Conflict(f"run {original.id} is {original.state}", hint=hint)
    if original.record.inside:
        raise UsageError(f"run {original.id} was recorded inside another program", hint="run that program again")
    code = original.captured.code
    if code.is_known and not code.snapshot:
        raise NotFound(
            f"the code of run {original.id} was not kept: {code.trouble or 'there is no snapshot of it'}",
            hint="check out the code and run it again",
        )
    if code.snapshot and not is_stored(code.snapshot):
        raise NotFound(
            f"the code of run {original.id} is missing in the store",
            hint="restore the store from a backup, import the run again from its crate, or check out the code and use "
            f"`fairmile run -- {shlex.join(original.spec.argv)}`",
        )


def rerun_spec(original: Run, inputs: Mapping[str, Input], kept: Collection[str]) -> RunSpec:
    """Return the specification of the same run in a folder of its own; `{source}` stands for where its code lies.

    `kept` are the names in the snapshot of its code. A program that is not among them is used where it is.
    """
    spec, code = original.spec, original.captured.code
    before = Path(os.path.normpath(spec.folder)) if spec.folder else None
    root = Path(os.path.normpath(code.root)) if code.root else None
    files = {each.path: each.name for each in code.files}
    argv = tuple(_moved(word, before, root, files, kept) for word in spec.argv)
    start = original.captured.start
    if before is None and start:  # it worked in a folder that showed another one
        argv = (argv[0], *(_from(Path(start), word, spec.subfolder, kept) for word in argv[1:]))
    subfolder = spec.subfolder
    if before is not None and root is not None and before.is_relative_to(root):
        subfolder = str(before.relative_to(root))
    if subfolder and not is_inside(subfolder):  # relative paths in a record from elsewhere
        raise UsageError(f"run {original.id} would start in {subfolder}, which is outside of its folder")
    changes = {"folder": "", "subfolder": "" if subfolder == "." else subfolder, "argv": argv, "inputs": inputs}
    return spec.model_copy(update=changes)


def rerun_identity(original: Run, captured: Captured) -> str:
    """Return the identity of the same run with what was found now: that of the original where nothing differs.

    The words of a record name its code where it lay, or where it was laid; so two records are not compared as such.
    """
    before, now = (capture.identity(original.record.spec, each) for each in (original.captured, captured))
    return original.identity if before == now else now


def _moved(word: str, before: Path | None, root: Path | None, files: Mapping[str, str], kept: Collection[str]) -> str:
    """Return a word of the command with the path of a code file replaced by where it will lie."""
    path = os.path.normpath(before / word) if before is not None else word
    if root is not None and Path(path).is_relative_to(root):
        name = str(Path(path).relative_to(root))
        if name not in kept and "/" in word and os.path.isfile(path):
            return path
        if word.startswith("/"):
            return f"{{source}}/{name}"
    elif path in files:
        return f"{{source}}/{files[path]}"
    option, equals, value = word.partition("=")
    return f"{option}={_moved(value, before, root, files, kept)}" if equals and value else word


def _from(start: Path, word: str, subfolder: str, kept: Collection[str]) -> str:
    """Return a word that names a file beside the code, which was not kept, as where that file is."""
    is_kept = os.path.normpath(os.path.join(subfolder, word)) in kept
    return str(start / word) if word and not is_kept and (start / word).is_file() else word


def verdicts(original: Run, again: Run, tolerance: float | None = None) -> tuple[Verdict, ...]:
    """Compare two runs of one thing: what went in, what it ran on, what came out."""
    return tuple(_verdicts(original, again, tolerance))


def _verdicts(original: Run, again: Run, tolerance: float | None) -> Iterator[Verdict]:
    yield from _code(original, again)
    yield from _inputs(original, again)
    yield _environment(original, again)
    yield _hardware(original, again)
    yield _end(original, again)
    before, now = original.metrics, again.metrics
    for name in sorted(before.keys() | now.keys()):
        yield _metric(name, before.get(name), now.get(name), tolerance)
    yield from _outputs(original, again)


def _code(original: Run, again: Run) -> Iterator[Verdict]:
    """Compare programs by their bytes; a commit of somebody else's record is no byte that was compared."""
    before, now = original.captured.code, again.captured.code
    git, is_foreign = before.git, again.record.foreign
    if not before.is_known and not before.sources:
        yield Verdict("code", None, "no code recorded: the command names no file")
        return
    same = _bytes_of(before) == _bytes_of(now)
    detail = "the same files" if same else "other files"
    if same and git is not None and not is_foreign:
        dirty = " with uncommitted changes" if git.dirty else ""
        detail = f"commit {git.commit[:12]}{dirty}" if git.commit else detail
    yield Verdict("code", same, detail)
    if before.commit and is_foreign:
        detail = f"{before.commit[:12]} in the record; a crate has no commit to compare"
        yield Verdict("commit", None, detail)


def _bytes_of(code: CapturedCode) -> tuple[str, list[tuple[str, str]]]:
    return code.snapshot, sorted((each.asset, each.sha256) for each in code.sources)


def _inputs(original: Run, again: Run) -> Iterator[Verdict]:
    now = again.captured.inputs
    for name, each in sorted(original.captured.inputs.items()):
        before_sha256, now_sha256 = each.sha256, now[name].sha256 if name in now else ""
        if not before_sha256 or not now_sha256:
            yield Verdict(f"input {name}", None, "its checksum is unknown")
        else:
            same = before_sha256 == now_sha256
            detail = f"sha256 {now_sha256[:12]}" if same else f"was {before_sha256[:12]}, is {now_sha256[:12]}"
            yield Verdict(f"input {name}", same, detail)
    yield from _reads(original, again)


def _reads(original: Run, again: Run) -> Iterator[Verdict]:
    """Compare the files beside the code that the program read."""
    known, start = original.captured.coverage, again.captured.start
    if start and (known is None or known.reads is None):
        yield Verdict("files beside it", None, f"not watched; {start} as it is now")
    placed = again.read_beside
    for name, path in sorted(original.read_beside.items()):
        before = original.reads[path]
        if name in placed:
            coverage = again.captured.coverage
            is_restored = coverage is not None and placed[name] in coverage.restored
            yield _read(name, before, again.reads[placed[name]], is_restored=is_restored)
        elif again.record.foreign:
            yield Verdict(f"input {name}", None, f"did not come with the record; its sha256 is {before.sha256[:12]}")


def _read(name: str, before: ReadFile, now: ReadFile, *, is_restored: bool) -> Verdict:
    if not before.sha256:  # it is too large
        same = before.stamp == now.stamp
        return Verdict(f"input {name}", same, "the same size and time stamps" if same else "another size or time stamp")
    same = before.sha256 == now.sha256
    detail = f"sha256 {now.sha256[:12]}"
    if same and is_restored:
        detail += ", restored: the file has changed since"
    elif not same:
        detail = f"was {before.sha256[:12]}, is {now.sha256[:12]}; the old content is not in the store"
    return Verdict(f"input {name}", same, detail)


def _environment(original: Run, again: Run) -> Verdict:
    before, now = original.captured.environment, again.captured.environment
    if before.digest and before.digest == now.digest:
        return Verdict("environment", True, f"{now.name} {before.digest[:12]}")
    if not before.lock and not before.python:
        return Verdict("environment", None, "the environment of the program is unknown")
    changes = _package_changes(before.lock, now.lock)
    if before.python != now.python:
        changes.insert(0, f"Python {before.python or None} → {now.python or None}")
    if not changes:
        return Verdict("environment", True, f"Python {now.python or None}, {len(now.lock)} packages")
    more = f" and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return Verdict("environment", False, ", ".join(changes[:_SHOWN]) + more)


def _package_changes(before: Sequence[str], now: Sequence[str]) -> list[str]:
    old, new = (dict(line.split("==", 1) for line in lines if "==" in line) for lines in (before, now))
    names = sorted(old.keys() | new.keys())
    return [f"{n} {old.get(n, 'absent')} → {new.get(n, 'absent')}" for n in names if old.get(n) != new.get(n)]


def _hardware(original: Run, again: Run) -> Verdict:
    facts = []
    for run in (original, again):
        hardware = run.hardware
        cpu = hardware.get("cpu") or {}
        gpus = [each.get("model") for each in hardware.get("gpus") or []]
        facts.append(
            {"CPU": cpu.get("model"), "cores": cpu.get("cores"), "GPUs": ", ".join(filter(None, gpus)) or "none"}
        )
    before, now = facts
    changed = [f"{name}: {before[name]} → {now[name]}" for name in before if before[name] != now[name]]
    same = f"{now['CPU']}, {now['cores']} cores, GPUs: {now['GPUs']}"
    return Verdict("hardware", not changed, "; ".join(changed) if changed else same)


def _end(original: Run, again: Run) -> Verdict:
    same = original.state == again.state
    before, now = (run.result.exit_code if run.result is not None else None for run in (original, again))
    codes = f"exit code {before} → {now}"
    return Verdict("end", same, str(again.state) if same else f"{original.state} → {again.state} ({codes})")


def _metric(name: str, before: Metric | None, now: Metric | None, tolerance: float | None) -> Verdict:
    what = f"metric {name}"
    if before is None or now is None:
        return Verdict(what, False, "is new" if before is None else "is missing")
    declared = tolerance if tolerance is not None else before.tolerance
    limit = DEFAULT_TOLERANCE if declared is None else declared
    old, new = before.value, now.value
    text = f"{old:.6g} → {new:.6g}"
    if old == new or (math.isnan(old) and math.isnan(new)):
        return Verdict(what, True, f"{new:.6g}, exactly")
    if not (math.isfinite(old) and math.isfinite(new)):
        return Verdict(what, False, text)
    if declared is None and is_speed(name):
        return Verdict(what, None, f"{text}, time or speed: judged only with a declared tolerance")
    difference = abs(new - old) / abs(old) if old else math.inf
    kind = "a tolerance of" if declared is not None else "the default tolerance of"
    within = "within" if difference <= limit else "outside"
    return Verdict(what, difference <= limit, f"{text} ({difference:.2%} apart, {within} {kind} {limit:.2%})")


def _outputs(original: Run, again: Run) -> Iterator[Verdict]:
    before, now = original.outputs, again.outputs
    for name in sorted(before.keys() | now.keys()):
        if name not in before or name not in now:
            yield Verdict(f"output {name}", False, "is new" if name not in before else "is missing")
        else:
            same = before[name].sha256 == now[name].sha256
            yield Verdict(f"output {name}", same, "the same bytes" if same else "other bytes")
