"""Takes the pictures of the documentation: real pages of real data, light and dark, by headless Chromium.

Run it from the repository: `python demo/pictures.py`. It writes docs/pictures/NAME-light.png and NAME-dark.png.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"


def fairmile(*arguments: str, folder: Path) -> None:
    """Run a command in a workspace of its own."""
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = {**os.environ, "FAIRMILE_HOME": str(folder / "home"), "PATH": folders}
    subprocess.run([sys.executable, "-m", "fairmile", *arguments], cwd=folder, env=environ, check=True)


def take(page: Path, name: str, size: str) -> None:
    """Take a picture of the top of a page in both colour schemes."""
    PICTURES.mkdir(exist_ok=True)
    for scheme, flags in (("light", []), ("dark", ["--force-dark-mode"])):
        target = PICTURES / f"{name}-{scheme}.png"
        fixed = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={size}"]
        subprocess.run(["chromium", *fixed, *flags, f"--screenshot={target}", page.as_uri()], check=True)


def trace_picture(folder: Path) -> None:
    """A training on two ranks, one with slow data, recorded without a change to it."""
    program = str(ROOT / "demo" / "slow_loader.py")
    rest = ["--", "torchrun", "--nproc-per-node", "2", program]
    fairmile("trace", "record", "--skip", "2", "--steps", "5", "-o", "two-ranks", *rest, folder=folder)
    fairmile("trace", "analyze", "two-ranks", "-o", "trace.html", folder=folder)
    take(folder / "trace.html", "trace", "1180,672")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        trace_picture(Path(name))
