"""Draws docs/demo.svg from what the commands really print on a terminal.

Run: python demo/record.py
"""

from __future__ import annotations

import io
import os
import pty
import struct
import sys
import tempfile
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

from rich.console import Console
from rich.text import Text

COLUMNS, ROWS = 118, 60
COMMANDS = (
    (["search", "cosmology"], 7),
    (["show", "model/cosmoflow", "--fair"], 16),
    (["match", "--model", "cosmoflow"], 9),
)


def on_terminal(arguments: list[str], environment: dict[str, str]) -> str:
    """Run the command on a pseudo-terminal of the drawing's width and return what it prints."""
    child, terminal = pty.fork()
    if child == 0:
        program = [sys.executable, "-m", "fairmile", *arguments]
        os.execve(program[0], program, environment)
    ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    printed = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            break
        if not part:
            break
        printed += part
    os.waitpid(child, 0)
    return printed.decode().replace("\r\n", "\n")


def main() -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "FAIRMILE_HOME": home, "COLUMNS": str(COLUMNS), "TERM": "xterm"}
        for arguments, lines in COMMANDS:
            console.print(Text(f"$ fairmile {' '.join(arguments)}", style="bold green"))
            printed = on_terminal(arguments, environment).rstrip("\n").split("\n")
            shown = printed[:lines] + (["…"] if len(printed) > lines else [])
            console.print(Text.from_ansi("\n".join([*shown, ""])), no_wrap=True, overflow="crop")
    console.save_svg(str(Path(__file__).parents[1] / "docs" / "demo.svg"), title="fairmile")


if __name__ == "__main__":
    main()
