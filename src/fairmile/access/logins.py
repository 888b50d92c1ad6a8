"""Logging in from a terminal (RFC 8628): the terminal shows a code, a browser that is logged in confirms it.

The browser is logged in to this server or, where the code is one of the login provider, there. The terminal never has
the provider's device code: this server asks the provider, no more often than that allows.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable
from typing import TypedDict

from fairmile.access.attempts import Attempts, NotLoggedIn
from fairmile.access.oidc import ProviderCode
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
    def __init__(self, address: str, ends_s: float) -> None:
        self.device_code = secrets.token_urlsafe(32)
        self.address = address
        self.ends_s = ends_s
        self.secret = ""


class _AtProvider(_Waiting):
    """A login whose code is the provider's; `finish` returns the token once that confirms it."""

    def __init__(self, address: str, ends_s: float, code: ProviderCode, finish: Callable[[ProviderCode], str]) -> None:
        super().__init__(address, ends_s)
        self.code, self.finish = code, finish
        self.asks_at_s = 0.0  # not earlier; while the provider is asked, never

    def may_ask(self, now_s: float) -> bool:
        return not self.secret and self.asks_at_s <= now_s


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
            self._make_room(address)
            code = "".join(secrets.choice(_LETTERS) for _ in range(8))
            waiting = self._waiting[code] = _Waiting(address, self._clock() + LIFE_S)
        return DeviceLogin(waiting.device_code, f"{code[:4]}-{code[4:]}", verification_uri, INTERVAL_S)

    def begin_at_provider(
        self, begin: Callable[[], ProviderCode], finish: Callable[[ProviderCode], str], address: str
    ) -> DeviceLogin:
        """Begin a login that the provider confirms; `finish` returns the token, or nothing as long as it waits."""
        with self._lock:
            self._make_room(address)
        code = begin()
        waiting = _AtProvider(address, self._clock() + min(code.life_s, LIFE_S), code, finish)
        with self._lock:
            self._waiting[waiting.device_code] = waiting
        return DeviceLogin(waiting.device_code, code.user_code, code.verification_uri, min(code.interval_s, INTERVAL_S))

    def _make_room(self, address: str) -> None:
        now = self._clock()
        self._waiting = {code: each for code, each in self._waiting.items() if each.ends_s > now}
        own = sum(each.address == address for each in self._waiting.values())
        if own >= _MOST_OF_ADDRESS or len(self._waiting) >= _MOST_WAITING:
            raise UsageError("too many logins wait for a browser", hint="finish one, or try again in ten minutes")

    def confirm(self, user_code: str, user: str, new_secret: Callable[[], str]) -> None:
        """Let the terminal that shows a code log in as this user."""
        self._guesses.check(user)
        code = "".join(letter for letter in user_code.upper() if letter in _LETTERS)
        with self._lock:
            waiting = self._waiting.get(code)
            is_here = waiting is not None and not isinstance(waiting, _AtProvider)
            if waiting is None or not is_here or waiting.ends_s <= self._clock() or waiting.secret:
                self._guesses.failed(user)
                raise NotFound("no terminal shows this code", hint="it lasts ten minutes; begin again there")
            waiting.secret = new_secret()

    def collect(self, device_code: str, address: str) -> DeviceAnswer:
        """Return the token, once, when the login was confirmed."""
        self._guesses.check(address)
        with self._lock:
            code = self._code_of(device_code)
            waiting = self._waiting.get(code)
            asked = waiting if isinstance(waiting, _AtProvider) and waiting.may_ask(self._clock()) else None
            if asked is not None:
                asked.asks_at_s = math.inf
        if waiting is None:
            self._guesses.failed(address)
            raise NotLoggedIn("this login has ended", hint="begin again")
        if asked is not None:
            self._ask_provider(code, asked)
        with self._lock:
            if not waiting.secret:
                return DeviceAnswer("pending")
            if self._waiting.pop(code, None) is None:
                raise NotLoggedIn("this login has ended", hint="begin again")
        return DeviceAnswer("confirmed", waiting.secret)

    def _code_of(self, device_code: str) -> str:
        """Return the code under which a login waits that has not ended."""
        given, now = device_code.encode("utf-8", "replace"), self._clock()
        for code, waiting in self._waiting.items():
            if secrets.compare_digest(waiting.device_code.encode(), given) and waiting.ends_s > now:
                return code
        return ""

    def _ask_provider(self, code: str, waiting: _AtProvider) -> None:
        try:
            waiting.secret = waiting.finish(waiting.code)
        except NotLoggedIn:
            with self._lock:
                self._waiting.pop(code, None)
            raise
        finally:
            waiting.asks_at_s = self._clock() + waiting.code.interval_s
