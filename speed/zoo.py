"""Counts which public models `fairmile predict memory` follows, and compares their memory with real steps on the host.

Run: python speed/zoo.py --out FILE [--family NAME] [--only TEXT] [--sample N] [--jobs N] [--host all|failed]

Every model trains one step in a process of its own: traced without a device, and on the host. It is followed, followed
with assumed values, followed up to a point (lower bound), or fails for a reason. What the host cannot run either is
counted apart. With `--host all` every step runs on the host, without dropout, and the bytes at its peak are compared.
FILE has a line of JSON for each model, and those that it has already are left out: run again to resume.
Install timm, transformers and torchvision first: uv pip install -c constraints.txt --group zoo
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

ROOM_BYTES = 9 << 30
STEPS = Path(__file__).with_name("zoo_steps.py")
FOLLOWED = ("followed", "assumed values")


# a process for each model, forked from one that has imported everything


def serve(kind: str) -> None:
    """Answer each name on standard input with a line of JSON: what `kind` made of the model."""
    import torch

    torch.set_num_threads(1)
    family, timeout_s, plain = sys.argv[3], float(sys.argv[4]), sys.argv[5] == "plain"
    if kind == "trace":
        from fairmile.predict.fake_device.session import TraceSession

        session = TraceSession()
        work = lambda name: traced(session, family, name, plain)  # noqa: E731
    else:
        work = lambda name: on_host(family, name, plain)  # noqa: E731
    import zoo_steps

    zoo_steps.without_extension()
    zoo_steps.cases(family)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(apart(work, line.rstrip("\n"), timeout_s)), flush=True)


def apart(work: Any, name: str, timeout_s: float) -> dict[str, Any]:
    """Do work in a process of its own."""
    with tempfile.NamedTemporaryFile("r") as answer, open(os.devnull, "r+b") as nowhere:
        begin = time.monotonic()
        child = os.fork()
        if child == 0:
            for number in (0, 1, 2):
                os.dup2(nowhere.fileno(), number)
            resource.setrlimit(resource.RLIMIT_DATA, (ROOM_BYTES, ROOM_BYTES))
            signal.alarm(int(timeout_s))
            try:
                made = work(name)
            except MemoryError:
                made = {"outcome": "failed", "reason": "takes more memory than allowed here"}
            made["cpu_s"] = round(time.process_time(), 2)
            Path(answer.name).write_text(json.dumps(made))
            os._exit(0)
        _, status, _ = os.wait4(child, 0)
        if status == 0:
            found: dict[str, Any] = json.loads(answer.read())
            return found
        is_late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
        reason = f"took longer than {timeout_s:g} s" if is_late else f"ended with status {status}"
        return {"outcome": "failed", "reason": reason, "cpu_s": round(time.monotonic() - begin, 2)}


def traced(session: Any, family: str, name: str, plain: bool) -> dict[str, Any]:
    """Trace a step, and say how far that goes and the peak before the optimizer's step."""
    from fairmile.predict.fake_device.request import Refused, TraceRequest

    arguments = {"family": family, "name": name, "plain": plain}
    request = TraceRequest(str(STEPS), "build", arguments, steps=1, partial=True)
    try:
        document = json.loads(session.trace(request))
    except Refused as refused:
        return {"outcome": "failed", "reason": refused.sentence}
    if document["stopped"]:
        return {"outcome": "lower bound", "reason": document["stopped"]}
    sizes, ops, live, peak = [each["size_bytes"] for each in document["storages"]], document["ops"], 0, 0
    for kind, number, _ in document["events"]:
        if kind == 0 and ops[number]["phase"] == "optimizer":
            break
        live += sizes[number] if kind == 2 else -sizes[number] if kind == 3 else 0
        peak = max(peak, live)
    outcome = "assumed values" if document["assumed"] else "followed"
    return {"outcome": outcome, "reason": "; ".join(document["notes"]), "peak_bytes": peak, "operators": len(ops)}


