"""Takes the pictures of the documentation: real pages of real data, light and dark, by headless Chromium.

Run it from the repository: `python demo/pictures.py`, or with the names of some: `python demo/pictures.py sweep study`.
It writes docs/pictures/NAME-light.png and NAME-dark.png. `site` takes the site that `make docs` built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from playwright.sync_api import ViewportSize, sync_playwright

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
Scheme = Literal["light", "dark"]
_TIMEOUT_MS = 300_000  # a busy machine draws the figures of a trace slowly
_FIGURES_ARE_DRAWN = """() => [...document.querySelectorAll("[data-figure]")].every(
  each => each.getBoundingClientRect().top > innerHeight || each.querySelector("svg *"))"""
TRAIN = str(ROOT / "docs" / "examples" / "plain" / "train.py")


def fairmile(*arguments: str, folder: Path) -> None:
    """Run a command in a workspace of its own."""
    environ = {**os.environ, "FAIRMILE_HOME": str(folder / "home")}
    subprocess.run([sys.executable, "-m", "fairmile", *arguments], cwd=folder, env=environ, check=True)


def take(
    page: Path | str, name: str, size: tuple[int, int], part: str = "", schemes: Sequence[Scheme] = ("light", "dark")
) -> None:
    """Take a picture of a file or an address in each colour scheme, from the top or from what a selector names."""
    PICTURES.mkdir(exist_ok=True)
    viewport: ViewportSize = {"width": size[0], "height": size[1]}
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme in schemes:
            opened = chromium.new_page(viewport=viewport, color_scheme=scheme)
            opened.set_default_timeout(_TIMEOUT_MS)
            opened.goto(page if isinstance(page, str) else page.as_uri())
            if part:
                opened.locator(part).first.evaluate("each => scrollTo(0, each.getBoundingClientRect().top - 16)")
            opened.wait_for_function(_FIGURES_ARE_DRAWN)
            opened.screenshot(path=PICTURES / f"{name}-{scheme}.png")
        chromium.close()


def take_served(path: str, name: str, folder: Path, part: str = "") -> None:
    """Take a picture of a page of the server of a workspace, from the top or from what a selector names.

    `last` in its path is the id of the last run, and `group` what that belongs to.
    """
    from fairmile.web.serve import ServeSettings, serve
    from fairmile.workspace import Workspace

    workspace = Workspace.open(overrides={"home": str(folder / "home")})
    if "last" in path or "group" in path:
        run = workspace.runs.get("last")
        path = path.replace("last", run.id).replace("group", run.record.spec.group)
    with serve(workspace, ServeSettings(port=0), wait=False) as serving:
        take(f"{serving.address}{path}", name, (1100, 820), part)


def trace_picture(folder: Path) -> None:
    """A training on two ranks, one with slow data, recorded without a change to it."""
    program = str(ROOT / "demo" / "slow_loader.py")
    rest = ["--", "torchrun", "--nproc-per-node", "2", program]
    fairmile("trace", "record", "--skip", "2", "--steps", "5", "-o", "two-ranks", *rest, folder=folder)
    fairmile("trace", "analyze", "two-ranks", "-o", "trace.html", folder=folder)
    take(folder / "trace.html", "trace", (1180, 672))


def sweep_picture(folder: Path) -> None:
    """Three rates and two sizes of a network, three seeds each."""
    values = ["--lr", "0.01,0.1,0.3", "--hidden", "16,32", "--seed", "1..3", "--epochs", "20"]
    fairmile("sweep", "--best", "accuracy", TRAIN, *values, folder=folder)
    fairmile("report", "last", "-o", "sweep.html", folder=folder)
    take(folder / "sweep.html", "report-sweep", (1000, 900))


def runs_picture(folder: Path) -> None:
    """A filtered table of the runs of a sweep, the sweep, and one of the runs, in the browser."""
    values = ["--lr", "0.01,0.03,0.1,0.3", "--hidden", "8,16,32", "--seed", "1..2", "--epochs", "20"]
    fairmile("sweep", "--name", "spirals", TRAIN, *values, folder=folder)
    take_served("runs?q=spirals+loss%3C0.6", "web-runs", folder)
    take_served("sweeps/group", "web-sweep", folder)
    take_served("runs/last", "web-run", folder)


def leaderboard_picture(folder: Path) -> None:
    """Three ways to train, five seeds each, ranked in the browser."""
    for name, values in (("narrow", ["--hidden", "8"]), ("slow", ["--lr", "0.03"]), ("wide", ["--hidden", "48"])):
        repeats = ["--name", name, "--repeat", "5", "--seed", "1"]
        fairmile("run", *repeats, TRAIN, *values, "--seed", "{seed}", "--epochs", "20", folder=folder)
    take_served("leaderboards?metric=accuracy", "web-leaderboards", folder)


def catalog_picture(folder: Path) -> None:
    """A search of the catalog and the page of an asset, in the browser."""
    take_served("?q=cosmology", "web-search", folder)
    take_served("assets/dataset/cosmouniverse", "web-asset", folder)


def forms_picture(folder: Path) -> None:
    """The forms for a job script and for a prediction, filled in, in the browser."""
    take_served(
        "scripts?system=jureca&software=ddp&nodes=2&time=1h&account=my-project",
        "web-scripts",
        folder,
        "label:has-text('Program')",
    )
    take_served("predict?question=scaling&gpus=8..512&batch=512", "web-predict", folder, "#result")


def flow_picture(folder: Path) -> None:
    """The graph of a flow that has run, in the browser."""
    for file in (ROOT / "docs" / "examples" / "tide.py", ROOT / "demo" / "tides.yaml"):
        shutil.copy(file, folder)
    fairmile("flow", "run", "tides.yaml", folder=folder)
    take_served("flows/group", "web-flow", folder)


def store_picture(folder: Path) -> None:
    """The store of a small workspace, in the browser."""
    examples = ROOT / "docs" / "examples"
    fairmile("catalog", "describe", str(examples / "plain"), "--set", "version=1.0", "--add", folder=folder)
    fairmile("fetch", "plain", folder=folder)
    fairmile("fetch", str(examples / "tides.tar.gz"), "--unpack", folder=folder)
    fairmile("fetch", str(examples / "tides.onnx"), folder=folder)
    take_served("store", "web-store", folder)


def traced_run_picture(folder: Path) -> None:
    """The trace of a recorded run, in the browser."""
    program = str(ROOT / "docs" / "examples" / "train.py")
    record = ["trace", "record", "--skip", "2", "--steps", "5", "--", "python", program]
    fairmile("run", "--name", "traced", "--", "fairmile", *record, folder=folder)
    take_served("traces/last", "web-trace", folder)


def systems_picture(folder: Path) -> None:
    """The systems that are known, in the browser."""
    take_served("systems", "web-systems", folder)


def study_picture(folder: Path) -> None:
    """A search for the best rate and size."""
    space = ["--lr", "1e-2..1:log", "--hidden", "8..64", "--epochs", "10"]
    fairmile("tune", "--objective", "loss", "--trials", "24", "--tuning-seed", "1", TRAIN, *space, folder=folder)
    fairmile("report", "last", "-o", "study.html", folder=folder)
    take(folder / "study.html", "report-study", (1000, 900))
    take_served("sweeps/group", "web-study", folder, "h2:has-text('Importance of parameters')")


def earthquake_picture(folder: Path) -> None:
    """The maps and scores of the earthquake benchmark on a real catalog, which FAIRMILE_SHARED_DATA has."""
    catalog = Path(os.environ["FAIRMILE_SHARED_DATA"]) / "scsn_events_1932-2026.csv.gz"
    fairmile("run", "earthquake", "--data", f"data={catalog}", "-p", "model=persistence", folder=folder)
    fairmile("report", "last", "-o", "earthquake.html", folder=folder)
    take(folder / "earthquake.html", "report-earthquake", (1000, 700), "text=Skill by location")


def exploration_picture(folder: Path) -> None:
    """Ways to run a benchmark's model on a GPU, measured and predicted, as `speed/explorations.py` has them."""
    measured = ROOT / "speed" / "explored_h200.json"
    environ = {**os.environ, "FAIRMILE_HOME": str(folder / "home")}
    program = [sys.executable, str(ROOT / "speed" / "explorations.py"), "show", str(measured), str(folder)]
    subprocess.run([*program, "--only", "earthquake-256"], env=environ, check=True)
    take(folder / "earthquake-256.html", "exploration", (1000, 900))


