"""Python in an environment: an interpreter that fits, a virtual environment on it, packages from uv or pip."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from configparser import ConfigParser
from configparser import Error as ConfigError
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from fairmile.base.errors import NotFound, SystemFailure, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.envs.inputs import changed, copy_folder, file_sha256, folder_digest, read_document
from fairmile.envs.shells import Act, Assign, Prepend, Unset
from fairmile.envs.spec import EnvironmentSpec, PythonSpec, holds_login
from fairmile.envs.steps import Step, Tools, Use

_MINORS = range(20, 7, -1)
_FIND = 'for each in "$@"; do type -P "$each"; done; true'
_PROBE = (
    "import json, os, platform, sys, sysconfig; print(json.dumps({"
    "'executable': os.path.realpath(getattr(sys, '_base_executable', None) or sys.executable), "
    "'version': platform.python_version(), 'implementation': sys.implementation.name, "
    "'platform': sysconfig.get_platform(), 'abi': sysconfig.get_config_var('SOABI') or '', "
    "'libc': ' '.join(platform.libc_ver())}))"
)
_LIST = (
    "import importlib.metadata as m, json; print(json.dumps([{'name': d.metadata['Name'], 'version': d.version, "
    "'at': str(d.locate_file('')), 'direct_url': json.loads(d.read_text('direct_url.json') or 'null')} "
    "for d in m.distributions()]))"
)
_SITE = "import sysconfig; print(sysconfig.get_path('purelib')); print(sysconfig.get_path('platlib'))"
_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==(\S+)((?:\s+--hash=sha256:[0-9a-f]{64})*)", re.MULTILINE)
_OPTION = re.compile(r"(?P<name>--[a-z-]+|-[a-z])[\s=]*(?P<value>.*)")
# Options of a requirements file that name files or folders; pip takes the long ones shortened too.
_OPTIONS = {
    "-r": "--requirement",
    "-c": "--constraint",
    "-e": "--editable",
    "-f": "--find-links",
    "-i": "--index-url",
    "": "--extra-index-url",
}
_SOURCES = ("--find-links", "--index-url", "--extra-index-url")
_PACKAGE_FILES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_OWN_INDEX = ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX")


@dataclass(frozen=True)
class Interpreter:
    """A Python of this machine; `executable` is the one behind every virtual environment."""

    executable: str
    version: str
    implementation: str
    platform: str
    abi: str
    libc: str


def make_steps(spec: EnvironmentSpec, tools: Tools) -> Sequence[Step]:
    """Return the step that installs the Python part of a specification; looks for interpreters, changes nothing."""
    wanted = spec.python
    if wanted is None:
        return ()
    of_conda = spec.conda is not None and any(re.match(r"python(?![\w.-])", each) for each in spec.conda.packages)
    interpreter = None if of_conda else find_interpreter(wanted, tools)
    return (PythonStep(wanted, interpreter, of_conda=of_conda),)


def find_interpreter(wanted: PythonSpec, tools: Tools) -> Interpreter | None:
    """Return the first Python on PATH that fits: python3 itself, then the newest; None leaves it to uv."""
    names = ["python3", *(f"python3.{minor}" for minor in _MINORS)]
    lines = tools.run(["bash", "-c", _FIND, "bash", *names], quiet=True).stdout.split("\n")
    seen: dict[str, Interpreter] = {}
    for program in dict.fromkeys(filter(None, lines)):
        interpreter = _probe(program, tools)
        if interpreter is None:
            continue
        if wanted.versions.contains(interpreter.version, prereleases=True):
            return interpreter
        seen[interpreter.version] = interpreter
    if wanted.managed:
        return None
    known = ", ".join(seen) or "none"
    raise NotFound(
        f"no Python {wanted.version or '3'} on this machine; on PATH: {known}",
        hint="load a module that provides it, or set `managed: true` under `python` to let uv download one",
    )


def _probe(program: str, tools: Tools) -> Interpreter | None:
    # A version manager leaves programs on PATH that only say that such a Python is not installed.
    done = tools.run([program, "-I", "-c", _PROBE], quiet=True, check=False, timeout_s=60)
    try:
        return Interpreter(**json.loads(done.stdout)) if done.exit_code == 0 else None
    except (ValueError, TypeError):
        return None


class PythonStep:
    """A virtual environment in the prefix, or conda's Python there, and the packages installed into it."""

    name = "python"

    def __init__(self, spec: PythonSpec, interpreter: Interpreter | None, *, of_conda: bool = False) -> None:
        self._spec = spec
        self._interpreter = interpreter
        self._of_conda = of_conda
        self._packages = [_package_material(each) for each in spec.packages]
        self._requirements = _requirements_digests(Path(spec.requirements)) if spec.requirements else []
        self._project = folder_digest(spec.project, project=True) if spec.project else ""
        if spec.project and not (Path(spec.project) / "pyproject.toml").is_file():
            raise NotFound(f"{spec.project} has no pyproject.toml", hint="give the folder of a Python project")

    def describe(self) -> str:
        if self._of_conda:
            base = "the Python of conda"
        elif self._interpreter is None:
            base = f"a Python {self._spec.version} that uv downloads"
        else:
            base = f"Python {self._interpreter.version} ({self._interpreter.executable})"
        what = [*self._spec.packages]
        what += [f"what {self._spec.requirements} lists"] if self._spec.requirements else []
        what += [f"the project {self._spec.project}"] if self._spec.project else []
        return f"install {', '.join(what)} into {base}" if what else f"make a virtual environment on {base}"

    def material(self) -> Any:
        return {
            "interpreter": asdict(self._interpreter) if self._interpreter else "conda" if self._of_conda else "uv",
            "version": self._spec.version,
            "packages": self._packages,
            "requirements": self._requirements,
            "project": self._project,
            "extras": list(self._spec.extras),
            "system_packages": self._spec.system_packages,
        }

    def run(self, prefix: Path, tools: Tools) -> Mapping[str, Any]:
        self._refuse_changed()
        # uv resolves as if the packages of conda or of the interpreter itself were not there.
        uv = None if self._spec.system_packages or self._of_conda else find_uv(tools)
        self._make_python(prefix, tools, uv)
        python = prefix / "bin" / "python"
        before = _forget_half_installed(python, tools)
        wanted, copies = self._wanted(tools)
        hashes: dict[tuple[str, str], list[str]] = {}
        if wanted or self._spec.requirements:
            install = _Uv(uv, tools) if uv else _Pip(tools)
            hashes = install(python, wanted, self._spec.requirements)
        return {
            "interpreter": asdict(_need(_probe(str(python), tools), python)),
            "installer": "uv" if uv else "pip",
            "packages": _installed(python, tools, before, hashes, copies),
        }

    def use(self, prefix: Path) -> Use:
        acts: list[Act] = [Unset("PYTHONHOME"), Unset("PYTHONPATH"), Assign("PYTHONNOUSERSITE", "1")]
        if not self._of_conda:
            acts.append(Assign("VIRTUAL_ENV", str(prefix), literal=True))
        return Use((*acts, Prepend("PATH", prefix / "bin")))

    def _refuse_changed(self) -> None:
        spec = self._spec
        for given, before in zip(spec.packages, self._packages, strict=True):
            changed(given, str(before), lambda given=given: str(_package_material(given)))  # type: ignore[misc]
        if spec.requirements:
            file = Path(spec.requirements)
            changed(file, str(self._requirements), lambda: str(_requirements_digests(file)))

    def _make_python(self, prefix: Path, tools: Tools, uv: str | None) -> None:
        if self._of_conda:
            if tools.run([str(prefix / "bin" / "python"), "-m", "pip", "--version"], check=False, quiet=True).exit_code:
                tools.run([str(prefix / "bin" / "python"), "-m", "ensurepip"])
            return
        if self._interpreter is None:
            if uv is None:
                raise SystemFailure("downloading a Python needs uv, which is not installed", hint="pip install uv")
            request = self._spec.version or "3"
            command = [uv, "venv", "--quiet", "--allow-existing", "--managed-python", "--python", request, str(prefix)]
            # Inside the prefix, since a virtual environment is worth nothing without the interpreter below it.
            tools.run(command, env={"UV_PYTHON_INSTALL_DIR": str(prefix / "interpreter")})
            return
        base = self._interpreter.executable
        if uv is not None:
            tools.run([uv, "venv", "--quiet", "--allow-existing", "--no-project", "--python", base, str(prefix)])
            return
        system = ["--system-site-packages"] if self._spec.system_packages else []
        tools.run([base, "-m", "venv", *system, str(prefix)])

    def _wanted(self, tools: Tools) -> tuple[list[str], dict[str, str]]:
        """Return what to install, and for each copy of a folder of sources the digest of what it holds.

        Folders are installed from copies, since builds leave files beside the sources.
        """
        wanted: list[str] = []
        copies: dict[str, str] = {}
        given = [(each, "", material) for each, material in zip(self._spec.packages, self._packages, strict=True)]
        if self._spec.project:
            extras = f"[{','.join(self._spec.extras)}]" if self._spec.extras else ""
            given.append((self._spec.project, extras, {"folder": self._project}))
        for number, (package, extras, material) in enumerate(given):
            digest = material.get("folder") if isinstance(material, dict) else None
            if digest is not None:
                copy = tools.work / "python" / str(number) / Path(package).name
                copy_folder(package, copy, digest, project=True)
                copies[str(copy)] = digest
                package = str(copy)
            wanted.append(package + extras)
        return wanted, copies


