"""What an environment changes in a shell: real bash and dash, written-down text for shells that are not here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fairmile.base.errors import NotFound
from fairmile.envs.shells import Act, Assign, ModuleLine, Prepend, Source, Unset, render

ACTS: tuple[Act, ...] = (
    ModuleLine("module load tool/1.0"),
    Assign("LIB", "$ROOT_DIR/lib and ${ROOT_DIR} 'quoted' \"twice\" `id` !x $5 \\"),
    Assign("PLAIN", "$HOME", literal=True),
    Prepend("PATH", Path("/opt/my tools/bin")),
    Prepend("NEW_PATH", Path("/only")),
    Unset("PYTHONPATH"),
    Source(Path("/none/activate.sh")),
)
VALUE = "/r s/lib and /r s 'quoted' \"twice\" `id` !x $5 \\"


def run(program: str, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, "-c", script], env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(("program", "shell"), [("bash", "bash"), ("dash", "sh")])
@pytest.mark.parametrize("settings", ["", "set -eu"])
def test_the_lines_do_what_they_say(program: str, shell: str, settings: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs the program {program}")
    script = "\n".join(
        [
            settings,
            *render([act for act in ACTS if not isinstance(act, ModuleLine)], shell),
            'printf "%s\\n" "$LIB" "$PLAIN" "$PATH" "$NEW_PATH" "${PYTHONPATH-unset}" "$-"',
        ]
    )
    done = run(program, script, ROOT_DIR="/r s", PYTHONPATH="/leak")
    assert done.stderr == ""
    lib, plain, path, new, python, flags = done.stdout.splitlines()
    assert (lib, plain, new, python) == (VALUE, "$HOME", "/only", "unset")
    assert path == "/opt/my tools/bin:/usr/bin:/bin"
    assert not settings or {"e", "u"} <= set(flags)


@pytest.mark.parametrize(("program", "shell"), [("bash", "bash"), ("dash", "sh")])
def test_a_reference_to_a_variable_that_is_not_set_is_empty(program: str, shell: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs the program {program}")
    script = "\n".join(["set -eu", *render([Assign("A", "$NOWHERE/lib")], shell), 'echo "$A"'])
    assert run(program, script).stdout == "/lib\n"


def test_a_file_of_a_package_may_read_variables_that_are_not_set(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("export SEEN=yes$NOWHERE\n")
    script = "\n".join(["set -eu", *render([Source(tmp_path / "a.sh")]), 'echo "$SEEN $-"'])
    seen, flags = run("bash", script).stdout.split()
    assert seen == "yes" and "u" in flags


def test_csh_is_told_in_its_own_words() -> None:
    # Held against written-down text: no csh is run here.
    acts = [Unset("A"), Assign("B", "x$C!"), Prepend("PATH", Path("/p q")), Source(Path("/a.sh"))]
    assert render(acts, "tcsh") == (
        "unsetenv A",
        "if ( ! $?C ) setenv C ''",
        "setenv B 'x'\"${C}\"'\\!'",
        "if ( $?PATH ) then",
        "  setenv PATH '/p q'\":${PATH}\"",
        "else",
        "  setenv PATH '/p q'",
        "endif",
    )


def test_fish_is_told_in_its_own_words() -> None:
    # Held against written-down text: no fish is run here.
    acts = [Unset("A"), Assign("B", "it's ${C}"), Prepend("PATH", Path("/p q")), ModuleLine("ml use ${X}/y")]
    lines = render(acts, "fish")
    assert lines[0] == "set -e A"
    assert lines[-2:] == ("set -gx B 'it\\'s '\"$C\"", "set -gx --path PATH '/p q' $PATH")
    assert "ml use {$X}/y; or begin; echo 'fairmile: failed: ml use ${X}/y' >&2; exit 3; end" in lines


def test_zsh_gets_the_init_file_of_zsh() -> None:
    assert any("/usr/share/lmod/lmod/init/zsh" in line for line in render([ModuleLine("ml a")], "zsh"))


def test_an_unknown_shell_is_told_the_nearest() -> None:
    with pytest.raises(NotFound, match="did you mean 'bash'"):
        render([], "bsh")
