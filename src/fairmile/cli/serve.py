"""`fairmile serve`: catalog, runs, flows and job scripts in the browser, and their REST API."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fairmile.cli.out import Out, json_output
from fairmile.web.serve import HOST, PORT, ServeSettings, Serving
from fairmile.web.serve import serve as serve_workspace
from fairmile.workspace import Workspace

_FILE = click.Path(path_type=Path)


@click.command()
@click.option("--host", default=HOST, show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    metavar="N",
    show_default=f"{PORT} or the next free one",
    help="Port; 0 picks any free one.",
)
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
@click.option("--cert", type=_FILE, metavar="FILE", help="Certificate (PEM) of an encrypted connection.")
@click.option("--key", type=_FILE, metavar="FILE", help="Private key of the certificate.")
@click.option(
    "--behind-proxy", default="", metavar="ADDRESS", help="Trust the proxy at this address, which encrypts connections."
)
@click.option(
    "--name", "names", multiple=True, metavar="HOST", help="Further host name that browsers may use; repeatable."
)
@click.option("--accounts", is_flag=True, help="Ask for accounts on the loopback address as well.")
@click.option("--public", is_flag=True, help="Show public assets to people without an account.")
@json_output(Serving)
def serve(
    host: str,
    port: int | None,
    no_browser: bool,
    cert: Path | None,
    key: Path | None,
    behind_proxy: str,
    names: tuple[str, ...],
    accounts: bool,
    public: bool,
    out: Out,
) -> int:
    """Serve catalog, runs, flows and job scripts to the browser, with a REST API.

    Without options, only you can use it, on this machine. Press Ctrl-C to stop.

    \b
    Examples:
      fairmile serve
      fairmile serve --port 9000 --no-browser
      fairmile serve --host 0.0.0.0 --cert cert.pem --key key.pem --public
    """
    settings = ServeSettings(host, port, cert, key, behind_proxy, names, accounts, public)

    def show(serving: Serving) -> None:
        out.show(serving, lambda each: out.line(each.address))
        if port is None and serving.port != PORT:
            out.hint(f"port {PORT} is taken")
        sys.stdout.flush()

    serve_workspace(Workspace.open(), settings, open_browser=not no_browser, on_ready=show)
    return 0