def find_uv(tools: Tools) -> str | None:
    """Return uv where it is on PATH or installed beside Fairmile, else None."""
    on_path = tools.run(["bash", "-c", "type -P uv; true"], quiet=True).stdout.strip()
    if on_path:
        return on_path
    try:
        import uv
    except ImportError:
        return None
    try:
        return str(uv.find_uv_bin())
    except FileNotFoundError:
        return None


class _Uv:
    """Resolve with uv, keep the result so that a second attempt installs the same, and install it."""

    def __init__(self, program: str, tools: Tools) -> None:
        self._program = program
        self._tools = tools

    def __call__(self, python: Path, wanted: Sequence[str], listed: str | None) -> dict[tuple[str, str], list[str]]:
        tools, env, at = self._tools, uv_index_settings(self._tools.environ), _folder_of(listed)
        locked = tools.work / "python-locked.txt"
        if not locked.exists():
            fresh = locked.with_suffix(".new")
            files = [listed] if listed else []
            given = tools.work / "python-wanted.txt"
            write_atomic(given, "".join(f"{_as_requirement(each)}\n" for each in wanted))
            command = [self._program, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes"]
            tools.run([*command, "--python", str(python), "-o", str(fresh), str(given), *files], cwd=at, env=env)
            fresh.rename(locked)
        # Hard links to uv's cache would let whoever changes one change the other.
        # Byte code is made now, since nobody can write it once the prefix is read-only.
        command = [self._program, "pip", "install", "--python", str(python), "--link-mode", "copy"]
        tools.run([*command, "--compile-bytecode", "-r", str(locked)], cwd=at, env=env)
        packages: dict[tuple[str, str], list[str]] = {}
        for name, version, hashes in _PINNED.findall(locked.read_text(encoding="utf-8").replace("\\\n", " ")):
            packages[canonicalize_name(name), version] = re.findall(r"sha256:([0-9a-f]{64})", hashes)
        return packages


class _Pip:
    """Install with the pip of the environment, which reports what it took."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def __call__(self, python: Path, wanted: Sequence[str], listed: str | None) -> dict[tuple[str, str], list[str]]:
        report = self._tools.work / "pip-report.json"
        report.unlink(missing_ok=True)
        command = [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
        given = [*wanted, *(["-r", listed] if listed else [])]
        self._tools.run([*command, "--report", str(report), *given], cwd=_folder_of(listed))
        packages: dict[tuple[str, str], list[str]] = {}
        for each in json.loads(report.read_text(encoding="utf-8"))["install"]:
            digest = each.get("download_info", {}).get("archive_info", {}).get("hashes", {}).get("sha256")
            key = canonicalize_name(each["metadata"]["name"]), each["metadata"]["version"]
            packages[key] = [digest] if digest else []
        return packages


def _folder_of(listed: str | None) -> Path | None:
    """Return where an installer must stand to find the files that a requirements file names."""
    return Path(listed).parent if listed else None


def uv_index_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that lead uv to the indexes that pip is set to, where uv itself is set to none.

    uv does not read pip's settings, and on many machines they are what leads to an index at all.
    """
    if any(environ.get(name) for name in _OWN_INDEX):
        return {}
    given = _pip_settings(environ)
    settings: dict[str, str] = {}
    if given.get("index-url"):
        settings["UV_DEFAULT_INDEX"] = given["index-url"]
    if given.get("extra-index-url"):
        settings["UV_INDEX"] = " ".join(given["extra-index-url"].split())
        settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # as pip does: the best version of all indexes
    if given.get("find-links"):
        settings["UV_FIND_LINKS"] = ",".join(given["find-links"].split())
    if given.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        settings["UV_NO_INDEX"] = "1"
    return settings


def _pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return pip's settings for indexes: files of the site and of the user, then the environment; the last wins."""
    home = Path(environ.get("HOME") or "/")
    own = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    files = [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", own]
    if environ.get("PIP_CONFIG_FILE"):
        files.append(Path(environ["PIP_CONFIG_FILE"]))
    parser = ConfigParser(interpolation=None, strict=False)
    settings: dict[str, str] = {}
    try:
        parser.read(files, encoding="utf-8")
    except (ConfigError, UnicodeDecodeError) as error:
        raise SystemFailure(f"cannot read pip's settings: {error}") from error
    for section in ("global", "install"):
        if parser.has_section(section):
            settings |= {key.replace("_", "-"): value for key, value in parser.items(section)}
    for key in ("index-url", "extra-index-url", "find-links", "no-index"):
        value = environ.get("PIP_" + key.upper().replace("-", "_"))
        if value is not None:
            settings[key] = value
    return settings


def _as_requirement(package: str) -> str:
    """Return a package as a line of a requirements file, where a blank in a path would end it."""
    if not package.startswith("/"):
        return package
    path, bracket, extras = package.partition("[")
    return Path(path).as_uri() + bracket + extras


def _need(interpreter: Interpreter | None, python: Path) -> Interpreter:
    if interpreter is None:
        raise SystemFailure(f"{python} does not run", hint="build the environment again")
    return interpreter


def _forget_half_installed(python: Path, tools: Tools) -> Sequence[Sequence[str]]:
    """Take away what an installation that was cut off left among the packages, since installers trust what is there.

    Return place, name and version of the packages that were there before any was installed: those of conda, of the
    interpreter itself, and what a virtual environment brings.
    """
    note = tools.work / "python-before.json"
    places = {Path(line) for line in tools.run([str(python), "-I", "-c", _SITE], quiet=True).stdout.split("\n") if line}
    if not note.exists():
        names = {str(place): sorted(each.name for each in place.iterdir()) for place in places if place.is_dir()}
        packages = [_known_as(each) for each in _listed(python, tools)]
        write_atomic(note, json.dumps({"files": names, "packages": packages}))
        return packages
    before: dict[str, Any] = json.loads(note.read_text(encoding="utf-8"))
    for place in places:
        for each in place.iterdir() if place.is_dir() else ():
            if each.name not in before["files"].get(str(place), ()):
                shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
    known: Sequence[Sequence[str]] = before["packages"]
    return known


def _listed(python: Path, tools: Tools) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(tools.run([str(python), "-I", "-c", _LIST], quiet=True).stdout)
    return listed


def _known_as(package: Mapping[str, Any]) -> list[str]:
    return [package["at"], canonicalize_name(package["name"]), package["version"]]


def _installed(
    python: Path,
    tools: Tools,
    before: Sequence[Sequence[str]],
    hashes: Mapping[tuple[str, str], list[str]],
    copies: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return each package that was not there `before`, with version and the digests of the files it may come from.

    One that came from no index is told with where it came from.
    """
    packages: dict[str, dict[str, Any]] = {}
    for each in _listed(python, tools):
        if _known_as(each) in before:
            continue
        name = canonicalize_name(each["name"])
        entry = {"name": name, "version": each["version"], "sha256": hashes.get((name, each["version"]), [])}
        packages.setdefault(name, entry | _origin(each["direct_url"] or {}, copies))
    return [packages[name] for name in sorted(packages)]


def _origin(direct: Mapping[str, Any], copies: Mapping[str, str]) -> dict[str, Any]:
    """Return where a package came from that came from no index."""
    if not direct.get("url"):
        return {}
    parts = urlsplit(direct["url"])
    local = unquote(parts.path)
    if parts.scheme == "file" and local in copies:
        return {"tree": copies[local]}
    origin: dict[str, Any] = {"from": parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()}
    if parts.scheme == "file" and Path(local).is_file():
        origin["sha256"] = [file_sha256(local)]
    if "vcs_info" in direct:
        origin |= {"from": f"{direct['vcs_info']['vcs']}+{origin['from']}", "commit": direct["vcs_info"]["commit_id"]}
    return origin


def _package_material(package: str) -> Any:
    """Return a requirement as it is written, a local package by what it holds."""
    if package.startswith("/"):
        path = Path(package)
        return {"folder": folder_digest(path, project=True)} if path.is_dir() else {"file": file_sha256(path)}
    asked, at, url = package.partition("@")
    if at and url.strip().startswith("file:"):
        return [asked.strip(), _package_material(_path_of(url.partition(";")[0].strip()))]
    return package


def _path_of(url: str) -> str:
    """Return the file or folder that a file: address stands for."""
    path = unquote(urlsplit(url).path)
    if not path.startswith("/"):
        raise UsageError(f"{url!r} is not an absolute path of a file", hint="write it as file:///folder/package.whl")
    return re.sub(r"\[[^\]]*\]$", "", path)


def _requirements_digests(file: Path) -> list[Any]:
    """Return what a requirements file and all it includes ask for, local packages by what they hold."""
    return [_line_material(line, file, at) for line, at in _logical_lines(file, ())]


def _option(line: str) -> tuple[str, str]:
    """Return the long name and the value of a line that is an option, two empty texts for any other."""
    option = _OPTION.fullmatch(line)
    if option is None:
        return "", ""
    name = _OPTIONS.get(option["name"], option["name"])
    return next((full for full in _OPTIONS.values() if full.startswith(name)), name), option["value"].strip("\"'")


def _logical_lines(file: Path, above: tuple[Path, ...]) -> Iterator[tuple[str, Path]]:
    """Yield each line of a requirements file and of those it includes, with the file that it stands in."""
    if file in above:
        raise UsageError(f"the requirements file {file} includes itself")
    try:
        text = read_document(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise NotFound(f"cannot read the requirements file {file}: {reason}") from error
    for raw in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"(?:^|\s)#.*$", "", raw).strip()
        name, value = _option(line)
        if name in ("--requirement", "--constraint"):
            if "://" in value:
                raise UsageError(f"{file} includes {value}, which may change", hint="keep a copy beside it")
            yield name[1:3], file
            yield from _logical_lines(file.parent / value, (*above, file))
        elif line:
            yield line, file


def _line_material(line: str, file: Path, at: Path) -> Any:
    """Return what a line of the file `at`, which `file` includes or is, asks for."""
    if holds_login(line):
        raise UsageError(f"{at} holds an address with a login", hint="keep it in pip's own settings or in .netrc")
    name, value = _option(line)
    if name == "--editable":
        raise UsageError(
            f"{at}: {line!r} is an editable package, which changes after the environment is built",
            hint="give its folder as `project`, or without -e",
        )
    if name in _SOURCES:
        return [name, value if "://" in value and not value.startswith("file:") else _source_material(value, file, at)]
    target = re.split(r"\s;|;\s|\s--", line)[0].strip()
    if re.search(r"@\s*file:", target):
        return _package_material(target)
    if target.startswith("file:"):
        return _package_material(_path_of(target))
    bare = re.sub(r"\[[^\]]*\]$", "", target)
    # Installers see paths from where they stand, which is the folder of the file that is given to them.
    path = file.parent / bare
    if bare.startswith((".", "/")) or ("/" in bare and "://" not in bare) or _is_package_file(path):
        return [line.removeprefix(bare), _package_material(str(path))]
    return line


def _is_package_file(path: Path) -> bool:
    return path.name.endswith(_PACKAGE_FILES) and path.is_file()


def _source_material(value: str, file: Path, at: Path) -> list[str]:
    """Return what a local place for packages holds; installers look for it beside the one or the other file."""
    given = _path_of(value) if value.startswith("file:") else value
    places = [path for path in dict.fromkeys(each.parent / given for each in (at, file)) if path.exists()]
    if not places:
        raise NotFound(f"{at}: there is no {value!r} to install packages from", hint="check the path")
    return [folder_digest(path) if path.is_dir() else file_sha256(path) for path in places]


def pinned(packages: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[str, ...]]:
    """Return the packages of a lock as a requirements file, and what it cannot say.

    It holds the digests of the files they came from, unless one has none: installers want them for all or for none.
    What was installed from a folder of sources stands in a comment, since no index has it.
    """
    lines: list[str] = []
    listed = [each for each in packages if "tree" not in each]
    without = [each["name"] for each in listed if not each["sha256"]]
    for each in packages:
        if "tree" in each:
            lines.append(f"# {each['name']}=={each['version']} was built from a folder with the digest {each['tree']}")
            continue
        where = each.get("from", "") + (f"@{each['commit']}" if "commit" in each else "")
        line = f"{each['name']} @ {where}" if where else f"{each['name']}=={each['version']}"
        digests = [] if without else [f"--hash=sha256:{digest}" for digest in each["sha256"]]
        lines.append(" \\\n    ".join([line, *digests]))
    warning = f"no digest of {', '.join(without)} is known, so it has none: installers need all digests or none"
    return "".join(f"{line}\n" for line in lines), (warning,) if without else ()