def on_host(family: str, name: str, plain: bool) -> dict[str, Any]:
    """Run the forward and backward of a step on the host, and count the bytes that torch takes for it."""
    import torch
    import zoo_steps

    torch.manual_seed(0)
    try:
        step = zoo_steps.build(family, name, plain)
        model = step.model.train()
        held = {each.untyped_storage()._cdata: each for each in (*model.parameters(), *model.buffers())}
        live = sum(each.untyped_storage().nbytes() for each in held.values())
        with torch.autograd.profiler.profile(profile_memory=True) as profile:
            loss = step.loss(model)
            loss.backward()
        peak = live
        for event in profile.kineto_results.events():
            if event.name() == "[memory]" and event.device_type() == torch._C._autograd.DeviceType.CPU:
                live += event.nbytes()
                peak = max(peak, live)
    except Exception as error:  # noqa: BLE001 - whatever a model of others raises is its reason
        return {"outcome": "failed", "reason": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    return {"outcome": "runs", "reason": "", "peak_bytes": peak}


class Server:
    """A process that answers for one family and one kind of work."""

    def __init__(self, kind: str, family: str, chosen: argparse.Namespace) -> None:
        plain = "plain" if chosen.host == "all" else "whole"
        argv = [sys.executable, __file__, "serve", kind, family, str(chosen.timeout), plain]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(argv, text=True, env=environment, **pipes)
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("{", "ready")):
                return line
        raise SystemExit(
            "a process of the zoo ended without an answer: run `python speed/zoo.py serve trace timm 60 whole`"
        )

    def __call__(self, name: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._answer())
        return answer

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def go_through(family: str, names: list[str], chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Judge models, several at once."""

    def judge(share: list[str]) -> None:
        servers: dict[str, Server] = {}

        def ask(kind: str, name: str) -> dict[str, Any]:
            if kind not in servers:
                servers[kind] = Server(kind, family, chosen)
            return servers[kind](name)

        for name in share:
            found = ask("trace", name)
            row = {"family": family, "name": name, **found}
            if chosen.host == "all" or (chosen.host == "failed" and found["outcome"] not in FOLLOWED):
                host = ask("host", name)
                row["host_bytes"], row["host"] = host.get("peak_bytes"), host["reason"]
                if found["outcome"] not in FOLLOWED and host["outcome"] == "failed":
                    row["outcome"] = "host fails too"
            done.append(row)
        for server in servers.values():
            server.end()

    done: list[dict[str, Any]] = []
    with ThreadPoolExecutor(chosen.jobs) as pool:
        working = [pool.submit(judge, names[number :: chosen.jobs]) for number in range(chosen.jobs)]
        while not all(each.done() for each in working) or done:
            while done:
                yield done.pop(0)
            time.sleep(0.1)
        for each in working:
            each.result()


# what it says


def table(rows: list[dict[str, Any]]) -> str:
    heads = ("family", "models", "judged", "followed", "assumed", "bound", "failed", "share", "host fails")
    lines = ["".join(f"{head:>14}" for head in heads)]
    for family in dict.fromkeys(row["family"] for row in rows):
        mine = [row for row in rows if row["family"] == family]
        counts = Counter(row["outcome"] for row in mine)
        judged = len(mine) - counts["host fails too"]
        good = sum(counts[name] for name in FOLLOWED)
        cells = (family, len(mine), judged, counts["followed"], counts["assumed values"], counts["lower bound"],
                 counts["failed"], f"{good / max(1, judged):.1%}", counts["host fails too"])  # fmt: skip
        lines.append("".join(f"{cell:>14}" for cell in cells))
    return "\n".join(lines)


def reasons(rows: list[dict[str, Any]], outcomes: tuple[str, ...]) -> str:
    kinds: dict[str, list[str]] = {}
    for row in rows:
        if row["outcome"] in outcomes:
            said = row["host"] if row["outcome"] == "host fails too" else row["reason"]
            kinds.setdefault(said.partition("zoo_steps.py")[2].partition(" ")[2] or said, []).append(row["name"])
    ordered = sorted(kinds.items(), key=lambda each: -len(each[1]))
    return "\n".join(f"{len(names):4} {said[:170]}   [{', '.join(names[:3])}]" for said, names in ordered)


def errors(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'family':>14}{'compared':>10}{'median':>9}{'median abs':>12}{'90 % abs':>10}{'worst':>9}  model"]
    for family in dict.fromkeys(row["family"] for row in rows):
        mine = [row for row in rows if row["family"] == family and row.get("host_bytes") and row.get("peak_bytes")]
        if not mine:
            continue
        off = {row["name"]: row["peak_bytes"] / row["host_bytes"] - 1 for row in mine}
        apart = sorted(map(abs, off.values()))
        worst = max(off, key=lambda name: abs(off[name]))
        tenth = apart[min(len(apart) - 1, int(0.9 * len(apart)))]
        middle = f"{statistics.median(off.values()):>9.2%}{statistics.median(apart):>12.2%}{tenth:>10.2%}"
        lines.append(f"{family:>14}{len(mine):>10}{middle}{off[worst]:>9.1%}  {worst}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    families = ("others", "transformers", "timm", "torchvision")
    parser.add_argument("--family", action="append", choices=families, help="Only this family; repeatable.")
    parser.add_argument("--only", default="", help="Only models with this text in their name.")
    parser.add_argument("--sample", type=int, metavar="N", help="Only N models of each family, drawn at random.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the sample: a larger one has the smaller inside.")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="Number of models to follow concurrently.")
    parser.add_argument("--timeout", type=float, default=120, metavar="SECONDS", help="Limit for each model.")
    parser.add_argument("--host", choices=("all", "failed", "none"), default="failed", help="Steps to run on the host.")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="Lines of JSON, one for each model.")
    parser.add_argument("--table", action="store_true", help="Only print the table of what FILE has.")
    chosen = parser.parse_args()
    rows = [json.loads(line) for line in chosen.out.read_text().splitlines()] if chosen.out.exists() else []
    known = {(row["family"], row["name"]) for row in rows}
    for family in [] if chosen.table else chosen.family or families:
        import zoo_steps

        zoo_steps.without_extension()
        names = [name for name in zoo_steps.cases(family) if chosen.only.casefold() in name.casefold()]
        if chosen.sample is not None:
            random.Random(f"{family} {chosen.seed}").shuffle(names)
        names = [name for name in names[: chosen.sample] if (family, name) not in known]
        with chosen.out.open("a") as out:
            for row in go_through(family, names, chosen) if names else ():
                rows.append(row)
                out.write(json.dumps(row) + "\n")
                out.flush()
                print(f"{family:12} {row['name']:48} {row['outcome']:14} {row['reason'][:140]}", flush=True)
    for head, outcomes in (("lower bound or failed", ("lower bound", "failed")), ("host fails", ("host fails too",))):
        print(f"\n{head}, by reason\n{reasons(rows, outcomes)}")
    print(f"\nbytes at the peak of forward and backward, against the host\n{errors(rows)}\n\n{table(rows)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    else:
        main()
