"""Programs that fetch: curl, wget, aria2c, rclone, cloud tools, and any other that the settings declare.

A program is a list of words with placeholders. A value takes the place of a placeholder within one word, so it
never becomes a word of its own, never an option, and never reaches a shell. Every user of the machine can read the
words of a program that runs: an address with a password reaches it by its standard input, or not at all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import string
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from fairmile.base.digest import parse_checksum
from fairmile.base.errors import (
    FairmileError,
    InvalidDocument,
    NotFound,
    Problem,
    SystemFailure,
    Transient,
    UsageError,
)
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.words import did_you_mean
from fairmile.transfer.credentials import holds_secret, shown_address
from fairmile.transfer.remote import Context, Remote

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SOURCE = ("url", "host", "path")
_TARGET = ("file", "folder", "name")
_KEYS = ("command", "schemes", "resumes", "output", "find", "input")
_LOOK_EVERY_S = 0.5
_LAST_LINES = 8


@dataclass(frozen=True)
class Command:
    """A program that fetches, as a list of words with placeholders.

    {url} is the address, {host} and {path} are its parts; {folder} is the folder to fill, {file} the path of the
    one file to write there, {name} its name. `output` says which of both it makes, "file" or "folder". `input` is
    what the program reads from its standard input, with the same placeholders.

    `resumes` says that the program itself goes on with what an earlier attempt left, and notices when the source
    has changed since; before any other one the folder is emptied. `find` lists what is there as `rclone lsjson`
    does. `missing` and `transient` are exit codes with a meaning; `debris` are patterns of what it leaves beside
    the data.
    """

    name: str
    argv: tuple[str, ...]
    schemes: tuple[str, ...] = ()
    resumes: bool = False
    output: str = "file"
    find: tuple[str, ...] = ()
    missing: frozenset[int] = frozenset()
    transient: frozenset[int] = frozenset()
    debris: tuple[str, ...] = ()
    input: str = ""


def _known(name: str, command: str, schemes: str, *, find: str = "", **more: Any) -> Command:
    return Command(name, tuple(command.split()), tuple(schemes.split()), find=tuple(find.split()), **more)


# curl, wget and aria2c can continue a file, but do so without asking whether it is still the same one.
KNOWN: Mapping[str, Command] = {
    each.name: each
    for each in (
        _known(
            "curl",
            "curl --fail --location --globoff --netrc-optional --connect-timeout 30 --speed-limit 1 --speed-time 60 "
            "--output {file} --config -",
            "http https ftp ftps sftp scp",
            input='url = "{url}"\n',
            missing=frozenset({78}),
            transient=frozenset({5, 6, 7, 18, 28, 35, 52, 55, 56, 92}),
        ),
        _known(
            "wget",
            "wget --progress=dot:mega --timeout=60 --tries=3 --output-document={file} --input-file=-",
            "http https ftp ftps",
            input="{url}\n",
            transient=frozenset({4}),
        ),
        _known(
            "aria2c",
            "aria2c --max-connection-per-server=16 --split=16 --min-split-size=1M --file-allocation=none "
            "--allow-overwrite=true --auto-file-renaming=false --follow-torrent=false --follow-metalink=false "
            "--timeout=60 --summary-interval=1 --console-log-level=warn --enable-color=false --download-result=hide "
            "--input-file=-",
            "http https ftp sftp",
            input="{url}\n dir={folder}\n out={name}\n",
            missing=frozenset({3, 4}),
            transient=frozenset({2, 6, 19, 29}),
            debris=("*.aria2",),
        ),
        _known(
            "rclone",  # rclone://REMOTE/path, where `rclone config` knows REMOTE
            "rclone copy --stats=1s --stats-one-line --stats-log-level=NOTICE --timeout=60s -- {host}:{path} {folder}",
            "rclone",
            find="rclone lsjson --recursive --files-only --hash -- {host}:{path}",
            resumes=True,
            output="folder",
            missing=frozenset({3, 4}),
            transient=frozenset({5}),
        ),
        _known("aws", "aws s3 cp --no-progress {url} {file}", "s3"),
        _known("azcopy", "azcopy copy --overwrite=true --log-level=ERROR -- {url} {file}", "https"),
        _known("gsutil", "gsutil cp {url} {file}", "gs"),
        _known("globus-url-copy", "globus-url-copy -cd -r {url} file://{folder}/", "gsiftp", output="folder"),
        _known(
            "hf",  # hf://OWNER/MODEL
            "hf download --local-dir {folder} -- {host}/{path}",
            "hf",
            resumes=True,
            output="folder",
            debris=(".cache",),
        ),
    )
}


def parse_command(name: str, settings: Any) -> Command:
    """Return the command that `transfer.fetchers.NAME` declares, or the known one of that name without settings."""
    if settings is None:
        if name in KNOWN:
            return KNOWN[name]
        near = did_you_mean(name, KNOWN)
        raise NotFound(
            f"no fetching program named {name!r}" + (f"; {near}" if near else ""),
            hint=f"declare it in the settings as transfer.fetchers.{name}, or use one of: {', '.join(KNOWN)}",
        )
    field = f"transfer.fetchers.{name}"
    if not _NAME.fullmatch(name):
        raise InvalidDocument([Problem(f"{name!r} is not a name for a program", field="transfer.fetchers")])
    if not isinstance(settings, Mapping):
        raise InvalidDocument(
            [Problem("expected keys with values", field=field, hint="command: [mytool, get, '{url}', '{file}']")]
        )
    problems = [
        Problem(
            f"no such key; {did_you_mean(str(key), _KEYS) or 'known: ' + ', '.join(_KEYS)}",
            field=f"{field}.{key}",
        )
        for key in settings
        if key not in _KEYS
    ]
    output, resumes = settings.get("output", "file"), settings.get("resumes", False)
    if output not in ("file", "folder"):
        problems.append(Problem(f"expected file or folder, found {output!r}", field=f"{field}.output"))
    if not isinstance(resumes, bool):
        problems.append(Problem(f"expected true or false, found {resumes!r}", field=f"{field}.resumes"))
    schemes = settings.get("schemes", [])
    if not isinstance(schemes, list) or not all(isinstance(each, str) and _SCHEME.fullmatch(each) for each in schemes):
        problems.append(Problem(f"expected a list such as [my], found {schemes!r}", field=f"{field}.schemes"))
    text = settings.get("input", "")
    if not isinstance(text, str):
        problems.append(Problem(f"expected a text such as '{{url}}', found {text!r}", field=f"{field}.input"))
        text = ""
    wrong = _placeholder_problems(text, f"{field}.input", [*_SOURCE, *_TARGET])
    text = "" if wrong else text
    problems += wrong + _template_problems(settings.get("command"), f"{field}.command", [*_SOURCE, *_TARGET], text)
    is_target = set(_TARGET) if output == "file" else {"folder"}
    if not problems and not _fields([*settings["command"], text]) & is_target:
        wanted = "{file}" if output == "file" else "{folder}"
        problems.append(Problem(f"no word contains {wanted}, so nothing would be written", field=f"{field}.command"))
    if "find" in settings:
        problems += _template_problems(settings["find"], f"{field}.find", _SOURCE)
    if problems:
        raise InvalidDocument(problems)
    return Command(
        name,
        tuple(settings["command"]),
        tuple(schemes),
        resumes,
        str(output),
        tuple(settings.get("find", ())),
        input=text,
    )


def _template_problems(words: Any, field: str, allowed: Sequence[str], also: str = "") -> list[Problem]:
    if isinstance(words, str):
        return [Problem("expected a list of words, found one text", field=field, hint=f"write {words.split()}")]
    if (
        not isinstance(words, list)
        or not words
        or not all(isinstance(word, str) and "\0" not in word for word in words)
    ):
        return [
            Problem(f"expected a list of words, found {words!r}", field=field, hint="[mytool, get, '{url}', '{file}']")
        ]
    problems = []
    for number, word in enumerate(words):
        problems += _placeholder_problems(word, f"{field}[{number}]", allowed)
    if not words[0] or words[0].startswith("-") or "{" in words[0]:
        problems.append(Problem(f"{words[0]!r} is not a program", field=f"{field}[0]"))
    if not problems and not _fields([*words, also]) & set(_SOURCE):
        problems.append(Problem("no word contains {url}, so the address would not be passed on", field=field))
    return problems


def _placeholder_problems(text: str, field: str, allowed: Sequence[str]) -> list[Problem]:
    try:
        names = _fields([text])
    except ValueError:
        message, hint = f"{text!r} has a brace without its other half", "write {{ or }} for a brace itself"
        return [Problem(message, field=field, hint=hint)]
    known = "known: " + ", ".join(f"{{{each}}}" for each in allowed)
    return [
        Problem(f"{text!r} has the unknown placeholder {{{unknown}}}", field=field, hint=known)
        for unknown in sorted(names - set(allowed))
    ]


def _fields(words: Sequence[str]) -> set[str]:
    """Return the placeholders in a list of words; ValueError where a brace stands alone."""
    names = set()
    for word in words:
        for _, field, form, conversion in string.Formatter().parse(word):
            if field is not None:
                names.add(field + (f"!{conversion}" if conversion else "") + (f":{form}" if form else ""))
    return names


class CommandFetcher:
    """Fetches with a program of the user's; it runs in the user's environment, since its credentials are its own."""

    def __init__(self, context: Context, command: Command) -> None:
        self._context = context
        self._command = command

    def find(self, address: str) -> list[Remote]:
        values = self._values(address)
        if not self._command.find:
            return [Remote(address, values["name"])]
        argv = self._filled(self._command.find, values)
        result = self._context.runner.run(argv, env=passed_on(self._context.environ), check=False)
        if result.exit_code != 0:
            raise self._failure(address, result.exit_code, result.stderr or result.stdout)
        remotes = [_listed(each, address) for each in self._listing(address, result.stdout)]
        if not remotes:
            raise NotFound(f"{self._command.name} finds no file at {shown_address(address)}")
        return remotes

    def bring(self, address: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        values = self._values(address)
        target = folder.absolute()
        values |= {"folder": str(target), "file": str(target / values["name"])}
        if not self._command.resumes:
            _remove(target, ["*"])
        growth = Growth(target, on_bytes, ignored=self._command.debris)
        argv = self._filled(self._command.argv, values)
        result = self._context.runner.run(
            argv,
            env=passed_on(self._context.environ),
            input=self._command.input.format_map(values | {"url": _unquotable(values["url"])}) or None,
            check=False,
            on_wait=growth.look_now_and_then,
        )
        if result.exit_code != 0:
            raise self._failure(address, result.exit_code, result.stderr or result.stdout)
        _remove(target, self._command.debris)
        if not os.listdir(target):
            raise SystemFailure(
                f"{self._command.name} says that it fetched {shown_address(address)}, but wrote nothing to {target}",
                hint=f"check its command: {' '.join(self._command.argv)}",
            )
        growth.look()

    def _values(self, address: str) -> dict[str, str]:
        """Return what stands for the placeholders; anything that a program could misread is refused."""
        shown = shown_address(address)
        address = address.removeprefix(f"{self._command.name}+")
        scheme, colon, rest = address.partition(":")
        schemes = self._command.schemes
        if not colon or not _SCHEME.fullmatch(scheme.lower()) or (schemes and scheme.lower() not in schemes):
            raise UsageError(
                f"{shown!r} is not an address for {self._command.name}",
                hint=f"it takes {', '.join(f'{each}://…' for each in schemes or ('scheme',))}",
            )
        if not all(letter.isprintable() and not letter.isspace() for letter in address):
            raise UsageError(
                f"{shown!r} contains a space or another character that is not allowed in an address",
                hint="a space is %20",
            )
        host, _, path = rest.removeprefix("//").partition("/")
        path = re.split("[?#]", path, maxsplit=1)[0]
        used = _fields([*self._command.argv, *self._command.find, self._command.input])
        if "host" in used and not _HOST.fullmatch(host):
            raise UsageError(f"{shown!r} does not name a host for {self._command.name}")
        if "path" in used and not unquote(path).isprintable():
            raise UsageError(f"{shown!r} contains a character that is not allowed in a path")
        name = PurePosixPath(unquote(path)).name
        if not name.isprintable() or "\\" in name or name in ("", ".", "..") or len(name.encode()) > 255:
            name = "download"
        return {"url": address, "host": host, "path": unquote(path), "name": name}

    def _filled(self, template: Sequence[str], values: Mapping[str, str]) -> list[str]:
        if _fields(template) & set(_SOURCE) and holds_secret(values["url"]):
            raise UsageError(
                f"{shown_address(values['url'])} contains a password or a key, which every user of this machine could "
                f"read in the arguments of {self._command.name}",
                hint=f"store it where {self._command.name} looks for logins; one of `transfer.fetchers` may read the "
                "address from its standard input: input: '{url}'",
            )
        words = [word.format_map(values) for word in template]
        for word, form in zip(words, template, strict=True):
            if word.startswith("-") and not form.startswith("-"):
                raise UsageError(f"{shown_address(values['url'])!r} would become the option {word!r}")
        return words

    def _listing(self, address: str, printed: str) -> list[Mapping[str, Any]]:
        try:
            listing = json.loads(printed)
        except ValueError:
            listing = None
        if not isinstance(listing, list) or not all(isinstance(each, Mapping) for each in listing):
            raise SystemFailure(
                f"{self._command.name} lists {shown_address(address)} in an unknown format",
                hint=f"transfer.fetchers.{self._command.name}.find must print JSON as `rclone lsjson` does",
            )
        entries = [{str(key).lower(): value for key, value in each.items()} for each in listing]
        return [each for each in entries if not each.get("isdir")]

    def _failure(self, address: str, code: int, printed: str) -> FairmileError:
        name, where, reason = self._command.name, shown_address(address), last_words(printed)
        message = f"{name} could not fetch {where} (exit code {code})" + (f": {reason}" if reason else "")
        if code in self._command.missing:
            return NotFound(message)
        if code in self._command.transient:
            return Transient(message)
        return SystemFailure(message, hint=f"try the same with {name} by hand; its logins and settings are its own")


def _unquotable(address: str) -> str:
    """Return an address without what ends or escapes a text in quotes."""
    return address.replace("\\", "%5C").replace('"', "%22")


def _listed(entry: Mapping[str, Any], address: str) -> Remote:
    path, size, modified = entry.get("path"), entry.get("size"), entry.get("modtime")
    if not isinstance(path, str) or not path:
        raise SystemFailure(f"the listing of {shown_address(address)} has an entry without a path")
    size_bytes = size if isinstance(size, int) and size >= 0 else None
    hashes = entry.get("hashes")
    stated = hashes.items() if isinstance(hashes, Mapping) else ()
    checksums = (parse_checksum(str(text), str(algorithm)) for algorithm, text in stated)
    validator = f"{size_bytes}-{modified}" if size_bytes is not None and isinstance(modified, str) else ""
    return Remote(address, path, size_bytes, tuple(each for each in checksums if each is not None), validator)


class Growth:
    """Tells how much came into a folder by looking there, so that no program's output need be understood."""

    def __init__(
        self,
        folder: Path,
        on_bytes: Callable[[int], None],
        *,
        ignored: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._on_bytes = on_bytes
        self._ignored = ignored
        self._clock = clock
        self._seen = self._size(False)
        self._next = clock() + _LOOK_EVERY_S

    def look_now_and_then(self) -> None:
        """Look, unless it was done a moment ago; of a file with holes only what is there counts."""
        began = self._clock()
        if began >= self._next:
            self._tell(self._size(True))
            now = self._clock()
            self._next = now + max(_LOOK_EVERY_S, 10 * (now - began))

    def look(self) -> None:
        """Look, now that every file is complete."""
        self._tell(self._size(False))

    def _tell(self, size: int) -> None:
        grown = size - self._seen
        if grown > 0:
            self._seen = size
            self._on_bytes(grown)

    def _size(self, has_holes: bool) -> int:
        total = 0
        folders = [str(self._folder)]
        while folders:
            place = folders.pop()
            try:
                with os.scandir(place) as items:
                    for item in items:
                        if place == str(self._folder) and any(fnmatchcase(item.name, each) for each in self._ignored):
                            continue
                        status = item.stat(follow_symlinks=False)
                        if stat.S_ISDIR(status.st_mode):
                            folders.append(item.path)
                        elif stat.S_ISREG(status.st_mode):
                            total += min(status.st_size, status.st_blocks * 512) if has_holes else status.st_size
            except OSError:  # what a program moves away while we look is counted next time
                continue
        return total


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a program is given; what a shell exports besides, such as functions, is left out."""
    return {name: value for name, value in environ.items() if _VARIABLE.fullmatch(name)}


def last_words(printed: str) -> str:
    """Return the last lines that a program printed, in one line and without secrets."""
    lines = [
        " ".join("".join(c if c.isprintable() else " " for c in line).split()) for line in re.split("[\r\n]", printed)
    ]
    return shown_address("; ".join([line for line in lines if line][-_LAST_LINES:])[-1000:])


def _remove(folder: Path, patterns: Sequence[str]) -> None:
    """Remove what has one of the names in a folder; a link goes, never what it leads to."""
    try:
        for entry in list(os.scandir(folder)):
            if any(fnmatchcase(entry.name, pattern) for pattern in patterns):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
    except OSError as error:
        raise SystemFailure(f"cannot empty {folder}: {error.strerror}") from error
