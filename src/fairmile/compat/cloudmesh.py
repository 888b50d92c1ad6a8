"""Projects of cloudmesh-ee and cloudmesh-sbatch, read as they are.

`experiment:`, or `experiments:` in older projects, holds the axes; everything else are settings. Several files are
merged by top-level section, the later one wins; a file that `config:` names comes before the one that names it. What
has no value (null) counts as absent, but a null in a list of values is one, `None`, as cloudmesh-ee writes it. Of a key
that appears twice the last one counts, and a note says so. A list of generated experiments, such as
`localscratch.json`, executes their scripts in their folders.
Beside what the files say there are `{ee.identifier}`, `{ee.uuid}`, `{meta.uuid}`, `{slurm.sbatch}` and
`{experiment.card_name}`; what stands below `attributes:` also goes by its name alone, and so do the axes of
`experiments:`.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from fairmile.base.commands import Here
from fairmile.base.errors import InvalidDocument, NotFound, Problem, UsageError
from fairmile.base.files import read_text
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.words import did_you_mean, slug
from fairmile.base.yaml import load, load_located
from fairmile.resolve import DOCUMENTS, PROGRAMS, Nouns, Resolver, Target, Word
from fairmile.runs.record.values import Value
from fairmile.sweeps import axes as axis
from fairmile.sweeps.model import Definition, Dialect, Origin, place_of
from fairmile.sweeps.origins import SourceFile
from fairmile.sweeps.space import Space
from fairmile.sweeps.templates import ALSO, DIRECTIVES, INTERNAL, WHY, Texts

PREFIX = "experiment"
FORMS = (PREFIX, "experiments")
DIALECT = Dialect(
    "cloudmesh",
    text=str,
    keeps_null=False,
    allows_variables=True,
    has_repeat=False,
    reads_settings=True,
    leaves_unused=True,
    checks_runs=False,
)
_CONFIG = "config"  # names further files
_OS = re.compile(r"\{os\.([A-Za-z_]\w*)\}")
_CODE_TIMEOUT_S = 600.0
_MARK = "the variables follow"
_RUN_CODE = f"""
import json, sys
said = {{"__name__": "configuration", "__file__": sys.argv[1]}}
sys.path.insert(0, ".")
exec(compile(sys.stdin.read(), sys.argv[1], "exec"), said)
kept = {{}}
for name, value in said.items():
    if not name.startswith("_"):
        try:
            kept[name] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            pass
