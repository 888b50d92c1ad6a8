"""Programs and libraries built from source into an environment: C, C++ and Fortran, whatever builds them."""

from __future__ import annotations

import errno
import lzma
import os
import shlex
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fairmile.base.digest import sha256_file
from fairmile.base.errors import Integrity, NotFound, SystemFailure, UsageError
from fairmile.base.files import safe_join, write_failure
from fairmile.base.git import Repository, refuse_commands
from fairmile.base.units import format_size
from fairmile.envs.inputs import changed, copy_folder, file_sha256, folder_digest
from fairmile.envs.shells import Act, Assign, Prepend, pieces
from fairmile.envs.spec import BuildSpec, EnvironmentSpec
from fairmile.envs.steps import Step, Tools, Use

# As the archives of a store are bounded, but for the total, since no source code comes near that of data.
_MOST_BYTES, _RATIO, _RATIO_FROM_BYTES = 1 << 40, 200, 1 << 30
_GENERATE = ("autoreconf", "--force", "--install")
_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO})
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError)
_COMPILERS = ("CC", "CXX", "FC", "CFLAGS", "CXXFLAGS", "FFLAGS", "LDFLAGS", "CUDACXX", "HIPCXX", "MPICC")


def make_steps(spec: EnvironmentSpec, tools: Tools) -> Sequence[Step]:
    """Return one step for each source build of a specification."""
    compilers = {name: tools.environ[name] for name in _COMPILERS if tools.environ.get(name)}
    return [SourceStep(build, compilers, beside_conda=spec.conda is not None) for build in spec.builds]


