"""`fairmile login` and `fairmile logout`: your account on a Fairmile server."""

from __future__ import annotations

import click

from fairmile.access.logins import DeviceLogin
from fairmile.access.servers import Login, Logins, Logout
from fairmile.base.errors import UsageError
from fairmile.cli.out import Out, json_output
from fairmile.workspace import Workspace


@click.command()
@click.argument("server", metavar="[URL]", required=False)
@click.option("--sso", is_flag=True, help="Confirm the code at the login provider of the server.")
@click.option("--list", "listed", is_flag=True, help="List the servers that you are logged in to.")
@json_output(Login, Logins)
def login(server: str | None, sso: bool, listed: bool, out: Out) -> int:
    """Log in to a Fairmile server with a browser, on this or another machine.

    Shows a code to enter in the browser, where you log in with your password or at your institution. The token is
    kept in ~/.config/fairmile/tokens.json, readable by you alone, and used when you search, sync and fetch.
    With --sso the code belongs to the server's login provider, such as your institution, and you confirm it there.

    \b
    Examples:
      fairmile login https://data.example.org
      fairmile login https://data.example.org --sso
      fairmile login --list
    """
    access = Workspace.open().access
    if listed == (server is not None):
        raise UsageError("pass either the address of a server or --list", hint="fairmile login https://HOST")
    if server is None:
        out.show(access.logins(), lambda logins: _print_logins(logins, out))
        return 0

    def show(begun: DeviceLogin) -> None:
        out.say(f"Open {begun.verification_uri} in a browser and enter {begun.user_code}")

    out.show(
        access.login(server, sso=sso, on_code=show), lambda each: out.line(f"logged in to {each.server} as {each.user}")
    )
    return 0


def _print_logins(logins: Logins, out: Out) -> None:
    out.table(["server", "token"], [[each.server, each.token] for each in logins])
    if not logins:
        out.say("not logged in to any server")


@click.command()
@click.argument("server", metavar="URL")
@json_output(Logout)
def logout(server: str, out: Out) -> int:
    """Log out of a Fairmile server: revoke the token there, and remove it here.

    \b
    Example:
      fairmile logout https://data.example.org
    """
    result = Workspace.open().access.logout(server)
    out.show(result, lambda each: out.line(f"logged out of {each.server}"))
    if not result.revoked:
        out.say("note: the server did not confirm; the token there ends when it expires")
    return 0
