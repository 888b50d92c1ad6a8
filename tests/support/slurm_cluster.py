"""A real Slurm on this machine: several nodes, its own munge, and accounting where it is asked for."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import pytest

_SBIN = "/usr/sbin:/usr/local/sbin:/sbin"
_CLIENTS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun")
_DAEMONS = ("munged", "slurmctld", "slurmd")
_ACCOUNTING = ("slurmdbd", "mariadbd", "mariadb-install-db", "mariadb", "sacct", "sacctmgr")
_ATTEMPTS = 3  # a port that was free a moment ago may be taken when a daemon asks for it
_PATIENCE_S = 120.0
_DATABASE_PASSWORD = "only-on-loopback"


def reason_to_skip(*, accounting: bool = False) -> str:
    """Say why this machine cannot run a cluster; empty where it can."""
    wanted = [*_CLIENTS, *_DAEMONS, "unshare", "setpriv", *(_ACCOUNTING if accounting else ())]
    if missing := [name for name in wanted if _program(name) is None]:
        return f"needs a Slurm: there is no {', '.join(missing)}"
    if subprocess.run(["unshare", *_namespace(), "true"], capture_output=True).returncode != 0:
        return "needs process namespaces, which this machine does not give"
    return ""


class SlurmCluster:
    """A running cluster, with all of its state in one folder that goes when it is closed.

    The nodes are n1, n2, …; the last has two make-believe GPUs and a partition `gpu` of its own, the others are the
    partition `cpu`. Each node lives in a process namespace of its own, so that `kill_node` takes its jobs along, as a
    power cut does. Every daemon ends with the thread that started it.
    """

    def __init__(self, *, node_count: int = 4, cores: int = 2, with_accounting: bool = False) -> None:
        self.nodes = tuple(f"n{number}" for number in range(1, node_count + 1))
        self.cores = cores
        self.with_accounting = with_accounting
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        for attempt in range(1, _ATTEMPTS + 1):
            self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # a socket's path has 108 characters
            try:
                self._start()
                return
            except BaseException as error:
                report = self.logs()
                self.close()
                if attempt == _ATTEMPTS or not isinstance(error, TimeoutError):
                    raise RuntimeError(f"the cluster did not start: {error}\n{report}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def environ(self) -> dict[str, str]:
        """Return the variables that make Slurm's commands talk to this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *argv: str, check: bool = True, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands against this cluster."""
        done = subprocess.run(argv, env=self._environment(), capture_output=True, text=True, timeout=timeout_s)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr.strip()}")
        return done

    def refusal(self, script: Path) -> str:
        """Return what sbatch has against a script, without submitting it; empty where it would take it."""
        done = self.run("sbatch", "--test-only", str(script), check=False)
        return done.stderr.strip() if done.returncode else ""

    def wait_idle(self, *, timeout_s: float = 120) -> None:
        """Wait until no job is left to run and every node is free."""
        _wait_for(self._is_idle, timeout_s, "an idle cluster")

    def node_states(self) -> dict[str, str]:
        """Return what sinfo says of each node: idle, mixed, down* …"""
        lines = self.run("sinfo", "-h", "-N", "-o", "%N %T").stdout.splitlines()
        return dict(line.split() for line in lines)

    def kill_node(self, name: str) -> None:
        """Take a node away with everything that runs on it; the controller finds out by itself, in about 30 s."""
        self._end(name, signal.SIGKILL)
        # A node of a cluster comes back with an empty spool. One that finds its old job's script there may remove the
        # script of the job's second start for it.
        shutil.rmtree(self.folder / f"spool.{name}", ignore_errors=True)

    def start_node(self, name: str) -> None:
        """Start a node that is not running; the controller takes it back by itself."""
        slurmd = [_program("slurmd") or "slurmd", "-D", "-N", name, "-f", str(self.folder / "slurm.conf")]
        # The first process of a process namespace must wait for its orphans: a shell does, slurmd does not.
        self._begin(name, ["unshare", *_namespace(), "bash", "-c", '"$@" & wait', "_", *slurmd])

    def node_down(self, name: str) -> None:
        """Have the controller give a node up at once, which requeues what runs on it; a living node soon returns."""
        self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=test")

    def node_resume(self, name: str) -> None:
        """Have the controller use a node again, where it does not yet."""
        self.run("scontrol", "update", f"nodename={name}", "state=resume", check=False)

    def stop_controller(self, *, kill: bool = False) -> None:
        """End the controller; with `kill`, before it can save what it knows."""
        self._end("slurmctld", signal.SIGKILL if kill else signal.SIGTERM)

    def start_controller(self) -> None:
        """Start the controller with the state that the last one left, and wait until it answers."""
        self._begin("slurmctld", ["slurmctld", "-D", "-f", str(self.folder / "slurm.conf")])
        self._wait_for(self._controller_answers, "the controller")

    def logs(self, lines: int = 15) -> str:
        """Return the last lines of every log, for the message of a failing test."""
        parts = []
        for log in sorted(self.folder.glob("log/*")):
            tail = log.read_text(errors="replace").splitlines()[-lines:]
            parts.append("\n".join([f"--- {log.name}", *tail]))
        return "\n".join(parts)

    def close(self) -> None:
        """End every process and remove the folder."""
        for name in reversed(list(self._running)):
            self._end(name, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        for name in ("state", "run", "log", "munge", *(f"tmp.{node}" for node in self.nodes)):
            (self.folder / name).mkdir()
        self.folder.chmod(0o755)
        ports = _free_ports(len(self.nodes) + 3)
        self._write_settings(*ports)
        self._start_munge()
        if self.with_accounting:
            self._start_accounting(database_port=ports[1], accounting_port=ports[2])
        self._begin("slurmctld", ["slurmctld", "-D", "-c", "-f", str(self.folder / "slurm.conf")])
        self._wait_for(lambda: _answers(ports[0]), "the controller")
        for name in self.nodes:
            self.start_node(name)
        if self.with_accounting:
            self._wait_for_accounting()
        self._wait_for(self._is_idle, "an idle cluster")

    def _write_settings(self, controller: int, database: int, accounting: int, *nodes: int) -> None:
        root, me = self.folder, getpass.getuser()
        gpu_node = self.nodes[-1]
        cpu_nodes = ",".join(self.nodes[:-1]) or gpu_node
        memory = 1000 * self.cores
        lines = [
            f"NodeName={name} NodeAddr=127.0.0.1 NodeHostname=localhost Port={port} Sockets=1 "
            f"CoresPerSocket={self.cores} ThreadsPerCore=1 RealMemory={memory} State=UNKNOWN "
            + ("Feature=gpu Gres=gpu:fake:2" if name == gpu_node else "Feature=cpu")
            for name, port in zip(self.nodes, nodes, strict=True)
        ]
        lines += [
            f"PartitionName=cpu Nodes={cpu_nodes} Default=YES MaxTime=60 State=UP",
            f"PartitionName=gpu Nodes={gpu_node} MaxTime=60 State=UP",
        ]
        storage = (
            "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
            f"AccountingStoragePort={accounting}\nAccountingStoragePass={root}/munge/munge.socket\n"
            "AccountingStorageEnforce=associations,limits,qos\nAccountingStorageTRES=gres/gpu\nEnforcePartLimits=ALL\n"
            if self.with_accounting
            else "AccountingStorageType=accounting_storage/none\n"
        )
        settings = _SETTINGS.format(root=root, me=me, controller=controller)
        (root / "slurm.conf").write_text(settings + storage + "\n".join(lines) + "\n")
        # Each make-believe GPU needs a device file of its own.
        devices = [f"NodeName={gpu_node} Name=gpu Type=fake File={file}\n" for file in ("/dev/null", "/dev/zero")]
        (root / "gres.conf").write_text("".join(devices))
        (root / "plugstack.conf").write_text("")
        (root / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        if self.with_accounting:
            file = root / "slurmdbd.conf"
            file.touch(mode=0o600)
            file.write_text(
                _ACCOUNTING_SETTINGS.format(
                    root=root, me=me, accounting=accounting, database=database, password=_DATABASE_PASSWORD
                )
            )

    def _start_munge(self) -> None:
        munge = self.folder / "munge"
        key = munge / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {
            "key-file": key,
            "socket": munge / "munge.socket",
            "pid-file": munge / "munged.pid",
            "log-file": munge / "munged.log",
            "seed-file": munge / "munged.seed",
        }
        options = [f"--{option}={file}" for option, file in files.items()]
        self._begin("munged", ["munged", "--foreground", "--force", *options])
        self._wait_for(files["socket"].exists, "munge")

    def _start_accounting(self, *, database_port: int, accounting_port: int) -> None:
        data, socket_file, me = self.folder / "db", self.folder / "run" / "db.socket", getpass.getuser()
        install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", f"--user={me}", "--skip-test-db"]
        self.run(*install, "--auth-root-authentication-method=normal")
        server = ["mariadbd", "--no-defaults", f"--datadir={data}", f"--user={me}", f"--socket={socket_file}"]
        server += ["--bind-address=127.0.0.1", f"--port={database_port}", f"--pid-file={self.folder}/run/db.pid"]
        server += ["--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=0"]
        self._begin("mariadbd", [*server, "--performance-schema=OFF"])
        self._wait_for(lambda: _answers(database_port), "the database")
        who = f"'slurm'@'127.0.0.1' IDENTIFIED BY '{_DATABASE_PASSWORD}'"
        commands = f"CREATE DATABASE slurm; CREATE USER {who}; GRANT ALL ON slurm.* TO 'slurm'@'127.0.0.1';"
        self.run("mariadb", "--no-defaults", f"--socket={socket_file}", "-u", "root", "-e", commands)
        self._begin("slurmdbd", ["slurmdbd", "-D"])
        self._wait_for(lambda: _answers(accounting_port), "the accounting")
        manage = ("sacctmgr", "-i", "add")
        self._wait_for(lambda: self.run(*manage, "cluster", "test", check=False).returncode == 0, "the accounting")
        self.run(*manage, "account", "def")
        self.run(*manage, "user", me, "Account=def")

    def _wait_for_accounting(self) -> None:
        # What the controller says before it is registered arrives some seconds late.
        probe = self.run("sbatch", "--parsable", "--wait", "--output=/dev/null", "--wrap=true").stdout.strip()
        show = ("sacct", "-n", "-P", "-X", "-o", "State", "-j", probe)
        self._wait_for(lambda: self.run(*show).stdout.strip() == "COMPLETED", "the first job in the accounting")

    def _wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for what daemons do; one that ended, as where its port is taken, is not waited for."""

        def met() -> bool:
            if ended := [name for name, process in self._running.items() if process.poll() is not None]:
                raise TimeoutError(f"{', '.join(ended)} ended before {what} was there")
            return condition()

        _wait_for(met, _PATIENCE_S, what)

    def _is_idle(self) -> bool:
        jobs = self.run("squeue", "-h", "-o", "%i").stdout.split()
        return not jobs and self.node_states() == dict.fromkeys(self.nodes, "idle")

    def _controller_answers(self) -> bool:
        return self.run("scontrol", "ping", check=False).stdout.strip().endswith("UP")

    def _begin(self, name: str, argv: Sequence[str]) -> None:
        program = _program(argv[0]) or argv[0]
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self._running[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", program, *argv[1:]],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _end(self, name: str, number: signal.Signals) -> None:
        process = self._running.pop(name)
        process.send_signal(number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _environment(self) -> Mapping[str, str]:
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return mine | {"PATH": f"{os.environ.get('PATH', '/usr/bin:/bin')}:{_SBIN}"} | self.environ


_SETTINGS = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={me}
SlurmdUser={me}
AuthType=auth/munge
CredType=cred/munge
# A requeued job starts no sooner than its old credential ends, which is two minutes unless said.
AuthInfo=socket={root}/munge/munge.socket,cred_expire=5
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool.%n
# Where PMIx keeps the sockets of a step, which two nodes of one machine must not share.
TmpFS={root}/tmp.%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd.%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd.%n.log
PlugStackConfig={root}/plugstack.conf
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
ReturnToService=2
SlurmdTimeout=10
KillWait=2
MessageTimeout=5
MinJobAge=300
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
GresTypes=gpu
JobRequeue=1
DefMemPerCPU=100
"""

_ACCOUNTING_SETTINGS = """\
AuthType=auth/munge
AuthInfo=socket={root}/munge/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={accounting}
SlurmUser={me}
PidFile={root}/run/slurmdbd.pid
LogFile={root}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm
"""


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=_SBIN)


def _namespace() -> list[str]:
    """Return the options of unshare for a process namespace, within one of users where that takes no privilege."""
    return ["--pid", "--fork", "--kill-child=KILL", "--mount-proc"] + (
        [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
    )


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait_for(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    pause_s = 0.03
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 0.3)  # asking keeps a core from what is waited for


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Start a Slurm of four nodes without accounting for this session."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    with SlurmCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def slurm_with_accounting() -> Iterator[SlurmCluster]:
    """Start a Slurm with accounting, slurmdbd over MariaDB, for this session.

    It is a strict one: accounts, QOS and the limits of partitions are checked when a job is submitted.
    """
    if reason := reason_to_skip(accounting=True):
        pytest.skip(reason)
    with SlurmCluster(with_accounting=True) as cluster:
        yield cluster