class SourceStep:
    """One source build: fetched, patched, configured, made, installed into the prefix.

    `compilers` are the caller's CC, CXX, FC and flags, which decide what comes out. `beside_conda` leaves
    LD_LIBRARY_PATH alone, since conda's libraries in it would break the system's own programs.
    """

    def __init__(self, spec: BuildSpec, compilers: Mapping[str, str], *, beside_conda: bool = False) -> None:
        self.name = f"build-{spec.name}"
        self._spec = spec
        self._compilers = dict(compilers)
        self._beside_conda = beside_conda
        self._patches = [file_sha256(each) for each in spec.patches]
        self._tree = folder_digest(spec.folder) if spec.folder else ""
        self._archive = ""
        if spec.archive and (local := _local(spec.archive)) is not None:
            self._archive = file_sha256(local)
            if spec.sha256 not in (None, self._archive):
                raise Integrity(f"{local} has the sha256 {self._archive}, expected {spec.sha256}")

    def describe(self) -> str:
        spec = self._spec
        where = f"{spec.git} at {spec.revision}" if spec.git else spec.archive or spec.folder
        patches = f", {len(spec.patches)} patched in" if spec.patches else ""
        return f"build {spec.name} with {spec.system} from {where}{patches}"

    def material(self) -> Any:
        spec = self._spec
        kept = spec.model_dump(mode="json", exclude={"name", "patches", "folder", "after_python"})
        if self._archive:
            kept |= {"archive": self._archive, "sha256": self._archive}
        return {**kept, "patches": self._patches, "tree": self._tree, "compilers": self._compilers}

    def run(self, prefix: Path, tools: Tools) -> Mapping[str, Any]:
        spec = self._spec
        work = tools.work / self.name
        # A tree that was half patched or half built cannot be told from a good one: begin anew.
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        sources = work / "sources"
        lock = self._get(sources, work, tools)
        at = safe_join(sources, spec.subfolder) if spec.subfolder else sources
        if not at.is_dir():
            raise NotFound(f"the sources of {spec.name} have no folder {spec.subfolder!r}")
        for patch, digest in zip(spec.patches, self._patches, strict=True):
            changed(patch, digest, lambda patch=patch: file_sha256(patch))  # type: ignore[misc]
            tools.run(["patch", "-p1", "--forward", "--batch", "-i", patch], cwd=at)
        acts = (*tools.acts, *(Assign(name, value) for name, value in spec.variables.items()))
        within = replace(tools, acts=(*acts, Assign("PREFIX", str(prefix), literal=True)))
        for command in self._commands(at, work / "build", prefix, tools.jobs):
            try:
                within.run(command, cwd=at, env={"JOBS": str(tools.jobs)})
            except SystemFailure as error:
                if command[0] != _GENERATE[0]:
                    raise
                hint = "install autoconf, automake, libtool and m4, or name modules that bring them"
                raise SystemFailure(error.message, hint=hint) from error
        versions = _compiler_versions(within)
        shutil.rmtree(work, ignore_errors=True)
        return {**lock, "patches": self._patches, "compilers": versions}

    def use(self, prefix: Path) -> Use:
        libraries = [prefix / name for name in ("lib64", "lib") if (prefix / name).is_dir()]
        acts: list[Act] = [Prepend("PATH", prefix / "bin"), Prepend("CMAKE_PREFIX_PATH", prefix)]
        acts += [Prepend("CPATH", prefix / "include")]
        for folder in libraries:
            acts += [Prepend("LIBRARY_PATH", folder)]
            acts += [] if self._beside_conda else [Prepend("LD_LIBRARY_PATH", folder)]
        packages = [folder / "pkgconfig" for folder in (*libraries, prefix / "share")]
        acts += [Prepend("PKG_CONFIG_PATH", folder) for folder in packages if folder.is_dir()]
        return Use(tuple(acts))

    def _get(self, sources: Path, work: Path, tools: Tools) -> dict[str, Any]:
        """Bring the sources and return what they are, for the lock."""
        spec = self._spec
        if spec.folder:
            copy_folder(spec.folder, sources, self._tree)
            return {"tree": self._tree}
        if spec.archive:
            local = _local(spec.archive)
            archive = local if local is not None else tools.bring(spec.archive, spec.sha256)
            digest = sha256_file(archive)
            if (spec.sha256 or self._archive or digest) != digest:
                raise Integrity(f"{spec.archive} has the sha256 {digest}, expected {spec.sha256 or self._archive}")
            tools.unpack(archive, work / "unpacked")
            inside = list((work / "unpacked").iterdir())
            # Most archives hold one folder that bears the version.
            only = inside[0] if len(inside) == 1 and inside[0].is_dir() and not inside[0].is_symlink() else None
            (only or work / "unpacked").rename(sources)
            return {"archive": spec.archive, "sha256": digest}
        assert spec.git is not None
        commits = check_out(spec.git, spec.revision, sources, work / "git", tools)
        return {"git": spec.git, "commit": commits.pop(""), **({"submodules": commits} if commits else {})}

    def _commands(self, sources: Path, build: Path, prefix: Path, jobs: int) -> list[list[str]]:
        spec = self._spec
        options = [each.replace("${PREFIX}", str(prefix)).replace("$PREFIX", str(prefix)) for each in spec.options]
        if spec.system == "commands":
            return [["bash", "-eu", "-o", "pipefail", "-c", "\n".join(spec.commands)]]
        if spec.system == "cmake":
            rpath = f"-DCMAKE_INSTALL_RPATH={prefix}/lib;{prefix}/lib64"
            settings = [f"-DCMAKE_INSTALL_PREFIX={prefix}", "-DCMAKE_BUILD_TYPE=Release", rpath]
            configure = _with_options(["cmake", "-S", str(sources), "-B", str(build), *settings], options)
            make = ["cmake", "--build", str(build), "--parallel", str(jobs)]
            wanted = [[*make, "--target", each] for each in spec.targets] or [make, ["cmake", "--install", str(build)]]
            return [configure, *wanted]
        make = ["make", f"-j{jobs}"]
        first: list[list[str]] = []
        if spec.system == "autotools":
            generate = [] if (sources / "configure").exists() else [[*_GENERATE]]
            first = [*generate, _with_options(["./configure", f"--prefix={prefix}"], options)]
        else:
            make += [f"PREFIX={prefix}", f"prefix={prefix}"]
        own = [] if first else options
        wanted = [[*make, each] for each in spec.targets] or [make, [*make, "install"]]
        return [*first, *(_with_options(each, own) for each in wanted)]


def _with_options(argv: list[str], options: Sequence[str]) -> list[str]:
    """Return a command with options, in which the shell fills in variables; `$ORIGIN` and others that are not set stay.

    The values, which may be secret, do not get into the log.
    """
    cut = [pieces(each) for each in options]
    if not any(refers for each in cut for refers, _ in each):
        return [*argv, *options]
    filled = ("".join(f'"${{{t}-\\${t}}}"' if refers else shlex.quote(t) for refers, t in each) for each in cut)
    return ["bash", "-c", " ".join(["exec", shlex.join(argv), *filled])]


