"""Measures how fast commands start: CPU time over bare Python, best of several runs.

Run: python speed/start.py [--runs N] [--peer SRC]

`--peer` names the `src` folder of another version, which is measured in turns with this one.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from cards import Writer, write_catalog

FAIRMILE = [sys.executable, "-c", "from fairmile.cli.main import main; main()"]
FLOW = "steps:\n  tide: {command: [echo, high tide]}\n"


def cpu_ms(argv: list[str], home: Path, variables: dict[str, str]) -> float:
    environment = {**os.environ, "FAIRMILE_HOME": str(home), **variables}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, cwd=home / "work")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv[3:])}: {done.stderr.decode(errors='replace')[-600:]}")
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def prepare(home: Path, variables: dict[str, str]) -> str:
    """Make a workspace with 1,000 cards, a run and a flow, and return a word to search for.

    Each version has its own: one would make the index of the other anew.
    """
    writer = Writer()
    for _ in write_catalog(home / "catalog", 1000, writer):
        pass
    (home / "work").mkdir()
    (home / "work" / "tide.yaml").write_text(FLOW)
    for words in (["catalog", "reindex"], ["run", "--", "true"], ["flow", "run", "tide.yaml"]):
        cpu_ms([*FAIRMILE, *words], home, variables)
    return writer.words[20]


def commands(word: str) -> dict[str, list[str]]:
    """Return what is measured, each by what it is called; files are those that `prepare` writes."""
    ours = {
        "--version": ["--version"],
        "--help": ["--help"],
        "search WORD, 1,000 cards": ["search", word],
        "show NAME": ["show", "model/cosmoflow"],
        "status": ["status"],
        "runs ls": ["runs", "ls"],
        "runs show RUN": ["runs", "show", "last"],
        "run -- true": ["run", "--again", "--", "true"],
        "run --help": ["run", "--help"],
        "sweep plan": ["sweep", "plan", "-p", "x=1,2", "--", "echo", "{x}"],
        "flow run, nothing stale": ["flow", "run", "tide.yaml"],
        "job submit --dry-run": ["job", "submit", "--dry-run", "--", "true"],
        "system script": ["system", "script", "--", "true"],
        "fetch --help": ["fetch", "--help"],
        "predict --help": ["predict", "--help"],
    }
    return {
        "bare Python": [sys.executable, "-c", "pass"],
        "import fairmile": [sys.executable, "-c", "import fairmile"],
        "fairmile.run in Python": [sys.executable, "-c", "import fairmile; fairmile.run(['true'], again=True)"],
        **{f"fairmile {name}": [*FAIRMILE, *words] for name, words in ours.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--peer", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        versions = {"": Path(folder, "ours")}
        word = prepare(versions[""], {})
        if options.peer is not None:
            versions["peer"] = Path(folder, "peer")
            prepare(versions["peer"], {"PYTHONPATH": str(options.peer.absolute())})
        bare = 0.0
        for name, argv in commands(word).items():
            best = dict.fromkeys(versions, float("inf"))
            for _ in range(options.runs):
                for version, home in versions.items():
                    path = {"PYTHONPATH": str(options.peer.absolute())} if version else {}
                    best[version] = min(best[version], cpu_ms(argv, home, path))
            bare = bare or best[""]
            peer = f"; peer {best['peer']:6.1f}, ratio {best[''] / best['peer']:.2f}" if "peer" in best else ""
            print(f"{name:<40} {best['']:6.1f} ms of CPU, {best[''] - bare:6.1f} over bare Python{peer}", flush=True)


if __name__ == "__main__":
    main()
