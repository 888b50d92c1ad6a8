"""Folders for those who submit by hand: one per point with script, configuration and code, a manifest, submit scripts.

    OUT/<point>/<script>       the template with its placeholders filled
    OUT/<point>/config.yaml    all settings as they are at this point
    OUT/<point>/<code>         a file is a hard link into OUT/.code, a folder a symbolic link to the one there
    OUT/.code/                 the code as it was when the folders were made; its files are read-only
    OUT/<name>.json            the manifest: {id: {id, directory, experiment, …}}
    OUT/submit.sh              one line per point; submit-1.sh … submit-N.sh hold each point once between them

Everything is written beside OUT and renamed at the end. A folder that an earlier call made may be given again: points
with the same script and configuration stay untouched with their results, those that are new are added, and one that
would come out differently is a conflict.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import IO, Any

from fairmile.base.errors import Conflict, SystemFailure, UsageError
from fairmile.base.files import Lock, sync_folder, write_failure
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.words import slug
from fairmile.runs.record.values import Value
from fairmile.sweeps.code_copy import Code, link_code, same_tree, take_code
from fairmile.sweeps.model import Definition, Point
from fairmile.sweeps.rendering import CONFIG, Rendered, Renderer, interpreter
from fairmile.sweeps.results import GeneratedDict, GenerationPlanDict, axes_dict

CODE = ".code"
_SUBMIT = "submit.sh"
_BLOCK_BYTES = 4096  # what the smallest file and an empty folder take on most file systems
_PROGRESS_EVERY = 100
_MOST_CHECKED = 10_000  # points that a plan renders; of larger sweeps it takes that many, evenly spread
_DIRECTIVES = (("#SBATCH", "sbatch "), ("#BSUB", "bsub < "), ("#PBS", "qsub "))
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_NOT_ONE_LINE = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")

Progress = Callable[[int, int], None]  # points done, and of how many


@dataclass(frozen=True, repr=False)
class GenerationPlan(Result):
    """What a generation would write. `size_bytes` is an estimate of disk space from the first and the last point."""

    folder: Path
    count: int
    first: Point | None
    last: Point | None
    axes: Mapping[str, Sequence[Value]]  # the matrix: all values of each axis
    script: str
    submit: str  # the line that submits the first point
    files: int
    size_bytes: int
    checked: int  # points whose script and configuration were tried

    def to_dict(self) -> GenerationPlanDict:
        return {
            "count": self.count,
            "first": self.first.id if self.first else "",
            "last": self.last.id if self.last else "",
            "files": self.files,
            "size_bytes": self.size_bytes,
            "submit": self.submit,
            "axes": axes_dict(self.axes),
        }

    def summary(self) -> str:
        return f"{self.count:,} folders in {self.folder}, {self.files:,} files"


@dataclass(frozen=True, repr=False)
class Generated(Result):
    """What a generation has written, and how many of the points had been there already."""

    folder: Path
    manifest: Path
    submit: tuple[Path, ...]
    count: int
    kept: int

    def to_dict(self) -> GeneratedDict:
        return {
            "count": self.count,
            "kept": self.kept,
            "manifest": str(self.manifest),
            "submit": [str(file) for file in self.submit],
        }

    def summary(self) -> str:
        return f"{self.count:,} folders in {self.folder}"


def plan_generation(
    definition: Definition,
    template: Path | None,
    out: Path,
    *,
    name: str = "",
    copy: Sequence[str | Path] = (),
    split_among: int = 1,
    environ: Mapping[str, str],
) -> GenerationPlan:
    """Return what `generate` would do with the same arguments, having written nothing."""
    kit = _Kit(definition, template, out, name, copy, split_among, environ)
    again = _was_generated(kit)
    stride = max(1, math.ceil(kit.count / _MOST_CHECKED))
    first = last = None
    checked = 0
    for place, point in enumerate(definition.points):
        if first is None:
            first = point
        if place % stride == 0:
            _is_kept(kit, point, again)
            checked += 1
        last = point
    sizes, submit = [0], ""
    if first is not None and last is not None:
        submit = kit.submit_line(first, kit.render(first).script)
        sizes = [_disk_bytes(kit, point) for point in (first, last)]
    code = [each.size() for each in kit.code]
    return GenerationPlan(
        folder=kit.out,
        count=kit.count,
        first=first,
        last=last,
        axes=definition.points.axes,
        script=kit.script,
        submit=submit,
        files=kit.count * (2 + len(kit.code)) + sum(files for files, _ in code) + 1 + len(kit.submit_names),
        size_bytes=kit.count * (sum(sizes) // len(sizes)) + sum(size_bytes for _, size_bytes in code),
        checked=checked,
    )


def generate(
    definition: Definition,
    template: Path | None,
    out: Path,
    *,
    name: str = "",
    copy: Sequence[str | Path] = (),
    split_among: int = 1,
    environ: Mapping[str, str],
    on_progress: Progress | None = None,
) -> Generated:
    """Write the folder of every point, or nothing.

    Without a template the one of the definition is taken, else a script with its command. `copy` names files and
    folders that are the code, instead of those of the definition. All points are tried before anything is written.
    """
    kit = _Kit(definition, template, out, name, copy, split_among, environ)
    again = _was_generated(kit)
    kept = sum(_is_kept(kit, point, again) for point in definition.points)
    try:
        with Lock(kit.beside(".lock"), timeout_s=5):
            return _write(kit, again, kept, on_progress)
    except SystemFailure:
        raise
    except OSError as error:
        raise write_failure(str(error.filename or kit.out), error) from error


class _Kit:
    """What is the same for every point of a generation, checked as far as it can be without points."""

    def __init__(
        self,
        definition: Definition,
        template: Path | None,
        out: Path,
        name: str,
        copy: Sequence[str | Path],
        split_among: int,
        environ: Mapping[str, str],
    ) -> None:
        self.definition = definition
        self.out = out
        self.count = len(definition.points)
        if not self.count:
            raise UsageError("the sweep has no points", hint="check its axes, `exclude` and `select`")
        self.submit_names = _submit_names(split_among, self.count)
        self.name = _manifest_name(name, definition)
        named = definition.fields.get("template")
        self._renderer = Renderer(definition, template or (_base(definition) / str(named) if named else None), environ)
        self.script, self.mode = self._renderer.script_name, self._renderer.mode
        self.code = _code(definition, copy, out, {self.script, CONFIG})
        self.copied = [str(each) for each in copy]
        self._reserved = {*self.submit_names, self.manifest, CODE}

    @property
    def manifest(self) -> str:
        return f"{self.name}.json"

    def beside(self, suffix: str) -> str:
        """Return the path of a hidden neighbour of the output folder."""
        folder, base = os.path.split(os.path.realpath(self.out))
        return os.path.join(folder, f".{base}{suffix}")

    def check(self, point: Point) -> None:
        """Raise UsageError where a point cannot be rendered or cannot have its folder."""
        if point.id in self._reserved:
            raise UsageError(f"the id {point.id!r} of a point is reserved for a file of the sweep")
        self._renderer.check(point)

    def render(self, point: Point) -> Rendered:
        """Return what the folder of a point holds."""
        return self._renderer.render(point)

    def submit_line(self, point: Point, script: str) -> str:
        """Return the line of a submit script for one point, which is run in the output folder."""
        command = _submit_command(script, shlex.quote(self.script))
        return f"(cd {shlex.quote(point.id)} && {command})  # {_NOT_ONE_LINE.sub(' ', _assignments(point))}\n"

    def manifest_entry(self, point: Point, settings: Mapping[str, Any]) -> str:
        """Return the part of the manifest on one point, as a line of JSON without its end."""
        folder = f"{self.out}/{point.id}"
        entry = {
            "id": point.id,
            "directory": folder,
            "experiment": _assignments(point),
            "script": f"{folder}/{self.script}",
            "config": f"{folder}/{CONFIG}",
            "variables": settings,
            "copycode": self.copied or [each.name for each in self.code],
        }
        try:
            text = _ENCODE(entry)
        except ValueError:
            text = _ENCODE(_finite(entry))
        return f"{_ENCODE(point.id)}: {text}"


def _submit_names(split_among: int, count: int) -> list[str]:
    if split_among < 1:
        raise UsageError(f"--split-among is {split_among}, expected at least 1", hint="use 1 or more")
    if split_among > count:
        raise UsageError(f"--split-among is {split_among}, but there are only {count} points")
    parts = [f"submit-{part}.sh" for part in range(1, split_among + 1)]
    return [_SUBMIT, *(parts if split_among > 1 else [])]


def _manifest_name(name: str, definition: Definition) -> str:
    if not name:
        return slug(definition.name or "sweep", keep_case=True)
    stem = name.removesuffix(".json")
    if not stem or stem != os.path.basename(stem) or stem.startswith(".") or "\0" in stem:
        raise UsageError(
            f"--name {name!r} is not a file name", hint="use one word; the manifest is NAME.json in the folder"
        )
    return stem


def _code(definition: Definition, copy: Sequence[str | Path], out: Path, taken: set[str]) -> list[Code]:
    named = definition.fields.get("code") or ()
    base = _base(definition)
    given = [Path(each) for each in copy] or [base / each for each in ([named] if isinstance(named, str) else named)]
    copies: list[Code] = []
    for path in given:
        code = Code.at(path)
        if code.name in taken:
            raise UsageError(f"cannot copy {path}: the folder of a point already has a file named {code.name!r}")
        if Path(os.path.abspath(out)).is_relative_to(code.path):
            raise UsageError(f"cannot copy {path}: the output folder {out} is inside it")
        taken.add(code.name)
        copies.append(code)
    return copies


def _base(definition: Definition) -> Path:
    """Return the folder that paths in a definition are relative to."""
    return Path(definition.sources[0]).parent if definition.sources else Path()


def _submit_command(script: str, quoted: str) -> str:
    header = [*takewhile(lambda line: not line.strip() or line.startswith("#"), script.splitlines())]
    for directive, command in _DIRECTIVES:  # schedulers read them up to the first command
        if any(line.startswith(directive) for line in header):
            return command + quoted
    return f"{shlex.join(interpreter(script))} {quoted}"


def _assignments(point: Point) -> str:
    repeat = [] if point.repeat is None else [f"repeat={point.repeat}"]
    return " ".join([*[f"{key}={value}" for key, value in point.values.items()], *repeat])


def _finite(data: Any) -> Any:
    """Return data with the numbers that JSON lacks as texts."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data