print("\\n{_MARK}\\n" + json.dumps(kept))
"""


@dataclass(frozen=True)
class _Source:
    """One configuration file, and on which lines its settings stand."""

    file: str
    data: Mapping[str, Any]
    line: Callable[[Sequence[str | int]], int | None]
    repeated: tuple[str, ...] = ()  # keys that appear twice

    def place(self, path: Sequence[str | int]) -> str:
        """Return `file:line` of a setting."""
        line = self.line(path)
        return self.file if line is None else f"{self.file}:{line}"


class _Places:
    """Tells in which of several files a setting stands, after they were merged, or which -p says it."""

    def __init__(self, sources: Sequence[_Source], params: Collection[str] = ()) -> None:
        self._params = params
        self._owners = {key: source for source in sources for key in source.data}
        self._last = sources[-1]

    def __call__(self, *path: str | int) -> str:
        """Return `file:line` of a setting, the file where no line is known, or -p and the name as typed."""
        # Without a dot -p names a parameter of the experiments.
        names = [path] if len(path) > 1 else []
        names += [path[1:]] if path and path[0] in (*FORMS, ALSO, "attributes") else []
        for name in (".".join(map(str, each)) for each in names):
            if name in self._params:
                return f"-p {name}"
        if path[:1] == (ALSO,):  # another name of something below `attributes`, if it stands in a file at all
            path = ("attributes", *path[1:])
        owner = self._owners.get(str(path[0])) if path else None
        return self._last.file if owner is None else owner.place(path)


class _Project(Resolver):
    """A project of cloudmesh, by one of its files; every program is one."""

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        is_program = word.path.suffix in PROGRAMS
        if not word.path.is_file() or (word.located is None and not is_program) or (is_program and not word.verb):
            return None
        file = SourceFile(str(word.path), word.text, word.located)
        return Target(word.text, "cloudmesh", path=word.path) if self.recognises(file) else None

    def recognises(self, file: SourceFile) -> bool:
        """Tell whether the file belongs to a project."""
        return file.located is None or self.is_own(file.located.data)

    def is_own(self, data: Any) -> bool:
        """Tell by its data whether a document belongs to a project, or lists what one generated."""
        return isinstance(data, Mapping) and (any(key in data for key in (*FORMS, _CONFIG)) or _is_manifest(data))

    def parts(self, file: Path, data: Mapping[str, Any]) -> Iterator[Path]:
        """Yield the files that `config:` names and that are there."""
        named = data.get(_CONFIG)
        for each in named if isinstance(named, list) else [named]:
            if isinstance(each, str):
                there = next((path for path in (file.parent / each, Path(each)) if path.is_file()), None)
                if there is not None:
                    yield there

    def read(
        self, files: Sequence[Path], *, environ: Mapping[str, str], allow_code: bool, params: Mapping[str, Any]
    ) -> Definition:
        """Return what the files define; see `read_project`."""
        return read_project(files, environ=environ, allow_code=allow_code, params=params)


PROJECT = _Project()


def read_project(
    files: Sequence[Path],
    *,
    environ: Mapping[str, str],
    allow_code: bool = False,
    params: Mapping[str, Any] | None = None,
) -> Definition:
    """Return what the configuration files of a project define.

    Python files and notebooks are executed only with `allow_code`. `params` change axes, or add them; with a dot in the
    name they change a setting.
    """
    sources = _read_all(files, allow_code)
    if len(sources) == 1 and _is_manifest(sources[0].data):
        return _read_manifest(sources[0], files[0])
    origin = _Places(sources, params or ())
    merged: dict[str, Any] = {}
    for source in sources:
        merged.update(source.data)
    form = next((each for each in FORMS if merged.get(each) is not None), "")
    form = form or next((each for each in FORMS if each in merged), "")
    parameters = _axes_of(merged[form], origin(form)) if form else {}
    merged, parameters = _changed(merged, parameters, params or {})
    parameters = {name: value for name, value in parameters.items() if value is not None}
    if not parameters:
        file = sources[-1].file
        problem = Problem("the file defines no experiments", file=file) if not form else _empty(form, origin)
        raise InvalidDocument([problem], hint="add a section `experiment:` with at least one parameter")
    places: Origin = origin
    axes = _values(parameters, form or PREFIX, merged, places, environ)
    space = Space(
        axes, identify="all", origin=lambda *path: places(form, *path[1:]) if path[:1] == ("axes",) else places(*path)
    )
    name = merged.get("name")
    given = [str(file) for file in files]
    template = merged.get("template")
    return Definition(
        name=slug(str(name) if name and "{" not in str(name) else files[0].name.split(".")[0], keep_case=True),
        points=space,
        settings=_settings(merged, form, axes, places),
        origin=places,
        prefix=PREFIX,
        variables=tuple(dict.fromkeys(_OS.findall(json.dumps([merged, parameters], default=str)))),
        fields={"template": template} if isinstance(template, str) and "{" not in template else {},
        sources=(*given, *(source.file for source in sources if source.file not in given)),
        dialect=DIALECT,
        notes=tuple(each for source in sources for each in source.repeated),
    )


def _is_manifest(data: Mapping[str, Any]) -> bool:
    """Tell whether a document lists generated experiments, as `cms ee generate` leaves it beside their folders."""
    keys = {"experiment", "directory", "script"}
    return bool(data) and all(isinstance(row, Mapping) and keys <= set(row) for row in data.values())


def _read_manifest(source: _Source, file: Path) -> Definition:
    """Return experiments that cloudmesh-ee generated: each executes its script in its folder."""
    rows = [(source.place([name]), row) for name, row in source.data.items()]
    points = [_axes_of(row["experiment"], place) for place, row in rows]
    names = list(points[0])
    for (place, _), values in zip(rows, points, strict=True):
        if list(values) != names:
            raise InvalidDocument([Problem(f"{place}: expected the parameters {', '.join(names)}")])
    axes: dict[str, list[Value]] = {name: [values[name] for values in points] for name in names}
    space = Space(axes, linked=[names] if len(names) > 1 else [], identify="all")
    scripts, folders = {}, {}
    for point, (place, row) in zip(space, rows, strict=True):
        folder = _generated_folder(file, str(row["directory"]))
        script = folder / Path(str(row["script"])).name
        if not script.is_file():
            raise NotFound(f"{place}: there is no {script}", hint="keep the manifest beside the generated folders")
        scripts[point.id], folders[point.id] = str(script), str(folder)
    start = ("sh", "-c", 'cd "$1" && exec bash "$2"', "sh")
    return Definition(
        name=slug(file.stem, keep_case=True),
        points=space,
        settings={"manifest": {"folder": folders, "script": scripts}},
        origin=lambda *path: source.file,
        prefix=PREFIX,
        fields={"argv": (*start, "{manifest.folder.{point.id}}", "{manifest.script.{point.id}}")},
        sources=(str(file),),
        dialect=DIALECT,
    )


def _generated_folder(file: Path, directory: str) -> Path:
    """Return where a generated folder is: as the manifest says, or beside it, since such folders are moved."""
    name = Path(directory).name
    places = (Path(directory), file.parent / directory, file.parent / file.stem / name, file.parent / name)
    return next((each for each in places if each.is_dir()), file.parent / name).absolute()


def directives(host: str, directive: str, own: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the options of sbatch that a directive means on a host; `own` is a project's table, which goes first."""
    table = {name: {**options} for name, options in _table().items()}
    for name, options in (own or {}).items():
        if isinstance(options, Mapping):
            table.setdefault(str(name), {}).update({str(key): each for key, each in options.items()})
    if host not in table:
        raise NotFound(
            f"no Slurm directives are known for the host {host!r}",
            hint=f"{did_you_mean(host, table) or 'known: ' + ', '.join(sorted(table)) + ';'} "
            f"or write `directives: {{{host}: {{{directive}: {{partition: …}}}}}}` into the project",
        )
    if not isinstance(table[host].get(directive), Mapping):
        raise NotFound(
            f"the host {host!r} has no directive {directive!r}",
            hint=f"{did_you_mean(directive, table[host]) or 'known: ' + ', '.join(table[host]) + ';'} "
            f"or write `directives: {{{host}: {{{directive}: {{partition: …}}}}}}` into the project",
        )
    return {str(option): str(value) for option, value in table[host][directive].items()}


