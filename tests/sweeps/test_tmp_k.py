import os, subprocess, sys, shutil
from pathlib import Path
from slurm_cluster import SlurmCluster
from sweep_making import environ_of, workspace_on
def test_x(slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch) -> None:
    workspace_on(slurm_cluster, tmp_path, monkeypatch)
    for n in ("tide.py","tide-sweep.yaml","tide-study.yaml"): shutil.copy(f"/work/main/docs/examples/{n}", tmp_path)
    env = {**environ_of(tmp_path), **slurm_cluster.environ, "PATH": "/work/main/.venv/bin:"+slurm_cluster.environ.get("PATH", os.environ["PATH"]), "NO_COLOR":"1"}
    for line in ("sweep run tide-sweep.yaml --on rig --time 5:00 --dry-run","sweep run tide-sweep.yaml --on rig --time 5:00 --pack 2 --queued 2","sweep show last","sweep run tide-sweep.yaml --on rig --time 5:00 --slots 2 --pack 3 --leave","status","sweep ls","sweep show last", "sweep run last", "sweep cancel last --dry-run", "sweep cancel last", "tune tide-study.yaml --on rig --time 10:00 -j 4 --pruner asha", "tune tide-study.yaml --on rig -j 4 --time 10:00 --leave", "tune show last", "tune run last", "tune stop last"):
        d = subprocess.run([sys.executable,"-m","fairmile",*line.split()],cwd=tmp_path,env=env,capture_output=True,text=True,timeout=200)
        print(f"$ fairmile {line}\n{d.stdout}-- err\n{d.stderr}-- rc {d.returncode}")
