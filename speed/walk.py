"""Counts the walk of a word: through which modules `fairmile run` goes from the command line to the recorder.

Run: python speed/walk.py [--steps]

    a run file          `fairmile run tide.yaml`, a file with a command
    a benchmark         `fairmile run miniweather`, a name of the catalog

A stop is a change of the module whose functions are executing, a return a stop in a module that was visited before.
Counted are `cli`, `workspace`, `resolve`, `runs` and what they call beside them, up to the recorder's `begin`. What
they stand on (`base`, `meter`, `store`, `transfer`, `systems`, `envs`, `catalog`) a reader takes for granted, as a
library, and so are constructors, comprehensions and the import of a module with all that these call. `--steps` prints
every stop with its functions.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

FLOOR = ("base", "meter", "store", "transfer", "systems", "envs", "catalog")
WORDS = {"a run file": "tide.yaml", "a benchmark": "miniweather"}
RUN_FILE = "argv: [echo, high tide]\n"


class Begun(BaseException):
    """The recorder has been reached."""


class Walk:
    """The modules that execute, in turn, each with the functions that it was entered by and went on with."""

    def __init__(self) -> None:
        self.stops: list[tuple[str, list[str]]] = []
        self._has_started = False
        self._inside: FrameType | None = None  # a constructor, an import or a function of the floor, until it returns

    def follow(self, frame: FrameType, event: str, _: Any) -> None:
        """Note one event of `sys.setprofile`."""
        if self._inside is not None:
            if event == "return" and frame is self._inside:
                self._inside = None
            return
        if event != "call":
            return
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        package, _, rest = module.partition(".")
        if package != "fairmile":
            return
        if not self._has_started:
            self._has_started = (module, function) == ("fairmile.cli.run", "run")
            if not self._has_started:
                return
        # Lambdas and functions of the floor may lead back to what is counted.
        if function == "<module>" or function.startswith("__"):
            self._inside = frame
            return
        if function.startswith("<") or rest.split(".")[0] in FLOOR:
            return
        if not self.stops or self.stops[-1][0] != rest:
            self.stops.append((rest, []))
        if function not in self.stops[-1][1]:
            self.stops[-1][1].append(function)
        if function == "begin" and rest.endswith("recorder"):
            raise Begun


def walk(word: str) -> Walk:
    """Return the walk of `fairmile run WORD` in an empty workspace, which ends before a program is started."""
    from fairmile.cli.main import run

    followed = Walk()
    sys.setprofile(followed.follow)
    try:
        run(["run", word])
    except Begun:
        return followed
    finally:
        sys.setprofile(None)
    raise SystemExit(f"`fairmile run {word}` never came to its recorder")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", action="store_true", help="Print every stop with its functions.")
    steps = parser.parse_args().steps
    for title, word in WORDS.items():
        with tempfile.TemporaryDirectory() as name:
            child = os.fork()
            if not child:  # each walk has a process, as a command has
                os.environ |= {"FAIRMILE_HOME": f"{name}/home", "HOME": name}
                os.chdir(name)
                Path("tide.yaml").write_text(RUN_FILE)
                print_walk(title, word, walk(word), steps)
                sys.stdout.flush()
                os._exit(0)
            if os.waitpid(child, 0)[1]:
                raise SystemExit(1)


def print_walk(title: str, word: str, followed: Walk, steps: bool) -> None:
    visited = list(dict.fromkeys(module for module, _ in followed.stops))
    returns = len(followed.stops) - len(visited)
    print(f"{title}, `fairmile run {word}`: {len(followed.stops)} stops, {len(visited)} modules, {returns} returns")
    if not steps:
        print(f"  {' → '.join(visited)}")
        return
    seen = set()
    for module, functions in followed.stops:
        print(f"  {'↩' if module in seen else ' '} {module}: {', '.join(functions)}")
        seen.add(module)


if __name__ == "__main__":
    main()
