"""Logging in from a terminal (RFC 8628): the terminal shows a code, a browser that is logged in confirms it."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import TypedDict

from fairmile.access.attempts import Attempts, NotLoggedIn
from fairmile.base.errors import NotFound, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result

LIFE_S = 600.0
INTERVAL_S = 5.0
_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"  # no vowels: no words; nothing that looks like a digit
_MOST_WAITING = 1_000
_MOST_OF_ADDRESS = 20


class DeviceLoginDict(TypedDict):
    device_code: str
    user_code: str
    verification_uri: str
    expires_in: int
    interval: float


@dataclass(frozen=True, repr=False)
class DeviceLogin(Result):
    """A login that begins: the user enters `user_code` at `verification_uri`, the terminal keeps `device_code`."""

    device_code: str
    user_code: str
    verification_uri: str
    interval_s: float = INTERVAL_S

    def to_dict(self) -> DeviceLoginDict:
        return {
            "device_code": self.device_code,
            "user_code": self.user_code,
            "verification_uri": self.verification_uri,
            "expires_in": int(LIFE_S),
            "interval": self.interval_s,
        }

    def summary(self) -> str:
        return self.user_code


class DeviceAnswerDict(TypedDict):
    status: str
    secret: str


@dataclass(frozen=True, repr=False)
class DeviceAnswer(Result):
    """Where a login stands: pending or confirmed, then with the token."""

    status: str
    secret: str = ""

    def to_dict(self) -> DeviceAnswerDict:
        return {"status": self.status, "secret": self.secret}

    def summary(self) -> str:
        return self.status


class _Waiting:
    def __init__(self, device_code: str, address: str, ends_s: float) -> None:
        self.device_code = device_code
        self.address = address
        self.ends_s = ends_s
        self.secret = ""


class DeviceLogins:
    """The logins that wait for a browser, in memory: they last ten minutes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}
        self._guesses = Attempts(10, clock=clock)
        self._lock = threading.Lock()

    def begin(self, verification_uri: str, address: str) -> DeviceLogin:
        """Begin a login from an address."""
        with self._lock:
            now = self._clock()
            self._waiting = {code: each for code, each in self._waiting.items() if each.ends_s > now}
            own = sum(each.address == address for each in self._waiting.values())
            if own >= _MOST_OF_ADDRESS or len(self._waiting) >= _MOST_WAITING:
                raise UsageError("too many logins wait for a browser", hint="finish one, or try again in ten minutes")
            code = "".join(secrets.choice(_LETTERS) for _ in range(8))
            device_code = secrets.token_urlsafe(32)
            self._waiting[code] = _Waiting(device_code, address, now + LIFE_S)
        return DeviceLogin(device_code, f"{code[:4]}-{code[4:]}", verification_uri, INTERVAL_S)

    def confirm(self, user_code: str, user: str, new_secret: Callable[[], str]) -> None:
        """Let the terminal that shows a code log in as this user."""
        self._guesses.check(user)
        code = "".join(letter for letter in user_code.upper() if letter in _LETTERS)
        with self._lock:
            waiting = self._waiting.get(code)
            if waiting is None or waiting.ends_s <= self._clock() or waiting.secret:
                self._guesses.failed(user)
                raise NotFound("no terminal shows this code", hint="it lasts ten minutes; begin again there")
            waiting.secret = new_secret()

    def collect(self, device_code: str, address: str) -> DeviceAnswer:
        """Return the token, once, when the login was confirmed."""
        self._guesses.check(address)
        with self._lock:
            for code, waiting in self._waiting.items():
                if secrets.compare_digest(waiting.device_code.encode(), device_code.encode("utf-8", "replace")):
                    if waiting.ends_s <= self._clock():
                        break
                    if not waiting.secret:
                        return DeviceAnswer("pending")
                    del self._waiting[code]
                    return DeviceAnswer("confirmed", waiting.secret)
        self._guesses.failed(address)
        raise NotLoggedIn("this login has ended", hint="begin again")
