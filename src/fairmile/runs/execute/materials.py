"""Materials: files that a run finds at places of its own folder, brought from addresses and recorded as inputs.

Data is linked and read-only. Code is pinned to its commit when it is brought, and materialized as a copy that the
program may change.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.commands import Here
from fairmile.base.digest import sha256_file
from fairmile.base.errors import FairmileError, Integrity, NotFound
from fairmile.base.files import safe_join
from fairmile.base.git import Repository
from fairmile.base.lazy import lazy, lazy_pattern
from fairmile.base.quick_dataclass import dataclass

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

    from fairmile.catalog.assets import Assets
    from fairmile.transfer.credentials import shown_address
    from fairmile.transfer.fetchers.git import GitAddress
else:
    TemporaryDirectory = lazy("tempfile:TemporaryDirectory")
    GitAddress = lazy("fairmile.transfer.fetchers.git:GitAddress")
    shown_address = lazy("fairmile.transfer.credentials:shown_address")

_COMMIT = lazy_pattern(r"[0-9a-f]{40}")
_ABBREVIATED = lazy_pattern(r"[0-9a-f]{7,39}")


@dataclass(frozen=True)
class Material:
    """The files of an address, and where in the folder of a run they are materialized."""

    name: str  # among the inputs of the run, and of its placeholder
    address: str
    place: str  # the folder
    label: str = ""  # what messages call it; else its name
    file: str = ""  # what the only file is called there; empty where the folder as a whole is meant
    size_bytes: int | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)
    unpack: bool = False
    is_code: bool = False
    is_repository: bool = False  # code that its program calls git in

    @property
    def title(self) -> str:
        return self.label or self.name


def plan_materials(materials: Sequence[Material], assets: Assets) -> list[tuple[str, int | None]]:
    """Return for each material what would be fetched, and its size as far as its source or its owner states it."""
    planned: list[tuple[str, int | None]] = []
    for each in materials:
        try:
            sha256 = each.checksums.get("sha256") or None
            transfer = assets.plan([each.address], sha256=sha256, unpack=each.unpack)[0]
            planned.append((f"{each.title}: {transfer.describe()}", transfer.need_bytes))
        except FairmileError as error:
            text = f"{each.title}: {shown_address(each.address)} (unavailable now: {error})"
            planned.append((text, each.size_bytes))
    return planned


def bring(materials: Sequence[Material], assets: Assets) -> dict[str, dict[str, Any]]:
    """Fetch materials into the store and return them as the inputs of a run; no folder is needed.

    Each entry has asset (an address, that of code pinned to its commit), sha256 (the root of its files), size_bytes,
    files, and what `materialize` needs to put it into the folder of a run, now or for a rerun.
    """
    inputs: dict[str, dict[str, Any]] = {}
    for each in materials:
        address = _pinned(each.address, assets) if each.is_code else each.address
        sha256 = _stated_sha256(each, assets)
        (fetched,) = assets.fetch([address], sha256=sha256 or None, unpack=each.unpack)
        facts = {"sha256": fetched.root, "size_bytes": fetched.size_bytes, "files": fetched.files}
        entry: dict[str, Any] = {"asset": address, **facts, "place": each.place}
        entry |= {"repository": each.is_repository} if each.is_code else {}
        entry |= {"unpack": True} if each.unpack else {}
        entry |= {"checksum": sha256} if sha256 else {}
        entry |= {"file": each.file} if each.file else {}
        inputs[each.name] = entry
    return inputs


def materialize(inputs: Mapping[str, Mapping[str, Any]], assets: Assets, folder: Path) -> dict[str, str]:
    """Put what `bring` returned into the folder of a run and return where each thing lies.

    What a source holds now but did not when it was brought raises Integrity.
    """
    folder.mkdir(parents=True, exist_ok=True)
    places: dict[str, str] = {}
    for name, entry in inputs.items():
        if "place" not in entry:
            continue
        target = safe_join(folder, str(entry["place"]))  # the record may come from elsewhere
        if "repository" in entry:
            _copy_code(entry, assets, folder, target)
        else:
            _fetch_to(entry, assets, target)
            if entry.get("file"):
                target = _rename_only_file(target, safe_join(target, str(entry["file"])))
        places[name] = str(target)
    return places


def _pinned(address: str, assets: Assets) -> str:
    """Return the address of code at the commit that its revision means now."""
    place = GitAddress.parse(address)
    if _COMMIT.fullmatch(place.revision):
        return address
    try:
        (planned,) = assets.plan([address])
    except NotFound:
        if not _ABBREVIATED.fullmatch(place.revision):
            raise
        return place.pinned(_full_commit(place))
    return place.pinned(planned.items[0].sources[0].validator)


def _full_commit(place: GitAddress) -> str:
    """Return the commit that its first digits mean, for which git must have all commits."""
    with TemporaryDirectory(prefix="fairmile-git-") as folder:
        git = Repository(Path(folder) / "git", Here(), shown=shown_address)
        git.create()
        git.run("fetch", "--quiet", "--filter=tree:0", "--", place.location, "+refs/heads/*:refs/heads/*")
        return git.run("rev-parse", "--verify", f"{place.revision}^{{commit}}").strip()


def _stated_sha256(material: Material, assets: Assets) -> str:
    """Return the sha256 of a material's file, empty where none is stated; one of another kind is checked first."""
    stated = material.checksums.get("sha256", "")
    if stated or material.address.startswith("list+") or not (material.checksums or material.size_bytes):
        return stated
    file = assets.file(material.address)
    size = file.stat().st_size
    if material.size_bytes not in (None, size):
        raise Integrity(
            f"{material.title}: {shown_address(material.address)} has {size} bytes, expected {material.size_bytes}"
        )
    from hashlib import file_digest  # which few runs need, and all would load

    for algorithm in material.checksums.keys() & {"md5", "sha1", "sha512"}:
        with file.open("rb") as stream:
            digest = file_digest(stream, algorithm).hexdigest()
        if digest != material.checksums[algorithm]:
            stated = material.checksums[algorithm]
            raise Integrity(f"{material.title}: the {algorithm} of {material.address} is {digest}, expected {stated}")
    return sha256_file(file)