def notebook_picture(folder: Path) -> None:
    """A cell of the notebook of the tutorials, as it is stored."""
    notebook = ROOT / "docs" / "tutorials" / "notebook.ipynb"
    schemes: tuple[Scheme, ...] = ("light", "dark")
    for scheme in schemes:
        page = folder / f"{scheme}.html"
        options = ["--to", "html", "--theme", scheme, "--output", str(page), str(notebook)]
        subprocess.run([sys.executable, "-m", "nbconvert", *options], check=True)
        take(page, "notebook", (900, 560), ".jp-CodeCell:has-text('sweep = fm')", [scheme])


def site_picture(folder: Path) -> None:
    """The start page of the documentation."""
    take(ROOT / "build" / "docs" / "index.html", "site", (1180, 800))


TAKEN = {
    "trace": trace_picture,
    "sweep": sweep_picture,
    "runs": runs_picture,
    "leaderboard": leaderboard_picture,
    "catalog": catalog_picture,
    "forms": forms_picture,
    "flow": flow_picture,
    "store": store_picture,
    "traced-run": traced_run_picture,
    "systems": systems_picture,
    "study": study_picture,
    "earthquake": earthquake_picture,
    "exploration": exploration_picture,
    "notebook": notebook_picture,
    "site": site_picture,
}

if __name__ == "__main__":
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for chosen in sys.argv[1:] or TAKEN:
        with tempfile.TemporaryDirectory() as name:
            TAKEN[chosen](Path(name))
