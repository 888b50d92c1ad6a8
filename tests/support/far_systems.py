"""Systems behind a real ssh server: a plain machine, and one with the Slurm of the tests."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_cluster import SlurmCluster
from slurm_jobs import system_text

FAR = "far"


def plain_system(sshd: Any, folder: Path, name: str = FAR) -> str:
    """Return the line of settings that makes `far` a machine without a scheduler; its jobs lie in `folder`/far."""
    text = f"name: {name}\ntitle: A box\nscheduler: {{dialect: shell}}\npartitions: {{here: {{}}}}\n"
    return _setting(folder, text, sshd.config, name)


def slurm_system(sshd: Any, cluster: SlurmCluster, folder: Path) -> str:
    """Return the line of settings that makes `far` a cluster, whose commands only a login over ssh finds."""
    text = system_text(cluster).replace("name: rig", f"name: {FAR}")
    return _setting(folder, text, _login(sshd, folder, cluster.environ))


def _setting(folder: Path, text: str, config: Path, name: str = FAR) -> str:
    file = folder / f"{name}.yaml"
    file.write_text(text)
    return f"  {name}: {{host: there, ssh_config: {config}, folder: {folder / name}, file: {file}}}\n"


def _login(sshd: Any, folder: Path, environ: Mapping[str, str]) -> Path:
    """Return ssh settings whose key makes each login start with some variables, as a profile would."""
    key, start = folder / "login_key", folder / "login.sh"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in environ.items()]
    start.write_text("".join(lines) + 'exec sh -c "$SSH_ORIGINAL_COMMAND"\n')
    with open(sshd.config.parent / "authorized_keys", "a") as known:
        known.write(f'command="sh {start}" {key.with_suffix(".pub").read_text()}')
    config = folder / "login_config"
    text = sshd.config.read_text().replace(str(sshd.config.parent / "user_key"), str(key))
    port = text.partition("Port ")[2].split()[0]
    # Under another name, since connections are shared by where they lead, not by the key.
    config.write_text(text.replace("HostName 127.0.0.1", "HostName localhost") + f"  HostKeyAlias [127.0.0.1]:{port}\n")
    return config