def sbatch_lines(options: Mapping[str, str]) -> str:
    """Return options of sbatch as the head of a script holds them."""
    return "\n".join(f"#SBATCH --{option}={value}" for option, value in options.items())


@cache
def _table() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    text = (resources("fairmile.compat") / "data" / "directives.yaml").read_text(encoding="utf-8")
    hosts: Mapping[str, Mapping[str, Mapping[str, Any]]] = load(text, file="directives.yaml")["hosts"]
    return hosts


# Reading


def _read_all(files: Sequence[Path], allow_code: bool) -> list[_Source]:
    """Return all files, those that others name in `config:` before them, each once."""
    if not files:
        raise UsageError("no configuration file is given")
    sources: list[_Source] = []
    seen: set[Path] = set()

    def add(file: Path) -> None:
        if file.absolute() in seen:
            return
        seen.add(file.absolute())
        source = _read(file, allow_code)
        named = source.data.get("config")
        for each in named if isinstance(named, list) else [named]:
            if isinstance(each, str) and each.endswith((*DOCUMENTS, *PROGRAMS)):
                beside = file.parent / each
                try:
                    add(beside if beside.exists() else Path(each))
                except NotFound as error:
                    raise NotFound(f"{source.place(['config'])}: {error.message}", hint=error.hint) from None
        sources.append(source)

    for file in files:
        add(file)
    return sources


