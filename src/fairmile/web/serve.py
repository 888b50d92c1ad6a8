"""Where and how to serve, and a server that runs; importable without the packages that serve."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Protocol, TypedDict

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.registry import Plugin, Registry
from fairmile.base.results import Result
from fairmile.workspace import Workspace

HOST, PORT = "127.0.0.1", 8765
_SERVERS: Registry[Callable[..., Serving]] = Registry(
    "server", {"web": Plugin("fairmile.web.server:run_server", extra="web")}
)


@dataclass(frozen=True)
class Limits:
    """The most that one request may ask for."""

    body_bytes: int = 4 << 20
    seconds: float = 60.0


@dataclass(frozen=True)
class ServeSettings:
    """Where and how to serve."""

    host: str = HOST
    port: int | None = None  # None: the usual one or, where it is taken, the next
    cert: str | Path | None = None
    key: str | Path | None = None
    behind_proxy: str = ""  # the address of a proxy that encrypts, and whose headers are believed
    names: tuple[str, ...] = ()  # further names under which browsers reach the server
    accounts: bool = False  # on loopback too
    public: bool = False  # people without an account may browse
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise UsageError("a certificate and its key belong together", hint="pass both --cert and --key")
        for file in (self.cert, self.key):
            if file is not None and not Path(file).is_file():
                raise UsageError(f"{file}: no such file")
        if self.port is not None and not 0 <= self.port <= 65_535:
            raise UsageError(f"no port has the number {self.port}")

    @property
    def is_encrypted(self) -> bool:
        return self.cert is not None or bool(self.behind_proxy)


class Stoppable(Protocol):
    """A server that ends soon after it is asked to."""

    should_exit: bool


class ServingDict(TypedDict):
    address: str
    host: str
    port: int


@dataclass(frozen=True, repr=False)
class Serving(Result):
    """A server that is running; `stop` ends it."""

    address: str
    host: str
    port: int
    _server: Stoppable
    _thread: threading.Thread | None = None

    def to_dict(self) -> ServingDict:
        return {"address": self.address, "host": self.host, "port": self.port}

    def summary(self) -> str:
        return self.address

    def stop(self) -> None:
        """End the server and wait until it has ended."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def serve(
    workspace: Workspace,
    settings: ServeSettings | None = None,
    *,
    wait: bool = True,
    open_browser: bool = False,
    on_ready: Callable[[Serving], None] = lambda _: None,
) -> Serving:
    """Serve a workspace until interrupted or, without `wait`, in the background until `stop` is called.

    `on_ready` is called with the address as soon as the server answers there.
    """
    run = _SERVERS["web"]
    return run(workspace, settings or ServeSettings(), wait=wait, open_browser=open_browser, on_ready=on_ready)


def announce(serving: Serving) -> None:
    """Print the address of a server."""
    sys.stdout.write(f"{serving.address}\n")
    sys.stdout.flush()
