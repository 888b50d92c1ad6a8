"""Conda packages, solved and installed in this process through py-rattler: no conda program is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fairmile.base.coroutines import finish
from fairmile.base.digest import sha256_file
from fairmile.base.errors import (
    FairmileError,
    Integrity,
    InvalidDocument,
    MissingExtra,
    NotFound,
    Problem,
    SystemFailure,
    Transient,
    UsageError,
)
from fairmile.base.strict_json import load_json
from fairmile.envs.shells import Act, Assign, Prepend, Source, Unset
from fairmile.envs.spec import CondaSpec, EnvironmentSpec
from fairmile.envs.steps import Step, Tools, Use

_CACHE = "conda"
_SOLVE_S = 600
# What an environment of conda that is active already leaves in a shell; it would make programs look there.
_OTHERS = ("CONDA_DEFAULT_ENV", "CONDA_PROMPT_MODIFIER", "CONDA_SHLVL", "CONDA_PYTHON_EXE")


def make_steps(spec: EnvironmentSpec, tools: Tools) -> Sequence[Step]:
    """Return the step that installs the conda packages of a specification."""
    if spec.conda is None:
        return []
    return [CondaStep(spec.conda)]


class CondaStep:
    """Solve conda packages for this machine and install them into the prefix.

    The packages' own link scripts are not run, for they may do anything. A package whose bytes differ from the digest
    in its channel's index is refused.
    """

    name = "conda"

    def __init__(self, spec: CondaSpec) -> None:
        rattler = _rattler()
        problems = []
        for number, text in enumerate(spec.packages):
            try:
                rattler.MatchSpec(text)
            except rattler.exceptions.InvalidMatchSpecError as error:
                message = f"{text!r} is not a requirement that conda understands: {error}"
                problems.append(Problem(message, field=f"conda.packages[{number}]"))
        if problems:
            raise InvalidDocument(problems, hint="write NAME, NAME VERSION or NAME >=LOW,<HIGH")
        self._spec = spec
        self._platform = str(rattler.Subdir.current())

    def describe(self) -> str:
        """Return the packages, their channels and the platform in one line."""
        wanted, channels = ", ".join(self._spec.packages), ", ".join(self._spec.channels)
        return f"install {wanted} from {channels} for {self._platform} with py-rattler"

    def material(self) -> Any:
        """Return what is asked for; which builds that led to is for the lock to say."""
        packages, channels = list(self._spec.packages), list(self._spec.channels)
        return {"channels": channels, "packages": packages, "platform": self._platform}

    def run(self, prefix: Path, tools: Tools) -> Mapping[str, Any]:
        """Solve, check, install, and return every package with its address, digest and size."""
        rattler = _rattler()
        cache = tools.cache / _CACHE
        records = finish(self._solve(rattler, cache))
        for record in records:
            _check_local_file(record)
        tools.on_line(f"conda: {len(records)} packages")
        try:
            finish(
                rattler.install(
                    records,
                    target_prefix=prefix,
                    cache_dir=cache / "packages",
                    show_progress=False,
                    client=_client(rattler),
                )
            )
        except rattler.exceptions.InstallerError as error:
            raise _install_failure(str(error)) from error
        entries = sorted((_entry(record) for record in records), key=lambda entry: str(entry["name"]))
        return {"platform": self._platform, "packages": entries}

    def use(self, prefix: Path) -> Use:
        """Return the acts of `conda activate`: the folder, its programs, and the scripts that packages bring."""
        acts: list[Act] = [Unset(name) for name in _OTHERS]
        acts += [Assign("CONDA_PREFIX", str(prefix), literal=True), Prepend("PATH", prefix / "bin")]
        for file in sorted((prefix / "etc/conda/env_vars.d").glob("*.json")):
            acts += _variables_of(file)
        acts += [Source(file, ("bash", "zsh", "sh")) for file in sorted((prefix / "etc/conda/activate.d").glob("*.sh"))]
        return Use(acts=tuple(acts))

    async def _solve(self, rattler: Any, cache: Path) -> list[Any]:
        from datetime import timedelta

        gateway = rattler.Gateway(cache_dir=cache / "index", client=_client(rattler))
        channels = [Path(text).as_uri() if text.startswith("/") else text for text in self._spec.channels]
        try:
            records: list[Any] = await rattler.solve(
                channels,
                list(self._spec.packages),
                gateway=gateway,
                virtual_packages=rattler.VirtualPackage.detect(),
                timeout=timedelta(seconds=_SOLVE_S),
            )
        except rattler.exceptions.SolverError as error:
            reason = str(error).strip().removeprefix("Cannot solve the request because of: ")
            raise UsageError(
                f"these conda packages cannot be installed together from {', '.join(self._spec.channels)} "
                f"for {self._platform}: {' '.join(reason.split())}",
                hint="relax the requirement named above, or add a channel that has it to conda.channels",
            ) from error
        except rattler.exceptions.GatewayError as error:
            raise _channel_failure(channels, str(error)) from error
        return records


def _rattler() -> Any:
    try:
        import rattler
        import rattler.exceptions
    except ImportError as error:
        raise MissingExtra("conda packages need py-rattler", "conda") from error
    return rattler


def _client(rattler: Any) -> Any:
    # The user's own login for a private channel, as `rattler auth` or .netrc keep it, never one of a specification.
    return rattler.Client([rattler.networking.RetryMiddleware(3), rattler.networking.AuthenticationMiddleware()])


def _check_local_file(record: Any) -> None:
    """Compare a package of a channel on disk with its digest, which rattler does for served channels only."""
    parts = urlsplit(record.url)
    if parts.scheme != "file" or record.sha256 is None:
        return
    file = unquote(parts.path)
    try:
        sha256 = sha256_file(file)
    except OSError as error:
        raise SystemFailure(f"cannot read the conda package {file}: {error.strerror}") from error
    if sha256 != record.sha256.hex():
        raise Integrity(
            f"the conda package {file} has the sha256 {sha256}, its channel's index says {record.sha256.hex()}",
            hint="rebuild the index of the channel, or replace the package",
        )


def _entry(record: Any) -> dict[str, Any]:
    return {
        "name": record.name.normalized,
        "version": str(record.version),
        "build": str(record.build),
        "url": record.url,
        "sha256": record.sha256.hex() if record.sha256 is not None else None,
        "size_bytes": record.size,
    }


def _variables_of(file: Path) -> list[Act]:
    """Return the variables that a package sets by a file of names and values."""
    try:
        values = load_json(file.read_text(encoding="utf-8"), file=str(file))
    except OSError as error:
        raise SystemFailure(f"cannot read {file}: {error.strerror}") from error
    if not isinstance(values, dict):
        raise InvalidDocument([Problem("expected names with texts", file=str(file))])
    return [
        Assign(name, text, literal=True)
        for name, text in sorted(values.items())
        if name.isidentifier() and name.isascii() and isinstance(text, str) and "\0" not in text
    ]


def _channel_failure(channels: Sequence[str], reason: str) -> FairmileError:
    message = f"cannot read the conda channels {', '.join(channels)}: {_causes(reason)}"
    if "could not find subdir" in reason:
        return NotFound(message, hint="check conda.channels; a channel is a name, an address or an absolute path")
    return Transient(message, hint="check the network and conda.channels, then try again")


def _install_failure(reason: str) -> FairmileError:
    message = f"the conda packages could not be installed: {_causes(reason)}"
    if "hash mismatch" in reason:
        return Integrity(message, hint="the channel's data does not match its index; try again later")
    if "HTTP status" in reason or "error sending request" in reason:
        return Transient(message, hint="try again; installed packages are kept")
    return SystemFailure(message)


def _causes(message: str) -> str:
    return ": ".join(dict.fromkeys(line.removeprefix("Caused by: ").rstrip(". ") for line in message.splitlines()))
