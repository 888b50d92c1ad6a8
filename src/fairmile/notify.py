"""Notices that long work has ended: to a web address, an e-mail address or a command.

A destination is text, the same in the settings and behind `--notify`:

- `https://…` or `http://…` gets a POST of JSON, whose `text` chat services show;
- `name@host` gets an e-mail through the machine's sendmail;
- anything else is a command, started without a shell. Its placeholders `{text}`, `{state}` and `{command}` are filled,
  and it reads the JSON from stdin.

Web addresses often hold a token: only their host is ever shown.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from email.message import EmailMessage
from typing import Any, Protocol, TypedDict
from urllib.parse import urlsplit

from fairmile.base.commands import Here
from fairmile.base.errors import FairmileError, SystemFailure, UsageError
from fairmile.base.placeholders import fill_words
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.version import __version__

_TIMEOUT_S = 30.0
_LONGEST_TEXT = 1000
_SENDMAIL = ("/usr/sbin/sendmail", "/usr/lib/sendmail")
_ADDRESS = re.compile(r"(?:mailto:)?([A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+)")


class NoticeDict(TypedDict):
    """A notice as a webhook and a command get it."""

    command: str
    state: str
    exit_code: int
    text: str
    elapsed_s: float
    host: str


@dataclass(frozen=True, repr=False)
class Notice(Result):
    """That a command ended: how, after how long, and in a sentence what came of it."""

    command: str  # such as `run` or `sweep run`
    exit_code: int
    text: str
    elapsed_s: float
    host: str

    @property
    def state(self) -> str:
        return "done" if self.exit_code == 0 else "failed"

    def to_dict(self) -> NoticeDict:
        return {
            "command": self.command,
            "state": self.state,
            "exit_code": self.exit_code,
            "text": self.text[:_LONGEST_TEXT],
            "elapsed_s": self.elapsed_s,
            "host": self.host,
        }

    def summary(self) -> str:
        return self.text


class Destination(Protocol):
    """Where notices go; `shown` names it without its secrets."""

    @property
    def shown(self) -> str: ...

    def send(self, notice: Notice) -> None:
        """Send a notice; FairmileError or OSError where that fails."""


@dataclass(frozen=True)
class Webhook:
    """A web address that takes JSON."""

    address: str

    @property
    def shown(self) -> str:
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")

    def send(self, notice: Notice) -> None:
        request = urllib.request.Request(
            self.address,
            json.dumps(notice.to_dict()).encode(),
            {"Content-Type": "application/json", "User-Agent": f"fairmile/{__version__}"},
        )
        try:
            with urllib.request.build_opener(_NoRedirects).open(request, timeout=_TIMEOUT_S):
                pass
        except urllib.error.HTTPError as error:  # its text would name the address
            error.close()
            raise SystemFailure(f"the service answers {error.code} {error.reason}") from None
        except urllib.error.URLError as error:
            raise SystemFailure(str(error.reason)) from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses to carry a notice to another address than the one that was named."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True)
class Mail:
    """An e-mail address that sendmail delivers to."""

    address: str

    @property
    def shown(self) -> str:
        return self.address

    def send(self, notice: Notice) -> None:
        program = shutil.which("sendmail") or next((each for each in _SENDMAIL if os.access(each, os.X_OK)), None)
        if program is None:
            raise SystemFailure("sendmail is not installed", hint="install a mail transfer agent, or use a webhook")
        message = EmailMessage()
        message["To"] = self.address
        message["Subject"] = " ".join(f"fairmile {notice.command} {notice.state} on {notice.host}".split())
        message.set_content(notice.text + "\n")
        Here().run([program, "-i", "--", self.address], input=message.as_bytes(), timeout_s=_TIMEOUT_S)


@dataclass(frozen=True)
class Program:
    """A command that gets the notice as JSON on stdin, and parts of it where it has placeholders."""

    argv: tuple[str, ...]

    @property
    def shown(self) -> str:
        return f"the command {self.argv[0]}"

    def send(self, notice: Notice) -> None:
        values = {"text": notice.text, "state": notice.state, "command": notice.command}
        Here().run(fill_words(self.argv, values), input=json.dumps(notice.to_dict()), timeout_s=_TIMEOUT_S)


def parse_destination(text: Any) -> Destination:
    """Return the destination that a text names; UsageError where it names none."""
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"expected an e-mail address, a web address or a command, found {text!r}")
    text = text.strip()
    if mail := _ADDRESS.fullmatch(text):
        return Mail(mail[1])
    if text.startswith(("http://", "https://")):
        try:
            parts = urlsplit(text)
            if parts.hostname and (parts.port is None or parts.port):
                return Webhook(text)
        except ValueError:
            pass
        raise UsageError("the web address to notify has no valid host or port")  # it may hold a token: not shown
    try:
        argv = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"the command to notify with has an open quote: {error}") from error
    if "://" in argv[0]:
        raise UsageError(
            f"{argv[0].partition('://')[0]}:// addresses cannot be notified", hint="use https:// or http://"
        )
    return Program(argv)


def parse_destinations(value: Any) -> tuple[str, ...]:
    """Return the destinations of a setting, one text or a list of them, each checked."""
    texts = [value] if isinstance(value, str) and value else list(value or ())
    for text in texts:
        parse_destination(text)
    return tuple(texts)


def shown_destinations(texts: Iterable[str]) -> list[str]:
    """Return destinations as people may see them."""
    return [parse_destination(text).shown for text in texts]


def send(
    notice: Notice,
    destinations: Iterable[str],
    on_problem: Callable[[str], None],
    on_sent: Callable[[str], None] = lambda _: None,
) -> None:
    """Send a notice everywhere; each destination that fails is one sentence, and stops no other."""
    for text in dict.fromkeys(destinations):
        destination = parse_destination(text)
        try:
            destination.send(notice)
        except (FairmileError, OSError, ValueError) as error:
            on_problem(f"{destination.shown} was not notified: {_reason(error)}")
        else:
            on_sent(destination.shown)


def _reason(error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) and not isinstance(error, FairmileError) else str(error)
    return " ".join((reason or type(error).__name__).split())
