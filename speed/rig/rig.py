"""Network links of chosen delay, rate and loss on one machine, with nginx behind them and programs timed before them.

Every address lies in network namespaces that the rig makes and removes; nothing leaves the machine. It needs root,
the programs `ip`, `nsenter`, `setpriv`, `nginx` and `gcc`, and `/dev/net/tun`. A link is carried by `relay.c`.

    with Rig(scratch) as rig:
        near = rig.serve(folder)                                         # on the client's own loopback
        far = rig.serve(folder, Link(rate_mbit=1000, rtt_ms=100, loss=0.0001))
        print(rig.run(["curl", "-so", "/dev/null", far.url + "/file"]))
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

PREFIX = "fairmile-rig-"
RELAY_SOURCE = Path(__file__).with_name("relay.c")
PROGRAMS = ("ip", "nsenter", "setpriv", "nginx", "gcc")
# An IPv4 and a TCP header with time stamps: what each packet carries besides payload.
HEADER_BYTES = 20 + 20 + 12
NGINX = """\
daemon off;
pid {here}/nginx.pid;
error_log {here}/error.log warn;
worker_processes auto;
worker_rlimit_nofile 8192;
events {{ worker_connections 4096; }}
http {{
  log_format sent '$request_method $status $body_bytes_sent $request_uri';
  access_log {here}/access.log sent;
  client_body_temp_path {here}/body; proxy_temp_path {here}/proxy; fastcgi_temp_path {here}/fastcgi;
  uwsgi_temp_path {here}/uwsgi; scgi_temp_path {here}/scgi;
  sendfile on; tcp_nopush on; keepalive_requests 1000000;
  types {{ }} default_type application/octet-stream;
  server {{ listen {address}:80 backlog=4096; root {root}; autoindex on; }}
}}
"""


class RigError(RuntimeError):
    """The rig cannot be built or used here; the text says why."""


@dataclass(frozen=True)
class Link:
    """What a link is like; `queue_ms` 0 is a queue of bandwidth × round trip before it."""

    rate_mbit: float
    rtt_ms: float
    loss: float = 0.0
    seed: int = 1
    queue_ms: float = 0.0

    def __str__(self) -> str:
        return f"{self.rate_mbit:g} Mbit/s, {self.rtt_ms:g} ms round trip, {self.loss:.2%} loss"


@dataclass(frozen=True)
class Measured:
    """What one command took: the clock, CPU of it and its children, the largest resident set of one process.

    `peak_bytes` is never below what the measuring program itself holds, because Linux counts from the fork.
    """

    status: int
    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: str


class Server:
    """One nginx and, unless it stands on the client's loopback, the link before it."""

    def __init__(
        self, url: str, log: Path, client_device: str, client: str, relay: subprocess.Popen[str] | None
    ) -> None:
        self.url = url
        self._log = log
        self._device = client_device
        self._client = client
        self._relay = relay

    def requests(self) -> list[tuple[str, int, int]]:
        """Return (method, status, body bytes that nginx handed to its socket) of every request answered so far."""
        rows = [line.split(" ", 3) for line in self._log.read_text().splitlines()]
        return [(method, int(status), int(sent)) for method, status, sent, _ in rows]

    def received_bytes(self) -> int:
        """Return the payload bytes that have come to the client over this link, those that came twice counted twice."""
        found = json.loads(_out("ip", "-n", self._client, "-s", "-j", "link", "show", "dev", self._device))
        counters = found[0]["stats64"]["rx"]
        return int(counters["bytes"]) - HEADER_BYTES * int(counters["packets"])

    def go_silent(self) -> None:
        """Let the link swallow everything from now on, without any sign, until `speak` is called."""
        assert self._relay is not None, "the loopback cannot go silent"
        self._relay.send_signal(signal.SIGSTOP)

    def speak(self) -> None:
        assert self._relay is not None
        self._relay.send_signal(signal.SIGCONT)

    def close_link(self) -> dict[str, dict[str, int]]:
        """Take the link down, once all under way has arrived, and return what became of its packets by direction."""
        assert self._relay is not None, "the loopback has no relay"
        self._relay.terminate()
        report, _ = self._relay.communicate()
        counts: dict[str, dict[str, int]] = json.loads(report)
        return counts


