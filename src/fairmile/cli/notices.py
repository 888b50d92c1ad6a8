"""`--notify`: the option of commands that may take long, and the notice when they end."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fairmile.base.errors import FairmileError

if TYPE_CHECKING:
    from fairmile.cli.out import Out

F = TypeVar("F", bound=Callable[..., Any])

_SHORT_S = 10.0  # work that ends sooner is never announced by settings, so that none are read for it
_HELP = "Notify an e-mail address, a URL or a command at the end; repeatable.  [default: setting notify.to]"


def notifies(command: F) -> F:
    """Give a command `--notify`: when it ends, whoever that or the settings name is told how."""

    @click.option("--notify", "notify", multiple=True, metavar="WHERE", help=_HELP)
    @functools.wraps(command)
    def call(*arguments: Any, out: Out, notify: tuple[str, ...], **options: Any) -> Any:
        if notify:
            _check(notify)
        began = time.monotonic()
        try:
            code = command(*arguments, out=out, **options)
        except FairmileError as error:
            _announce(out, notify, began, error.exit_code, str(error))
            raise
        is_left = options.get("dry_run") or options.get("wait") is False
        if is_left and notify:
            out.say("note: --notify has no effect, because this command does not wait for the end")
        elif not is_left and code != _INTERRUPTED:
            summary = out.result.summary() if out.result is not None else ""
            _announce(out, notify, began, code or 0, summary)
        return code

    return call  # type: ignore[return-value]


_INTERRUPTED = 130  # by the user, who is there


def _check(notify: tuple[str, ...]) -> None:
    from fairmile.notify import parse_destinations

    parse_destinations(notify)


def _announce(out: Out, notify: tuple[str, ...], began: float, code: int, summary: str) -> None:
    elapsed_s = time.monotonic() - began
    if not notify and elapsed_s < _SHORT_S:
        return
    from fairmile.notify import Notice
    from fairmile.workspace import Workspace

    command = click.get_current_context().command_path.partition(" ")[2]
    text = f"fairmile {command}: {summary or ('done' if code == 0 else 'failed')}"
    notice = Notice(command, code, " ".join(text.split()), elapsed_s, os.uname().nodename)
    try:
        Workspace.open().notify(
            notice,
            notify,
            on_problem=lambda problem: out.say(f"warning: {problem}"),
            on_sent=lambda shown: out.say(f"notified {shown}"),
        )
    except FairmileError as error:  # settings that cannot be read now must not undo what was done
        out.say(f"warning: notification failed: {error}")
