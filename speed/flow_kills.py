"""Kills the coordinator of a flow at random moments until it is done, and counts steps that ran twice or never.

Run: python speed/flow_kills.py [--steps N] [--kills N] [--longest SECONDS] [--seed N]

The flow has chains of three steps of 0.05 to 0.2 s: on this machine, on a host behind a real ssh server, and on a real
Slurm; two further steps join them. Its coordinator gets SIGKILL after a random time of up to `--longest` seconds and is
started again. A flow that is done before there were enough kills is followed by a new one. Each step adds a line to a
file as its first command, so that a second start is seen. The exit code is 1 where a step ran twice or never.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from far_systems import plain_system
from slurm_cluster import SlurmCluster, reason_to_skip
from slurm_jobs import system_text
from ssh_server import SshServer
from sweep_making import environ_of, workspace_here

FLOW = """\
name: killed
limits: {local: 2, far: 6, rig: 6}
steps:
  here: {shell: "echo here-{n} >> ROOT/count; sleep 0.05; echo {n} > a{n}.txt", over: {n: 1..CHAINS},
         outputs: "a{n}.txt"}
  far: {shell: "echo far-{n} >> ROOT/count; sleep 0.1; cat a{n}.txt > b{n}.txt", over: {n: 1..CHAINS}, on: far,
        inputs: "a{n}.txt", outputs: "b{n}.txt"}
  rig: {shell: "echo rig-{n} >> ROOT/count; sleep 0.2; cat b{n}.txt > c{n}.txt", over: {n: 1..CHAINS}, on: rig,
        inputs: "b{n}.txt", outputs: "c{n}.txt"}
  join: {shell: "echo join >> ROOT/count; cat c*.txt > all.txt", on: rig, inputs: "c*.txt", outputs: all.txt}
  last: {shell: "echo last >> ROOT/count; wc -l < all.txt > lines.txt", inputs: all.txt, outputs: lines.txt}
"""


def carry_out(
    folder: Path, environ: dict[str, str], chains: int, kills: int, longest_s: float
) -> tuple[int, Counter[str]]:
    """Run a flow in a folder, kill its coordinator at most so often, and return how often that was and what ran."""
    folder.mkdir()
    (folder / "flow.yaml").write_text(FLOW.replace("ROOT", str(folder)).replace("CHAINS", str(chains)))
    done = 0
    while True:
        with open(folder / "log", "ab") as log:
            argv = [sys.executable, "-m", "fairmile", "flow", "run", "flow.yaml"]
            process = subprocess.Popen(argv, cwd=folder, env=environ, stdout=log, stderr=log)
        try:
            code = process.wait(random.uniform(0.0, longest_s) if done < kills else None)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            done += 1
            continue
        if code:
            print((folder / "log").read_text()[-2000:], flush=True)
            raise SystemExit(f"the flow ended with {code} after {done} kills")
        return done, Counter((folder / "count").read_text().split())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--longest", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if why := reason_to_skip():
        raise SystemExit(why)
    random.seed(given.seed)
    chains = max((given.steps - 2) // 3, 1)
    names = [f"{kind}-{n}" for kind in ("here", "far", "rig") for n in range(1, chains + 1)] + ["join", "last"]
    kills = twice = lost = flows = 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills-") as name, SlurmCluster() as cluster:
        root = Path(name)
        (root / "sshd").mkdir()
        with SshServer(root / "sshd") as sshd:
            os.environ.update(cluster.environ)
            (root / "rig.yaml").write_text(system_text(cluster))
            workspace_here(root, plain_system(sshd, root) + f"  rig: {{file: {root / 'rig.yaml'}}}\n")
            while kills < given.kills:
                folder = root / f"flow-{flows}"
                killed, counts = carry_out(folder, environ_of(root), chains, given.kills - kills, given.longest)
                kills, flows = kills + killed, flows + 1
                twice += sum(counts[each] > 1 for each in names)
                lost += sum(not counts[each] for each in names)
                lines = (folder / "lines.txt").read_text().strip()
                lost += lines != str(chains)
                seconds = time.monotonic() - began
                print(
                    f"{flows} flows of {len(names)} steps, {kills} kills, {twice} twice, {lost} lost, {seconds:.0f} s",
                    flush=True,
                )
    return 1 if twice or lost else 0


if __name__ == "__main__":
    sys.exit(main())