def _disk_bytes(kit: _Kit, point: Point) -> int:
    """Return about how much room a point takes: its folder, two files of whole blocks, its part of the lists."""
    rendered = kit.render(point)
    blocks = 1 + sum(-(-len(text.encode()) // _BLOCK_BYTES) for text in (rendered.script, rendered.config))
    lists = (
        kit.manifest_entry(point, rendered.settings),
        *[kit.submit_line(point, rendered.script)] * len(kit.submit_names),
    )
    return blocks * _BLOCK_BYTES + sum(len(text.encode()) for text in lists)


def _was_generated(kit: _Kit) -> bool:
    """Tell whether the output folder holds this sweep; Conflict when it holds anything else."""
    try:
        holds = os.listdir(kit.out)
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        raise Conflict(f"{kit.out} is a file", hint="choose another folder with --out") from None
    except OSError as error:
        raise SystemFailure(f"cannot read {kit.out}: {error.strerror}") from error
    if holds and kit.manifest not in holds:
        raise Conflict(f"{kit.out} is not empty and has no {kit.manifest}", hint="choose another folder with --out")
    return bool(holds)


def _is_kept(kit: _Kit, point: Point, again: bool) -> bool:
    """Check a point and tell whether its folder is there; Conflict when that folder holds something else."""
    kit.check(point)
    folder = f"{kit.out}/{point.id}"
    if not (again and os.path.isdir(folder)):
        return False
    rendered = kit.render(point)
    for name, text in ((kit.script, rendered.script), (CONFIG, rendered.config)):
        try:
            same = Path(folder, name).read_bytes() == text.encode()
        except FileNotFoundError:
            same = False
        if not same:
            raise Conflict(
                f"{folder}/{name} exists with different content",
                hint="choose another folder with --out, or remove this one",
            )
    return True


def _write(kit: _Kit, again: bool, kept: int, on_progress: Progress | None) -> Generated:
    _remove_leftovers(kit)
    hidden = Path(kit.beside(f".new-{os.urandom(4).hex()}"))
    os.mkdir(hidden)
    try:
        snapshot = hidden / CODE
        if kit.code:
            take_code(kit.code, snapshot)
        if again:
            if not same_tree(snapshot, kit.out / CODE):
                raise Conflict(
                    f"the code has changed since {kit.out} was made", hint="choose another folder with --out"
                )
            snapshot = kit.out / CODE
        _write_points(kit, hidden, snapshot, again, on_progress)
        if again:
            _merge(kit, hidden)
        else:
            _publish(kit, hidden)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    sync_folder(str(kit.out.parent))
    submit = tuple(kit.out / name for name in kit.submit_names)
    return Generated(kit.out, kit.out / kit.manifest, submit, kit.count, kept)


def _write_points(kit: _Kit, hidden: Path, snapshot: Path, again: bool, on_progress: Progress | None) -> None:
    top, there = str(hidden), str(kit.out)
    sources = {each.name: str(snapshot / each.name) for each in kit.code}
    parts = len(kit.submit_names) - 1
    with contextlib.ExitStack() as stack:

        def new(name: str, mode: int) -> IO[str]:
            return stack.enter_context(open(_new_file(f"{top}/{name}", mode), "w", encoding="utf-8"))

        manifest = new(kit.manifest, 0o666)
        submits = [new(name, 0o777) for name in kit.submit_names]
        for stream in submits:
            stream.write('#!/bin/sh\ncd "$(dirname "$0")" || exit 1\n')
        before = "{\n"
        for done, point in enumerate(kit.definition.points):
            rendered = kit.render(point)
            if not (again and os.path.isdir(f"{there}/{point.id}")):
                _write_point(kit, f"{top}/{point.id}", rendered, sources)
            manifest.write(before + kit.manifest_entry(point, rendered.settings))
            before = ",\n"
            line = kit.submit_line(point, rendered.script)
            submits[0].write(line)
            if parts:
                submits[1 + done % parts].write(line)
            if on_progress is not None and (done + 1) % _PROGRESS_EVERY == 0:
                on_progress(done + 1, kit.count)
        manifest.write("\n}\n")
    if on_progress is not None:
        on_progress(kit.count, kit.count)


def _write_point(kit: _Kit, folder: str, rendered: Rendered, sources: dict[str, str]) -> None:
    try:
        os.mkdir(folder)
    except FileExistsError:
        raise UsageError(
            f"two points have the same folder {os.path.basename(folder)!r}", hint="change one of their values"
        ) from None
    for name, text, mode in ((kit.script, rendered.script, kit.mode), (CONFIG, rendered.config, 0o666)):
        fd = _new_file(f"{folder}/{name}", mode)
        try:
            data = memoryview(text.encode())
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)
    for code in kit.code:
        link_code(code, f"{folder}/{code.name}", sources, f"../{CODE}/{code.name}")


def _new_file(path: str, mode: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def _publish(kit: _Kit, hidden: Path) -> None:
    try:
        os.rename(hidden, os.path.realpath(kit.out))  # over an empty folder, too
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise Conflict(f"{kit.out} was written by another process meanwhile") from error
        raise


def _merge(kit: _Kit, hidden: Path) -> None:
    """Move new points into the folder of the sweep, and the lists last: a call that is cut short can be repeated."""
    shutil.rmtree(hidden / CODE, ignore_errors=True)
    lists = {kit.manifest, *kit.submit_names}
    with os.scandir(hidden) as entries:
        points = [entry.name for entry in entries if entry.name not in lists]
    for name in [*points, *kit.submit_names, kit.manifest]:
        os.rename(hidden / name, kit.out / name)


def _remove_leftovers(kit: _Kit) -> None:
    """Remove what a call that was killed left behind; the lock tells that none is at work."""
    folder, start = os.path.split(kit.beside(".new-"))
    for name in os.listdir(folder):
        if name.startswith(start):
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
