"""Completion in real shells, and what it offers."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import UsageError
from fairmile.cli.complete import answer
from fairmile.cli.search import search
from fairmile.completion import SHELLS, install, uninstall
from fairmile.workspace import Workspace

SEARCH = search.get_short_help_str(80)
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One table of commands for all tests here."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def user(place: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a user who has installed Fairmile."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    home = place.parent / "user"
    home.mkdir(exist_ok=True)
    return home


def offered(line: str) -> list[str]:
    """The words that bash would offer; files are `\\tfile`."""
    return answer(["bash", line])


class TestWhatIsOffered:
    @pytest.mark.parametrize(
        ("line", "word"),
        [
            ("fairmile se", "search"),
            ("fairmile sweep pl", "plan"),
            ("fairmile catalog source a", "add"),
            ("fairmile runs ls --st", "--state"),
            ("fairmile runs ls --state fai", "failed"),
            ("fairmile runs ls --state=fai", "failed"),
            ("fairmile run mni", "mnist"),
            ("fairmile show model/cosmof", "model/cosmoflow"),
            ("fairmile run --on jure", "jureca"),
            ("fairmile run mnist -p epo", "epochs="),
            ("fairmile sweep mnist -p learning_r", "learning_rate="),
            ("cd x; ~/bin/fairmile search cosmology --ki", "--kind"),
        ],
    )
    def test_is_the_word_that_fits(self, user: Path, line: str, word: str) -> None:
        assert word in offered(line)

    def test_are_names_of_the_user_s_own(self, user: Path, place: Path) -> None:
        home = place.parent / "home"
        for name in ("runs/tides-abc", "sweeps/storms-abc", "jobs/waves-abc", "envs/0123456789abcdef-torch"):
            (home / name).mkdir(parents=True)
        assert offered("fairmile runs show ti") == ["tides-abc"]
        assert offered("fairmile report sto") == ["storms-abc"]
        assert offered("fairmile job show wa") == ["waves-abc"]
        assert offered("fairmile env show tor") == ["torch", "\tfile"]

    def test_are_systems_and_pools_of_the_settings(self, user: Path) -> None:
        settings = user / ".config" / "fairmile" / "config.yaml"
        settings.parent.mkdir(parents=True)
        settings.write_text("systems:\n  harbour: {host: h}\npools:\n  scratch: /tmp\n")
        assert offered("fairmile run --on harb") == ["harbour"]
        assert offered("fairmile fetch --pool scr") == ["scratch"]

    def test_are_assets_that_the_user_added(self, user: Path) -> None:
        Workspace.open().catalog.add({"@context": "x", "@type": "MLModel", "name": "Harbour net", "version": "1"})
        Workspace.open().catalog.search("harbour")
        assert "harbour-net" in offered("fairmile show harb")

    def test_are_arguments_that_a_script_declares(self, user: Path, place: Path) -> None:
        (place / "train.py").write_text(
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--tide-level', '-t')\np.parse_args()\n"
        )
        assert offered("fairmile run train.py --ti") == ["--tide-level", "\tfile"]

    def test_are_parameters_of_earlier_runs_that_were_done(
        self, user: Path, place: Path, fairmile: Callable[..., Any]
    ) -> None:
        (place / "train.py").write_text("import sys\nsys.exit('--tied' in sys.argv)\n")
        assert fairmile("run", "train.py", "--tide", "3").code == 0
        assert fairmile("run", "train.py", "--tied", "3").code == 1
        assert offered("fairmile run train.py --ti") == ["--tide", "\tfile"]

    def test_are_files_where_files_are_expected(self, user: Path) -> None:
        assert offered("fairmile catalog check ") == ["\tfile"]
        assert offered("fairmile run -- ./tr") == ["\tfile"]

    @pytest.mark.parametrize("line", ["", "fairmile run 'open", "fairmile nonsense x", "fairmile run --nonsense="])
    def test_is_nothing_wrong_for_what_makes_no_sense(self, user: Path, line: str) -> None:
        assert isinstance(offered(line), list)

    def test_comes_with_a_meaning_where_the_shell_shows_one(self, user: Path) -> None:
        assert answer(["fish", "sear"]) == [f"search\t{SEARCH}"]
        assert answer(["zsh", "run", "--on=jure"]) == ["--on=jureca\tsystem"]

    def test_imports_no_command_once_the_table_is_there(self, user: Path) -> None:
        offered("fairmile ")
        script = (
            "import sys; from fairmile.cli.complete import answer; answer(['bash', 'fairmile run --on ju']);"
            "print([n for n in ('click', 'pydantic', 'fairmile.cli.run', 'fairmile.runs.runs') if n in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"

    def test_nothing_is_said_whatever_fails(self, user: Path) -> None:
        broken = {**os.environ, "FAIRMILE_CONFIG": "/nowhere", "XDG_CACHE_HOME": "/dev/null"}
        command = [sys.executable, "-m", "fairmile", "__complete", "bash", "fairmile runs show "]
        done = subprocess.run(command, env=broken, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def typed(shell: list[str], keys: str) -> str:
    """Type keys into an interactive shell and return what it shows."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm", PS1="$ ")
        os.execvp(shell[0], shell)
    shown = b""
    try:
        os.write(terminal, keys.encode())
        while select.select([terminal], [], [], 60)[0]:
            shown += os.read(terminal, 65536)
    except OSError:  # it has ended
        pass
    finally:
        os.close(terminal)
        os.waitpid(child, 0)
    return shown.decode(errors="replace")