def check_out(location: str, revision: str, target: Path, bare: Path, tools: Tools) -> dict[str, str]:
    """Lay out one revision of a repository and its submodules in `target`; return the commit of each, "" its own."""
    repository = Repository(bare, tools.runner)
    repository.create()
    tools.on_line(f"git fetch {location} {revision}")
    commit = repository.fetch(location, revision)
    target.mkdir(parents=True, exist_ok=True)
    there = {"GIT_WORK_TREE": str(target)}
    repository.run("read-tree", commit, env=there)
    repository.run("checkout-index", "--all", "--force", "--quiet", cwd=target, env=there)
    commits = {"": commit}
    listed = repository.run("ls-tree", "-r", "-z", commit).split("\0")
    links = [each.partition("\t") for each in listed if each.startswith("160000 ")]
    if not links:
        return commits
    submodules = _submodules(repository, target)
    for number, (entry, _, path) in enumerate(links):
        submodule = submodules.get(path, {})
        if submodule.get("update") == "none":  # git leaves it out as well
            continue
        if "url" not in submodule:
            raise NotFound(f"{location} at {revision} has the submodule {path}, but does not say where it comes from")
        address = _relative_to(location, submodule["url"])
        refuse_commands(address)
        inner = check_out(
            address, entry.split()[2], safe_join(target, path), bare.with_name(f"{bare.name}.{number}"), tools
        )
        commits |= {f"{path}/{name}".rstrip("/"): each for name, each in inner.items()}
    return commits


def _submodules(repository: Repository, target: Path) -> dict[str, dict[str, str]]:
    """Return what a repository says of its submodules, by their paths."""
    listing = repository.run("config", "--file", str(target / ".gitmodules"), "--list", "-z")
    named: dict[str, dict[str, str]] = {}
    for entry in listing.split("\0"):
        key, _, value = entry.partition("\n")
        name, _, field = key.removeprefix("submodule.").rpartition(".")
        named.setdefault(name, {})[field] = value
    return {each["path"]: each for each in named.values() if "path" in each}


def _relative_to(location: str, address: str) -> str:
    """Return the address of a submodule, which may be given as seen from its parent's."""
    if not address.startswith(("./", "../")):
        return address
    base = location.rstrip("/")
    while address.startswith(("./", "../")):
        step, _, address = address.partition("/")
        base = base.rpartition("/")[0] if step == ".." else base
    return f"{base}/{address}"


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar or zip archive into a new folder; a member that would leave it raises UsageError."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if tarfile.is_tarfile(archive):
            _untar(archive, folder)
        elif zipfile.is_zipfile(archive):
            _unzip(archive, folder)
        else:
            raise UsageError(f"{archive} is neither a tar nor a zip archive")
    except OSError as error:
        if error.errno in _DISK:
            raise write_failure(str(folder), error) from error
        where = f": {Path(os.fsdecode(error.filename)).name[:80]}" if error.filename else ""
        raise UsageError(f"cannot unpack {archive}{where}: {error.strerror or error}") from error
    # The last two: a link to a member that is not there, an encrypted member or a method that is not known.
    except (*_DAMAGED, KeyError, RuntimeError) as error:
        raise UsageError(f"cannot unpack {archive}: {error}") from error


class _Bound:
    """Counts what an archive unpacks to, and refuses what no source code grows to."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._most_bytes = min(_MOST_BYTES, max(_RATIO_FROM_BYTES, _RATIO * archive.stat().st_size))
        self._bytes = 0

    def add(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        if self._bytes > self._most_bytes:
            raise UsageError(
                f"{self._archive} unpacks to more than {format_size(self._most_bytes)}, more than allowed",
                hint=f"unpack it yourself and give the folder; the limits are {_RATIO} times the size of the archive "
                f"beyond {format_size(_RATIO_FROM_BYTES)}, and {format_size(_MOST_BYTES)}",
            )


def _untar(archive: Path, folder: Path) -> None:
    bound = _Bound(archive)
    with tarfile.open(archive, errorlevel=2) as tar:
        for member in tar:
            bound.add(member.size)
            tar.extract(member, folder, filter="data")


def _unzip(archive: Path, folder: Path) -> None:
    bound = _Bound(archive)
    with zipfile.ZipFile(archive) as zipped:
        for member in zipped.infolist():
            bound.add(member.file_size)  # zipfile reads no more of a member than this
            path = safe_join(folder, member.filename)
            if member.is_dir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with zipped.open(member) as inside, open(path, "wb") as outside:
                shutil.copyfileobj(inside, outside)
            # Zip keeps the permission bits of Unix there; `configure` must stay executable.
            if member.external_attr >> 16 & 0o100:
                path.chmod(0o755)


def _local(address: str) -> Path | None:
    """Return the file that an address stands for on this machine, or None when it lies elsewhere."""
    if address.startswith("file://"):
        return Path(unquote(urlsplit(address).path))
    return Path(address) if address.startswith("/") else None


def _compiler_versions(tools: Tools) -> dict[str, str]:
    """Return what the compilers say of themselves, those that are there."""
    script = (
        "for each in CC:cc CXX:c++ FC:gfortran; do name=${each%%:*}; program=${!name:-${each##*:}}; "
        'said=$($program --version 2>/dev/null | head -n 1) && [ -n "$said" ] && echo "$name=$said"; done; true'
    )
    output = tools.run(["bash", "-c", script], check=False, quiet=True).stdout
    return dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
