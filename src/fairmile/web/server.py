"""The server itself: uvicorn with a socket of our own."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from fairmile.base.errors import Conflict, SystemFailure, UsageError
from fairmile.web.access import Access, OwnerAccess, Peer, is_loopback, needs_accounts
from fairmile.web.accounts import AccountAccess
from fairmile.web.app import LOOPBACK_NAMES, create_app
from fairmile.web.serve import PORT, ServeSettings, Serving
from fairmile.workspace import Workspace

_PORTS_TRIED = 50
_CONNECTIONS = 1_000
_IDLE_S = 15  # a browser may keep a connection without a request for so long


def run_server(
    workspace: Workspace,
    settings: ServeSettings,
    *,
    wait: bool,
    open_browser: bool,
    on_ready: Callable[[Serving], None],
) -> Serving:
    """Serve as `fairmile.web.serve.serve` says."""
    access = _open_access(workspace, settings)
    listener = _listen(settings.host, settings.port)
    port = int(listener.getsockname()[1])
    app = create_app(workspace, access=access, hosts=_names(settings), limits=settings.limits)
    server = _Server(_config(app, settings))
    scheme = "https" if settings.cert is not None else "http"
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host
    serving = Serving(f"{scheme}://{shown}:{port}/", settings.host, port, server)

    def ready() -> None:
        on_ready(serving)
        if open_browser and is_loopback(settings.host):
            webbrowser.open(serving.address)

    if wait:
        server.on_started = ready
        server.run(sockets=[listener])
        return serving
    started = threading.Event()
    server.on_started = started.set
    thread = threading.Thread(target=server.run, args=([listener],), name="fairmile-serve", daemon=True)
    thread.start()
    while not started.wait(0.05):
        if not thread.is_alive():
            raise SystemFailure(f"the server at {serving.address} did not start")
    ready()
    return Serving(serving.address, serving.host, port, server, thread)


def _open_access(workspace: Workspace, settings: ServeSettings) -> Access:
    is_needed = needs_accounts(
        settings.host,
        is_encrypted=settings.is_encrypted,
        has_accounts=workspace.access.oidc is not None or bool(workspace.access.users()),
        wants_accounts=settings.accounts or settings.public,
    )
    return AccountAccess(workspace.access, is_public=settings.public) if is_needed else OwnerAccess()


class _Server(uvicorn.Server):
    on_started: Callable[[], None]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets=sockets)
        # A browser that keeps its connection does not answer the end of TLS, for which the loop would wait.
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self.on_started()


class _Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection whose other end is one object as long as it lives."""

    client: tuple[str, int] | None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.client = Peer(self.client) if self.client else None


def _config(app: object, settings: ServeSettings) -> uvicorn.Config:
    logging.getLogger("fairmile.web").addHandler(logging.StreamHandler())
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=_Connection,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=1,  # streams of live pages would never end
        ssl_certfile=settings.cert,
        ssl_keyfile=settings.key,
        proxy_headers=bool(settings.behind_proxy),
        forwarded_allow_ips=settings.behind_proxy or None,
        ws="none",
        lifespan="off",
    )


def _names(settings: ServeSettings) -> Sequence[str]:
    own = LOOPBACK_NAMES if is_loopback(settings.host) else (settings.host, socket.getfqdn())
    return [name.lower() for name in (*own, *settings.names)]


def _listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens on a port, or on the first free one from the usual one on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ports = range(PORT, PORT + _PORTS_TRIED) if port is None else (port,)
    for number in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen(_CONNECTIONS)
        except OSError as error:
            listener.close()
            if isinstance(error, socket.gaierror):
                raise UsageError(f"{host!r} is not an address of this machine") from error
            if number == ports[-1]:
                raise Conflict(
                    f"cannot listen on {host}:{number}: {error.strerror}", hint="choose another port with --port"
                ) from error
            continue
        return listener
    raise AssertionError("there is at least one port")