class TestInRealShells:
    @pytest.mark.parametrize("shell", ["bash", "zsh"])
    def test_the_tab_key_completes(self, user: Path, shell: str) -> None:
        install(shell)
        install(shell)
        offered("fairmile ")  # the table of commands
        # Completed, then printed: Ctrl-A goes to the start of the line.
        shown = typed([shell, "-i"], "fairmile run --on jure\t--tim\t\x01echo got \rexit\r")
        assert "got fairmile run --on jureca --time" in shown.replace("\r", "\n")

    def test_fish_completes_with_meanings(self, user: Path) -> None:
        install("fish")
        done = subprocess.run(
            ["fish", "-c", 'complete -C "fairmile run --on jure"; complete -C "fairmile sear"'],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.splitlines() == ["jureca\tsystem", f"search\t{SEARCH}"]
        assert done.stderr == ""


class TestInstallation:
    def test_without_a_known_shell_asks_for_one(self, user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("SHELL", raising=False)
        with pytest.raises(UsageError, match="the variable SHELL is not set") as error:
            install("")
        assert error.value.hint == "pass --shell bash, zsh or fish"

    @pytest.mark.parametrize("shell", SHELLS)
    def test_is_undone_without_a_trace(self, user: Path, shell: str) -> None:
        start = user / (".zshrc" if shell == "zsh" else ".bashrc")
        start.write_text("alias ll='ls -l'")
        before = start.read_text()
        assert install(shell, dry_run=True).changed == install(shell).changed
        assert install(shell).changed == ()
        assert uninstall(shell).changed != ()
        assert uninstall(shell).changed == ()
        assert start.read_text().rstrip("\n") == before
        assert not [each for each in user.rglob("fairmile.*") if each.is_file()]

    def test_leaves_a_linked_start_file_a_link(self, user: Path) -> None:
        (user / "dotfiles").mkdir()
        (user / "dotfiles" / "bashrc").write_text("alias a=b\n")
        (user / ".bashrc").symlink_to("dotfiles/bashrc")
        install("bash")
        assert (user / ".bashrc").is_symlink()
        assert "fairmile" in (user / "dotfiles" / "bashrc").read_text()

    def test_takes_the_login_shell(self, user: Path, fairmile: object, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SHELL", "/usr/bin/fish")
        done = fairmile("completion", "install", "--json")  # type: ignore[operator]
        assert done.json["shell"] == "fish"
        monkeypatch.setenv("SHELL", "/bin/tcsh")
        refused = fairmile("completion", "install")  # type: ignore[operator]
        assert refused.code == 2 and "--shell bash, zsh or fish" in refused.err


def test_the_shells_are_there() -> None:
    assert all(shutil.which(shell) for shell in SHELLS)