def _fetch_to(entry: Mapping[str, Any], assets: Assets, target: Path) -> None:
    unpack, sha256 = bool(entry.get("unpack")), entry.get("checksum")
    (fetched,) = assets.fetch([entry["asset"]], to=target, sha256=sha256, unpack=unpack, replace=True)
    if fetched.root != entry["sha256"]:
        raise Integrity(
            f"{entry['asset']} has different files than when it was fetched",
            hint=f"expected {entry['sha256']}, found {fetched.root}",
        )


def _rename_only_file(folder: Path, wanted: Path) -> Path:
    """Return the only file of a folder, at the path where the program looks for it."""
    if not wanted.exists():
        (only,) = (path for path in folder.rglob("*") if path.is_file())
        only.rename(wanted)
    return wanted


def _copy_code(entry: Mapping[str, Any], assets: Assets, folder: Path, target: Path) -> None:
    """Materialize code as files of its own: what the store lends may not be written to."""
    if target.exists():
        shutil.rmtree(target)
    with TemporaryDirectory(prefix=".code-", dir=folder) as lent:
        _fetch_to(entry, assets, Path(lent) / "files")
        for source, relative in _files(Path(lent) / "files"):
            own = target / relative
            own.parent.mkdir(parents=True, exist_ok=True)
            if source.is_symlink() and not os.path.isabs(os.readlink(source)):
                own.symlink_to(os.readlink(source))
                continue
            shutil.copyfile(source, own)
            own.chmod(0o644 | (source.stat().st_mode & stat.S_IXUSR and 0o111))
    target.mkdir(exist_ok=True)
    if entry.get("repository"):
        _make_repository(target, GitAddress.parse(entry["asset"]))


def _files(root: Path) -> Iterator[tuple[Path, Path]]:
    for path in sorted(root.rglob("*")):
        if path.is_symlink() or path.is_file():
            yield path, path.relative_to(root)


def _make_repository(folder: Path, place: GitAddress) -> None:
    """Make materialized code a clone of its repository, for programs that call git in it."""
    git = Repository(folder / ".git", Here(), shown=shown_address)
    git.create()
    commit = git.fetch(place.location, place.revision or "HEAD")
    for key, value in (("core.bare", "false"), ("remote.origin.url", place.location)):
        git.run("config", key, value)
    git.run("update-ref", "--no-deref", "HEAD", commit)
    git.run("read-tree", commit)
