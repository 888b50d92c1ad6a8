"""`fairmile access`: accounts of your server, who may see and fetch its assets, and requests to other servers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from fairmile.access.results import (
    AccessRequest,
    AccessRequests,
    AssetPolicies,
    AssetPolicy,
    AuditLog,
    GivenGrant,
    GivenGrants,
    NewToken,
    RemovedUser,
    Token,
    Tokens,
    User,
    Users,
    VerifiedAudit,
)
from fairmile.access.rules import RIGHTS
from fairmile.access.servers import OfferedAccess
from fairmile.base.errors import UsageError
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.options import DRY_RUN, limit_option
from fairmile.cli.out import Out, json_output
from fairmile.workspace import Workspace

_RIGHT = click.option(
    "--right",
    "rights",
    multiple=True,
    type=click.Choice(RIGHTS),
    help="Right of the account; each includes those before it; repeatable.  [default: browse]",
)
_GROUP = click.option("--group", "groups", multiple=True, metavar="GROUP", help="Group of the account; repeatable.")
_PASSWORD_STDIN = click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
_UNTIL = click.option("--until", default="", metavar="DATE", help="Last day of the access, as 2027-06-30.")


@click.group(cls=LazyGroup)
def access() -> None:
    """Manage accounts of your server and access to its assets; request access to others.

    ASSET is a name as `fairmile show` takes it. If you can write to the folder of the
    workspace, you own its server and need no account for these commands.
    """


# Accounts


@access.group(cls=LazyGroup)
def user() -> None:
    """Add, list, change and remove accounts."""


@user.command("add")
@click.argument("name", metavar="USER")
@_RIGHT
@_GROUP
@_PASSWORD_STDIN
@DRY_RUN
@json_output(User)
def add_user(
    name: str, rights: tuple[str, ...], groups: tuple[str, ...], password_stdin: bool, dry_run: bool, out: Out
) -> int:
    """Add an account, and ask for its password.

    \b
    Examples:
      fairmile access user add ada --group hydro
      fairmile access user add root --right admin --password-stdin < password.txt
    """
    password = "x" * 12 if dry_run else _password(password_stdin)
    account = Workspace.open().access.add_user(name, password, rights=rights, groups=groups, dry_run=dry_run)
    out.show(account, lambda each: _print_user(each, "would add" if dry_run else "added", out))
    return 0


@user.command("ls")
@json_output(Users)
def list_users(out: Out) -> int:
    """List accounts with rights and groups."""
    out.show(Workspace.open().access.users(), lambda users: _print_users(users, out))
    return 0


def _print_users(users: Users, out: Out) -> None:
    rows = [[each.name, _words(each.rights), _words(each.groups), each.login] for each in users]
    out.table(["user", "rights", "groups", "login"], rows)
    if not users:
        out.say("no accounts")
        out.hint("`fairmile access user add NAME` adds one")


@user.command("set")
@click.argument("name", metavar="USER")
@_RIGHT
@_GROUP
@click.option("--no-groups", is_flag=True, help="Remove the account from all groups.")
@click.option("--password", "ask_password", is_flag=True, help="Ask for a new password; ends sessions and tokens.")
@_PASSWORD_STDIN
@DRY_RUN
@json_output(User)
def set_user(
    name: str,
    rights: tuple[str, ...],
    groups: tuple[str, ...],
    no_groups: bool,
    ask_password: bool,
    password_stdin: bool,
    dry_run: bool,
    out: Out,
) -> int:
    """Change rights, groups or password of an account; the others stay as they are.

    \b
    Examples:
      fairmile access user set ada --right read
      fairmile access user set ada --password
    """
    if not (rights or groups or no_groups or ask_password or password_stdin):
        raise UsageError("nothing to change", hint="pass --right, --group, --no-groups or --password")
    password = _password(password_stdin) if (ask_password or password_stdin) and not dry_run else None
    account = Workspace.open().access.set_user(
        name,
        password=password,
        rights=rights or None,
        groups=groups if groups or no_groups else None,
        dry_run=dry_run,
    )
    out.show(account, lambda each: _print_user(each, "would change" if dry_run else "changed", out))
    return 0


def _print_user(account: User, verb: str, out: Out) -> None:
    groups = f", in {_words(account.groups)}" if account.groups else ""
    out.line(f"{verb} {account.name}: may {_words(account.rights)}{groups}")


@user.command("rm")
@click.argument("name", metavar="USER")
@DRY_RUN
@json_output(RemovedUser)
def remove_user(name: str, dry_run: bool, out: Out) -> int:
    """Remove an account with its sessions, tokens and grants.

    \b
    Example:
      fairmile access user rm ada --dry-run
    """
    removed = Workspace.open().access.remove_user(name, dry_run=dry_run)
    out.show(removed, lambda each: out.line(f"{'would remove' if dry_run else 'removed'} {each.name}"))
    return 0


# Tokens


@access.group(cls=LazyGroup)
def token() -> None:
    """Create, list and revoke tokens of accounts."""


@token.command("add")
@click.argument("name", metavar="USER")
@click.option("--label", default="", metavar="TEXT", help="What the token is for.")
@click.option(
    "--right",
    "rights",
    multiple=True,
    type=click.Choice(RIGHTS),
    help="Right of the token; repeatable.  [default: browse]",
)
@click.option("--days", type=float, default=30.0, show_default=True, metavar="N", help="Lifetime in days.")
@json_output(NewToken)
def add_token(name: str, label: str, rights: tuple[str, ...], days: float, out: Out) -> int:
    """Create a token for programs of an account, and print its secret once.

    \b
    Example:
      fairmile access token add ada --label nightly --right read --days 90
    """
    new = Workspace.open().access.new_token(name, label, rights=rights or ("browse",), days=days)
    out.show(new, lambda each: out.line(each.secret))
    out.say(f"token {new.token.summary()}: send it as `Authorization: Bearer …`; it is not shown again")
    return 0


@token.command("ls")
@click.argument("name", metavar="USER")
@json_output(Tokens)
def list_tokens(name: str, out: Out) -> int:
    """List the tokens of an account, without their secrets.

    \b
    Example:
      fairmile access token ls ada
    """
    out.show(Workspace.open().access.tokens(name), lambda tokens: _print_tokens(tokens, out))
    return 0


def _print_tokens(tokens: Tokens, out: Out) -> None:
    rows = [each.to_dict() for each in tokens]
    columns = ("id", "label", "rights", "expires_at", "used_at")
    out.table(
        ["token", "label", "rights", "expires", "last used"],
        [[_words(row[name]) if name == "rights" else row[name] for name in columns] for row in rows],  # type: ignore[literal-required]
    )


@token.command("rm")
@click.argument("name", metavar="USER")
@click.argument("id", metavar="TOKEN")
@DRY_RUN
@json_output(Token)
def remove_token(name: str, id: str, dry_run: bool, out: Out) -> int:
    """Revoke a token of an account, by its id.

    \b
    Example:
      fairmile access token rm ada 1f3a5c7e9b2d
    """
    revoked = Workspace.open().access.revoke_token(name, id, dry_run=dry_run)
    out.show(revoked, lambda each: out.line(f"{'would revoke' if dry_run else 'revoked'} {each.id}"))
    return 0


# Assets


@access.command("set")
@click.argument("asset", metavar="ASSET")
@click.option("--metadata", type=click.Choice(["public", "restricted"]), help="Who sees that it exists.")
@click.option(
    "--files", type=click.Choice(["public", "registered", "restricted", "embargoed"]), help="Who may fetch its files."
)
@click.option("--until", default=None, metavar="DATE", help="Last day of an embargo, as 2027-06-30.")
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="Group with access; repeatable.")
@click.option("--no-groups", is_flag=True, help="Remove access of all groups.")
@click.option("--owner", default=None, metavar="USER", help="Account that always has access.")
@click.option(
    "--terms",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Text to accept before the first download.",
)
@click.option("--no-terms", is_flag=True, help="Require no terms.")
@DRY_RUN
@json_output(AssetPolicy)
def set_asset(
    asset: str,
    metadata: str | None,
    files: str | None,
    until: str | None,
    groups: tuple[str, ...],
    no_groups: bool,
    owner: str | None,
    terms: Path | None,
    no_terms: bool,
    dry_run: bool,
    out: Out,
) -> int:
    """Set who may see an asset and fetch its files, in all versions; other settings stay as they are.

    \b
    Examples:
      fairmile access set lake-temperatures --metadata restricted --files restricted --group hydro
      fairmile access set lake-temperatures --files embargoed --until 2027-06-30
    """
    text = "" if no_terms else terms.read_text(encoding="utf-8") if terms is not None else None
    policy = Workspace.open().access.set(
        asset,
        metadata=metadata,
        files=files,
        until=until,
        groups=groups if groups or no_groups else None,
        owner=owner,
        terms=text,
        dry_run=dry_run,
    )
    out.show(policy, lambda each: _print_policy(each, out))
    return 0


def _print_policy(policy: AssetPolicy, out: Out) -> None:
    facts = policy.to_dict()
    until = f" until {facts['until']}" if facts["until"] else ""
    pairs = [("asset", facts["asset"]), ("metadata", facts["metadata"]), ("files", f"{facts['files']}{until}")]
    more = [("groups", _words(facts["groups"])), ("owner", facts["owner"]), ("terms", facts["terms"])]
    out.items(pairs + [(name, text) for name, text in more if text])


@access.command("show")
@click.argument("asset", metavar="ASSET")
@json_output(AssetPolicy, OfferedAccess)
def show_asset(asset: str, out: Out) -> int:
    """Show who may see an asset and fetch its files; of another server's asset, what you may have.

    \b
    Example:
      fairmile access show lake-temperatures
    """
    facts = Workspace.open().access.show(asset)
    if isinstance(facts, AssetPolicy):
        out.show(facts, lambda policy: _print_policy(policy, out))
    else:
        out.show(facts, lambda offered: _print_offered(offered, out))
    return 0


def _print_offered(offered: OfferedAccess, out: Out) -> None:
    until = f" until {offered.until}" if offered.until else ""
    pairs = [("asset", offered.asset), ("server", offered.server), ("files", f"{offered.files}{until}")]
    out.items([*pairs, ("you", "may have the files" if offered.allowed else offered.reason)])
    if offered.terms:
        out.item("terms  ", offered.terms)


@access.command("ls")
@json_output(AssetPolicies)
def list_assets(out: Out) -> int:
    """List the assets whose access was set; files of all others need an account."""
    out.show(Workspace.open().access.ls(), lambda policies: _print_policies(policies, out))
    return 0


def _print_policies(policies: AssetPolicies, out: Out) -> None:
    facts = [each.policy for each in policies]
    rows = [[each.asset, each.metadata, each.files, each.until, _words(each.groups)] for each in facts]
    out.table(["asset", "metadata", "files", "until", "groups"], rows, shrink=["asset"])


# Grants and requests


@access.command("grant")
@click.argument("asset", metavar="ASSET")
@click.argument("to", metavar="USER|@GROUP")
@_UNTIL
@DRY_RUN
@json_output(GivenGrant)
def grant(asset: str, to: str, until: str, dry_run: bool, out: Out) -> int:
    """Give an account or a group access to an asset.

    \b
    Examples:
      fairmile access grant lake-temperatures eve --until 2027-06-30
      fairmile access grant lake-temperatures @hydro
    """
    given = Workspace.open().access.grant(asset, to, until=until, dry_run=dry_run)
    out.show(given, lambda each: out.line(f"{'would grant' if dry_run else 'granted'} {each.asset} to {each.to}"))
    return 0


@access.command("revoke")
@click.argument("asset", metavar="ASSET")
@click.argument("to", metavar="USER|@GROUP")
@DRY_RUN
@json_output(GivenGrant)
def revoke(asset: str, to: str, dry_run: bool, out: Out) -> int:
    """Revoke access to an asset.

    \b
    Example:
      fairmile access revoke lake-temperatures eve
    """
    given = Workspace.open().access.revoke(asset, to, dry_run=dry_run)
    out.show(given, lambda each: out.line(f"{'would revoke' if dry_run else 'revoked'} {each.asset} from {each.to}"))
    return 0


@access.command("grants")
@click.argument("asset", metavar="[ASSET]", default="", required=False)
@json_output(GivenGrants)
def list_grants(asset: str, out: Out) -> int:
    """List who was given access, to one asset or to all.

    \b
    Example:
      fairmile access grants lake-temperatures
    """
    grants = Workspace.open().access.grants(asset)
    rows = [each.to_dict() for each in grants]
    columns = ["asset", "to", "until", "given by"]
    out.show(
        grants,
        lambda _: out.table(columns, [[row["asset"], row["to"], row["until"], row["given_by"]] for row in rows]),
    )
    return 0


@access.command("requests")
@click.option(
    "--status",
    type=click.Choice(["pending", "granted", "refused", "all"]),
    default="pending",
    show_default=True,
    help="Only requests with this status.",
)
@json_output(AccessRequests)
def list_requests(status: str, out: Out) -> int:
    """List requests for access to assets of your server.

    \b
    Example:
      fairmile access requests --status all
    """
    requests = Workspace.open().access.requests(status="" if status == "all" else status)
    rows = [[each.id, each.asset, each.user, each.status, each.reason] for each in requests]
    out.show(requests, lambda _: out.table(["request", "asset", "user", "status", "reason"], rows, shrink=["reason"]))
    return 0


@access.command("approve")
@click.argument("number", metavar="REQUEST", type=click.IntRange(min=1))
@_UNTIL
@DRY_RUN
@json_output(AccessRequest)
def approve(number: int, until: str, dry_run: bool, out: Out) -> int:
    """Grant a request, permanently or until a day.

    \b
    Example:
      fairmile access approve 1 --until 2027-06-30
    """
    decided = Workspace.open().access.approve(number, until=until, dry_run=dry_run)
    out.show(decided, lambda each: _print_decided(each, dry_run, out))
    return 0


@access.command("refuse")
@click.argument("number", metavar="REQUEST", type=click.IntRange(min=1))
@DRY_RUN
@json_output(AccessRequest)
def refuse(number: int, dry_run: bool, out: Out) -> int:
    """Refuse a request.

    \b
    Example:
      fairmile access refuse 2
    """
    decided = Workspace.open().access.refuse(number, dry_run=dry_run)
    out.show(decided, lambda each: _print_decided(each, dry_run, out))
    return 0


def _print_decided(request: AccessRequest, dry_run: bool, out: Out) -> None:
    out.line(f"{'would be ' if dry_run else ''}{request.status}: {request.asset} for {request.user}")


# Assets of other servers


@access.command("request")
@click.argument("asset", metavar="ASSET")
@click.option("--reason", default="", metavar="TEXT", help="What you need it for.")
@json_output(AccessRequest)
def request(asset: str, reason: str, out: Out) -> int:
    """Ask the owner of another server for access to one of its assets.

    \b
    Example:
      fairmile access request group/dataset/lake --reason "my thesis"
    """
    asked = Workspace.open().access.request(asset, reason)
    out.show(asked, lambda each: out.line(f"request {each.id}: {each.status}"))
    return 0


@access.command("accept")
@click.argument("asset", metavar="ASSET")
@click.option("--yes", is_flag=True, help="Accept without asking.")
@json_output(OfferedAccess)
def accept(asset: str, yes: bool, out: Out) -> int:
    """Read and accept the terms of an asset of another server.

    \b
    Example:
      fairmile access accept group/dataset/lake
    """
    account = Workspace.open().access
    offered = account.show(asset)
    if isinstance(offered, AssetPolicy) or not offered.terms:
        raise UsageError(f"{asset} has no terms to accept")
    if not yes:
        out.say(offered.terms)
        click.confirm("Accept these terms?", abort=True, err=True)
    out.show(account.accept(asset, offered.terms_digest), lambda each: _print_offered(each, out))
    return 0


# The audit log


@access.group(cls=LazyGroup)
def audit() -> None:
    """Show and verify the audit log."""


@audit.command("ls")
@click.option("--asset", default="", metavar="ASSET", help="Only entries about this asset, as CATALOG/KIND/NAME.")
@limit_option("entries", 20)
@json_output(AuditLog)
def list_entries(asset: str, limit: int, out: Out) -> int:
    """List who did what with accounts and assets, newest first.

    \b
    Example:
      fairmile access audit ls --asset local/dataset/lake-temperatures
    """
    out.show(Workspace.open().access.audit(limit=limit, asset=asset), lambda log: _print_log(log, out))
    return 0


def _print_log(log: AuditLog, out: Out) -> None:
    known = ("at", "who", "what", "asset")
    rows = []
    for each in log:
        rest = ", ".join(f"{name}: {value}" for name, value in each.facts.items() if name not in known)
        rows.append([each.number, *(each.facts.get(name, "") for name in known), rest])
    out.table(["entry", "time", "who", "what", "asset", "details"], rows, shrink=["details"])


@audit.command("verify")
@json_output(VerifiedAudit)
def verify_audit(out: Out) -> int:
    """Verify that no entry was changed or removed; else the exit code is 4.

    Keep the digest of the last entry elsewhere: it also proves that none was cut off at the end.
    """
    verified = Workspace.open().access.verify_audit()
    out.show(verified, lambda each: _print_verified(each, out))
    return 0 if verified.ok else 4


def _print_verified(verified: VerifiedAudit, out: Out) -> None:
    if verified.ok:
        out.line(f"{verified.entries:,} entries, all intact; last digest {verified.head}")
    else:
        out.line(f"{out.colour('damaged', 'red')} at entry {verified.damaged_at}")


def _words(names: Sequence[str] | frozenset[str]) -> str:
    return ", ".join(sorted(names))


def _password(from_stdin: bool) -> str:
    """Return a password that nobody sees: not in the shell's history, not in the list of processes."""
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if not sys.stdin.isatty():
        raise UsageError("no terminal to ask for a password", hint="pass it on standard input with --password-stdin")
    password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return password