def _read(file: Path, allow_code: bool) -> _Source:
    text = read_text(file)
    if file.suffix.lower() in PROGRAMS:
        if not allow_code:
            raise UsageError(
                f"{file} is a program, which is executed only with --allow-code",
                hint="read it, then add --allow-code, or write the settings as YAML or JSON",
            )
        return _checked(str(file), _run_code(file, text), lambda path: None, [])
    located = load_located(text, file=str(file), repeats=True)
    lines = [] if file.suffix.lower() == ".json" else text.split("\n")
    return replace(_checked(str(file), located.data, located.line, lines), repeated=tuple(map(str, located.repeated)))


def _checked(file: str, data: Any, line: Callable[[Sequence[str | int]], int | None], lines: list[str]) -> _Source:
    if not isinstance(data, Mapping):
        raise InvalidDocument([Problem("expected settings, such as `experiment:`", file=file, line=line([]))])
    source = _Source(file, data, line)
    return _Source(file, _with_braces(data, (), source, lines), line)


def _with_braces(value: Any, path: tuple[str | int, ...], source: _Source, lines: list[str]) -> Any:
    """Return settings in which YAML's reading of an unquoted `{name}` is undone."""
    if isinstance(value, Mapping):
        if len(value) == 1 and path:
            ((key, inner),) = value.items()
            # YAML takes {name} for a mapping from `name` to nothing, and `name:` on a line of its own as well.
            line = source.line((*path, key)) if inner is None and lines else None
            if line is not None and re.search(rf"\{{\s*{re.escape(str(key))}\s*\}}", lines[line - 1]):
                return f"{{{key}}}"
        return {str(key): _with_braces(each, (*path, key), source, lines) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_braces(each, (*path, place), source, lines) for place, each in enumerate(value)]
    return value


def _run_code(file: Path, text: str) -> dict[str, Any]:
    """Return the variables that a program sets, as far as they are plain data; it runs in a process of its own."""
    if file.suffix.lower() == ".ipynb":
        text = _code_of_notebook(file, text)
    argv = [sys.executable, "-c", _RUN_CODE, str(file.absolute())]
    result = Here().run(argv, cwd=file.absolute().parent, input=text, timeout_s=_CODE_TIMEOUT_S, check=False)
    if result.exit_code != 0:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        raise UsageError(f"{file} failed: {lines[-1].strip() if lines else 'no message'}")
    _, _, variables = result.stdout.rpartition(f"\n{_MARK}\n")
    data: dict[str, Any] = json.loads(variables)
    return data


def _code_of_notebook(file: Path, text: str) -> str:
    cells = load(text, file=str(file))
    cells = cells.get("cells") if isinstance(cells, Mapping) else None
    if not isinstance(cells, list):
        raise InvalidDocument([Problem("is not a notebook: it has no cells", file=str(file))])
    lines: list[str] = []
    for cell in cells:
        if isinstance(cell, Mapping) and cell.get("cell_type") == "code":
            source = cell.get("source", "")
            body = source if isinstance(source, str) else "".join(map(str, source))
            # Magics are of IPython and set nothing.
            lines += ["pass" if line.startswith(("%", "!")) else line for line in body.splitlines()]
    return "\n".join(lines) + "\n"


# Axes


def _empty(form: str, origin: Origin) -> Problem:
    file, _, line = origin(form).rpartition(":")
    known = line.isdecimal()
    return Problem("has no parameters", form, file=file if known else origin(form), line=int(line) if known else None)


def _axes_of(experiment: Any, where: str) -> dict[str, Any]:
    """Return the parameters of `experiment:`, which older projects also write as one text `epoch=[1-3] lr=0.1,0.2`."""
    if isinstance(experiment, Mapping) or experiment is None:
        return dict(experiment or {})
    words = experiment.split() if isinstance(experiment, str) else []
    pairs = [word.partition("=") for word in words]
    if not pairs or not all(name and equals for name, equals, _ in pairs):
        raise InvalidDocument([Problem(f'{where}: expected parameters with their values, such as `epoch: "1,30,60"`')])
    return {name: value for name, _, value in pairs}


