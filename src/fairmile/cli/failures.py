"""Errors as people at a terminal and programs read them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Self

import click

from fairmile.base.failures import Failure
from fairmile.base.words import closest
from fairmile.cli.out import one_line, print_json

_EXTRA_SETTING = re.compile(r"unexpected extra arguments? \((\w+=\S+?)[ )]")
_LONGEST = 600


class ShownFailure(Failure):
    """A failure as the command line shows it."""

    __slots__ = ()

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return the failure to show for an error of any kind, including usage errors of the command line."""
        if isinstance(error, click.ClickException):
            return cls("UsageError", _usage(error), _usage_hint(error), 2)
        return super().of(error)

    def lines(self) -> Iterator[str]:
        """Yield the failure as a person reads it."""
        for message, hint in self.problems or ((self.message, self.hint),):
            yield f"error: {_shortened(message)}"
            if hint:
                yield f"  hint: {_shortened(hint)}"
        if self.problems and self.hint and self.hint not in (hint for _, hint in self.problems):
            yield f"  hint: {_shortened(self.hint)}"

    def tell(self, *, as_json: bool) -> None:
        """Explain the failure on stderr, and on stdout where a program listens."""
        # Whatever progress is shown on this line has ended.
        start = "\r\033[K" if sys.stderr.isatty() else ""
        sys.stderr.write(start + "".join(f"{line}\n" for line in self.lines()))
        if as_json:
            print_json({"error": self.to_dict()}, sys.stdout)


def _usage(error: click.ClickException) -> str:
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        options = [name for each in error.ctx.command.get_params(error.ctx) for name in each.opts if name[0] == "-"]
        near = "" if isinstance(error.ctx.command, click.Group) else _near_option(error.option_name, options)
        return f"no such option {error.option_name!r}" + (f"; did you mean {near!r}?" if near else "")
    message = error.format_message().removesuffix(".")
    return message[:1].lower() + message[1:]


def _near_option(word: str, options: Sequence[str]) -> str:
    """Return the option that resembles a word; the dashes that all of them share count for nothing."""
    names = {each.lstrip("-"): each for each in options}
    return next((names[near] for near in closest(word.lstrip("-"), names, 1)), "")


def _usage_hint(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return "use --help to see the usage"
    if isinstance(error, click.NoSuchOption) and isinstance(context.command, click.Group):
        return f"put options after the command: `{context.command_path} COMMAND {error.option_name}`"
    takes_program = any("PROGRAM" in each for each in context.command.collect_usage_pieces(context))
    if isinstance(error, click.NoSuchOption) and takes_program and "did you mean" not in _usage(error):
        program = f"`{context.command_path} train.py {error.option_name} …`"
        return (
            f"`-p {error.option_name.lstrip('-')}=…` sets a parameter of an asset; a program's go after it: {program}"
        )
    if takes_program and (extra := _EXTRA_SETTING.search(error.message)):
        return f"`-p {extra[1]}` sets a parameter"
    return f"`{context.command_path} --help` shows the usage"


def _shortened(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"