class Command:
    """A program that runs, with all it starts."""

    def __init__(self, process: subprocess.Popen[bytes], started: float, output: Path) -> None:
        self._process = process
        self._started = started
        self._output = output
        self._measured: Measured | None = None

    def is_over(self) -> bool:
        return self._process.returncode is not None or bool(
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        )

    def wait(self) -> Measured:
        """Return what it took, once it has ended."""
        if self._measured is None:
            _, status, used = os.wait4(self._process.pid, 0)
            wall_s = time.perf_counter() - self._started
            self._process.returncode = os.waitstatus_to_exitcode(status)
            text = self._output.read_bytes()[-4000:].decode(errors="replace")
            cpu_s = used.ru_utime + used.ru_stime
            self._measured = Measured(self._process.returncode, wall_s, cpu_s, used.ru_maxrss * 1024, text)
        return self._measured

    def kill(self) -> None:
        """End it, and whatever it started, as `kill -9` does; what has been waited for stays as it is."""
        if self._measured is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


class Rig:
    """Owns the namespaces, relays and servers of one measurement; leaving it removes them all.

    `congestion` is the TCP congestion control at both ends: one of /proc/sys/net/ipv4/tcp_allowed_congestion_control,
    since Linux lets a namespace choose no other, or the machine's own.
    """

    def __init__(self, scratch: Path, *, congestion: str = "") -> None:
        self.scratch = scratch
        self.congestion = congestion or Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
        self.client = f"{PREFIX}{os.getpid()}-c"
        self._namespaces: list[str] = []
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Rig:
        why_not = missing()
        if why_not:
            raise RigError(why_not)
        remove_leftovers()
        # A plain `kill` must tidy up as Ctrl-C does.
        self._old_terminate = signal.signal(signal.SIGTERM, _interrupt)
        try:
            self.relay = _build_relay(self.scratch)
            self._add_namespace(self.client)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def serve(self, folder: Path, link: Link | None = None) -> Server:
        """Start nginx over `folder`, behind `link` or, without one, on the client's loopback."""
        number = len(self._processes) + 1
        here = self.scratch / f"server-{number}"
        here.mkdir()
        if link is None:
            self._start_nginx(self.client, f"127.0.0.{number}", folder, here)
            return Server(f"http://127.0.0.{number}", here / "access.log", "lo", self.client, None)
        namespace, device = f"{PREFIX}{os.getpid()}-s{number}", f"wire{number}"
        self._add_namespace(namespace)
        relay = self._start_relay(namespace, device, link)
        for name, end in ((self.client, 1), (namespace, 2)):
            _out("ip", "-n", name, "addr", "add", f"10.77.{number}.{end}/24", "dev", device)
            # A short queue of the device would drop packets that the modelled link has room for.
            _out("ip", "-n", name, "link", "set", device, "mtu", "1500", "txqueuelen", "20000", "up")
        self._start_nginx(namespace, f"10.77.{number}.2", folder, here)
        return Server(f"http://10.77.{number}.2", here / "access.log", device, self.client, relay)

    def run(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        limit_s: float = 300,
    ) -> Measured:
        """Run a command beside the servers and measure it; past `limit_s` it is killed."""
        with self.start(argv, environ=environ, cwd=cwd, limit_s=limit_s) as command:
            return command.wait()

    @contextlib.contextmanager
    def start(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        limit_s: float = 300,
    ) -> Iterator[Command]:
        """Start a command beside the servers; it ends with the block, or when `limit_s` are over, at the latest."""
        output = self.scratch / "output"
        with output.open("wb") as sink:
            started = time.perf_counter()
            process = subprocess.Popen(
                [*_inside(self.client), *argv],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=None if environ is None else dict(environ),
                cwd=cwd,
                start_new_session=True,
            )
        command = Command(process, started, output)
        timer = threading.Timer(limit_s, command.kill)
        timer.daemon = True
        timer.start()
        try:
            yield command
        finally:
            timer.cancel()
            command.kill()
            command.wait()

    def _add_namespace(self, name: str) -> None:
        _out("ip", "netns", "add", name)
        self._namespaces.append(name)
        _out("ip", "-n", name, "link", "set", "lo", "up")
        settings = {
            # What one transfer learnt about the path must not help the next one.
            "ipv4/tcp_no_metrics_save": "1",
            "ipv4/tcp_congestion_control": self.congestion,
            # Nothing is on a link but what a measured program sends.
            "ipv6/conf/all/disable_ipv6": "1",
            "ipv6/conf/default/disable_ipv6": "1",
        }
        for key, value in settings.items():
            if not key.startswith("ipv6") or Path("/proc/sys/net/ipv6").exists():
                _out(*_inside(name), "tee", f"/proc/sys/net/{key}", given=value)

    def _start_relay(self, namespace: str, device: str, link: Link) -> subprocess.Popen[str]:
        queue_ms = link.queue_ms or link.rtt_ms
        shape = [link.rtt_ms / 2, link.rate_mbit, queue_ms, link.loss]
        relay = subprocess.Popen(
            [*_mortal(), str(self.relay), self.client, device, namespace, device, *map(repr, shape), str(link.seed)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._processes.append(relay)
        assert relay.stdout is not None
        if relay.stdout.readline() != "ready\n":
            raise RigError("the relay did not start; its reason stands above")
        return relay

    def _start_nginx(self, namespace: str, address: str, folder: Path, here: Path) -> None:
        config = here / "nginx.conf"
        config.write_text(NGINX.format(here=here, root=folder, address=address))
        server = subprocess.Popen(
            [*_mortal(), *_inside(namespace), "nginx", "-p", str(here), "-c", str(config), "-g", "user root;"],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._processes.append(server)
        deadline = time.monotonic() + 10
        while not (here / "nginx.pid").exists() or not _listens(namespace, address):
            if server.poll() is not None or time.monotonic() > deadline:
                log = here / "error.log"
                raise RigError(f"nginx did not start: {log.read_text() if log.exists() else 'it wrote no log'}")
            time.sleep(0.02)

    def _close(self) -> None:
        for process in reversed(self._processes):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=8)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for name in self._namespaces:
            _remove_namespace(name)
        self._processes, self._namespaces = [], []
        signal.signal(signal.SIGTERM, self._old_terminate)


def missing() -> str:
    """Say in one sentence why the rig cannot work here; empty when it can."""
    if os.geteuid() != 0:
        return "the rig makes network namespaces and needs root"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"the rig needs the programs {', '.join(absent)}"
    return "" if os.access("/dev/net/tun", os.R_OK | os.W_OK) else "the rig needs /dev/net/tun"


def remove_leftovers() -> None:
    """Remove the namespaces of rigs whose process is gone, with whatever still runs in them."""
    for entry in json.loads(_out("ip", "-j", "netns", "list") or "[]"):
        name = str(entry["name"])
        owner = name.removeprefix(PREFIX).split("-")[0]
        if name.startswith(PREFIX) and owner.isdigit() and not Path("/proc", owner).exists():
            _remove_namespace(name)


def _remove_namespace(name: str) -> None:
    for pid in _out("ip", "netns", "pids", name).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _out("ip", "netns", "del", name)


def _build_relay(folder: Path) -> Path:
    program = folder / "relay"
    _out("gcc", "-O2", "-std=c17", "-Wall", "-Wextra", "-pthread", "-o", str(program), str(RELAY_SOURCE))
    return program


def _inside(namespace: str) -> list[str]:
    """What stands before a command that runs in a namespace; it replaces itself by the command."""
    return ["nsenter", f"--net=/run/netns/{namespace}", "--"]


def _mortal() -> list[str]:
    """What stands before a command that must not outlive this process, however it ends."""
    return ["setpriv", "--pdeathsig", "TERM", "--"]


def _listens(namespace: str, address: str) -> bool:
    table = _out(*_inside(namespace), "cat", "/proc/net/tcp")
    end = "".join(f"{int(part):02X}" for part in reversed(address.split("."))) + ":0050"
    return any(line.split()[1] == end and line.split()[3] == "0A" for line in table.splitlines()[1:])


def _out(*argv: str, given: str | None = None) -> str:
    done = subprocess.run(argv, input=given, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RigError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def _interrupt(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