def _changed(
    merged: Mapping[str, Any], given: Mapping[str, Any], params: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return settings and parameters with those of the command line on top."""
    settings, parameters = dict(merged), dict(given)
    if isinstance(settings.get("attributes"), Mapping):
        settings["attributes"] = dict(settings["attributes"])
    for name, value in params.items():
        first, _, rest = name.partition(".")
        if first in FORMS and rest:
            parameters[rest] = value
        elif not rest:
            parameters[name] = value
            for owner in (settings, settings.get("attributes")):
                # A parameter also takes the place of a setting of its name.
                if name not in FORMS and isinstance(owner, dict) and not isinstance(owner.get(name, {}), Mapping):
                    owner[name] = f"{{{PREFIX}.{name}}}"
        else:
            own = settings.get("attributes")
            section = own if first not in settings and isinstance(own, dict) and first in own else settings
            *sections, last = name.split(".")
            for each in sections:
                inner = section.get(each)
                section[each] = dict(inner) if isinstance(inner, Mapping) else {}
                section = section[each]
            section[last] = value
    return settings, parameters


def _values(
    given: Mapping[str, Any], form: str, merged: Mapping[str, Any], origin: Origin, environ: Mapping[str, str]
) -> dict[str, list[Value]]:
    """Return the values of all axes; placeholders in them may name settings, which are the same at every point."""
    axes: dict[str, list[Value]] = {}
    texts: Texts | None = None
    for name, value in given.items():
        where = place_of(origin, form, name)
        if isinstance(value, str) and "{" in value:
            if texts is None:
                settings = _settings(merged, form, {}, origin)
                texts = Texts(Definition("", Space({}), settings, origin, PREFIX, dialect=DIALECT), environ)
            value = "".join(str(part) for part in texts.compile(value, origin(form, name)).parts)
        if isinstance(value, list):
            value = [str(each) if each is None else each for each in value]
        axes[str(name)] = _prefixed(value, axis.values(value, typed=False, where=where))
    return axes


def _prefixed(text: Any, pieces: list[Value]) -> list[Value]:
    """Return values of a text `local:a,b` as local:a and local:b."""
    if not isinstance(text, str) or len(pieces) < 2 or ":" not in str(pieces[0]):
        return pieces
    if any(":" in str(each) for each in pieces[1:]):
        return pieces
    start = str(pieces[0]).partition(":")[0]
    return [pieces[0], *(f"{start}:{each}" for each in pieces[1:])]


# Settings


def _settings(
    merged: Mapping[str, Any], form: str, axes: Mapping[str, Sequence[Value]], origin: Origin
) -> dict[str, Any]:
    """Return the tree that placeholders are looked up in, with what cloudmesh adds to it."""
    also: dict[str, Any] = {}
    attributes = merged.get("attributes")
    if isinstance(attributes, Mapping):
        also.update(attributes)
    settings = dict(merged)
    derived: dict[str, Any] = {}
    if form == "experiments":
        named = {name: f"{{{PREFIX}.{name}}}" for name in axes}
        settings[form] = named
        for name, text in named.items():
            (settings if name in settings else also)[name] = text  # a parameter hides a setting of its name
    settings[PREFIX] = derived  # the values of a point are put beside it
    own = {"identifier": "{point.id}", "uuid": "{point.uuid}"}
    parent = str(uuid.uuid5(uuid.NAMESPACE_URL, json.dumps({**merged, form: 0}, sort_keys=True, default=str)))
    section = "sbatch" if "ee" not in settings and isinstance(settings.get("sbatch"), Mapping) else "ee"
    if isinstance(settings.get(section) or {}, Mapping):
        settings[section] = {**(settings.get(section) or {}), **own}
    for name, more in (("ee", own), ("sbatch", own), ("meta", {"uuid": own["uuid"], "parent": {"uuid": parent}})):
        also[name] = {**also[name], **more} if isinstance(also.get(name), Mapping) else dict(more)
    settings[ALSO] = also
    _add_directives(settings, derived, axes, origin)
    given = merged.get(form)
    for name, value in given.items() if isinstance(given, Mapping) else ():
        if value is None and name not in axes:
            settings[WHY][f"{PREFIX}.{name}"] = f"{origin(form, name)} has no value (null)"
    return settings


def _add_directives(
    settings: dict[str, Any], derived: dict[str, Any], axes: Mapping[str, Sequence[Value]], origin: Origin
) -> None:
    """Add `{slurm.sbatch}` and `{experiment.card_name}`, or why there is none.

    A directive other than `default` that the host does not have is an error at once, since the project counts on it.
    """
    key = "directive" if "directive" in axes else "card_name"
    names = [str(each) for each in axes.get(key, ())]
    table: dict[str, Any] = {}
    if key == "directive" and "card_name" not in axes:
        table["card_name"] = {name: name.partition("-")[0] for name in names}
        derived["card_name"] = f"{{{DIRECTIVES}.card_name.{{{PREFIX}.directive}}}}"
    own = settings.get("directives")
    own = own if isinstance(own, Mapping) else {}
    host = _host(settings)
    settings[DIRECTIVES] = table
    why = settings[WHY] = _without_value(settings, origin)
    if not names or not host:
        needed = "system.host" if not host else f"{PREFIX}.directive"
        why["slurm.sbatch"] = f"its lines come from `{needed}`, which is missing"
        return
    missing: list[tuple[str, NotFound]] = []
    options: dict[str, dict[str, dict[str, str]]] = {}
    for each in _known_hosts(own) if "{" in host else [host]:
        for name in names:
            try:
                options.setdefault(each, {})[name] = directives(each, name, own)
            except NotFound as error:
                missing.append((name, error))
    if "{" in host:
        why[DIRECTIVES] = "the host has no such directive"
    elif missing:
        name, first = next((each for each in missing if each[0] != "default"), missing[0])
        if key == "directive" and name != "default":
            raise UsageError(f"{origin(*_host_path(settings))}: {first.message}", hint=first.hint)
        why["slurm.sbatch"] = first.message
        return
    table["sbatch"] = {
        each: {name: sbatch_lines(directive_options) for name, directive_options in of.items()}
        for each, of in options.items()
    }
    slurm = settings.get("slurm") or {}
    if not isinstance(slurm, Mapping):
        return
    chosen = f"{{system.host}}.{{{PREFIX}.{key}}}"
    added: dict[str, Any] = {"sbatch": f"{{{DIRECTIVES}.sbatch.{chosen}}}"}
    if key == "card_name":  # cloudmesh-sbatch also has each option under its name
        table["options"] = options
        every = [directive_options for of in options.values() for directive_options in of.values()]
        common = [option for option in every[0] if all(option in directive_options for directive_options in every)]
        added["directive"] = {option: f"{{{DIRECTIVES}.options.{chosen}.{option}}}" for option in common}
    settings["slurm"] = {**added, **slurm}


def _without_value(tree: Any, origin: Origin, path: tuple[str, ...] = ()) -> dict[str, str]:
    """Return why each setting is not defined that a file names and gives no value."""
    if tree is None and path:
        reason = f"{origin(*path)} has no value (null)"
        names = [path, path[1:]] if path[0] == "attributes" else [path]
        return {".".join(name): reason for name in names if name}
    reasons: dict[str, str] = {}
    for key, value in tree.items() if isinstance(tree, Mapping) else ():
        if path or key not in INTERNAL:
            reasons |= _without_value(value, origin, (*path, str(key)))
    return reasons


def _host_path(settings: Mapping[str, Any]) -> tuple[str, ...]:
    path = ("system", "host")
    return path if isinstance(settings.get("system"), Mapping) else ("attributes", *path)


def _host(settings: Mapping[str, Any]) -> str:
    value: Any = settings
    for step in _host_path(settings):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else ""


def _known_hosts(own: Mapping[str, Any]) -> Iterator[str]:
    yield from dict.fromkeys([*_table(), *map(str, own)])
