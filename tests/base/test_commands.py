from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases import for_each
from processes import is_running

from fairmile.base.commands import Here, Result, Runner, Ssh
from fairmile.base.errors import SystemFailure, Transient, UsageError
from fairmile.base.signals import AskedToEnd


@pytest.fixture(params=["here", "ssh"])
def runner(request: pytest.FixtureRequest) -> Runner:
    if request.param == "here":
        return Here()
    server = request.getfixturevalue("sshd")
    return Ssh(server.host, config=server.config)


def sh(script: str, *words: str) -> list[str]:
    return ["sh", "-c", script, "_", *words]


def until(met: Callable[[], bool]) -> bool:
    """Wait for what must come; how long it takes does not matter."""
    deadline = time.monotonic() + 60
    while not met() and time.monotonic() < deadline:
        time.sleep(0.05)
    return met()


def enough_to_start(runner: Runner) -> float:
    return 5 if isinstance(runner, Ssh) else 2


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_the_result_says_how_it_ended_and_what_was_printed(runner: Runner) -> None:
    result = runner.run(sh("echo out; echo err >&2"))
    assert (result.argv, result.exit_code) == (tuple(sh("echo out; echo err >&2")), 0)
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert result.duration_s > 0


AWKWARD = ["", " ", "a b", "$HOME", "'", '"', "`id`", "$(id)", "a\nb", "*", "\\", "é", ";", "-n", "!!", "~", "a=b", "#"]


def test_words_arrive_as_they_were_given(runner: Runner) -> None:
    result = runner.run(["python3" if shutil.which("python3") else sys.executable, "-c",
                         "import sys; print(ascii(sys.argv[1:]))", *AWKWARD])  # fmt: skip
    assert result.stdout == f"{AWKWARD!a}\n"


def test_folder_and_variables_are_passed(runner: Runner, tmp_path: Path) -> None:
    folder = tmp_path / "it's a $folder"
    folder.mkdir()
    result = runner.run(sh('pwd; echo "$FM_A|$FM_B"'), cwd=folder, env={"FM_A": "x y", "FM_B": "$HOME'"})
    assert result.stdout == f"{folder}\nx y|$HOME'\n"


def test_the_given_variables_come_on_top_of_those_that_are_there(runner: Runner) -> None:
    assert runner.run(sh('echo "${HOME:+there} ${PATH:+there} $FM_A"'), env={"FM_A": "x"}).stdout == "there there x\n"


@pytest.mark.parametrize("data", ["line\n", b"\x00\xff" * 200_000, ""])
def test_input_is_fed_completely(runner: Runner, data: str | bytes) -> None:
    size = len(data.encode() if isinstance(data, str) else data)
    assert runner.run(["wc", "-c"], input=data).stdout.strip() == str(size)


def test_what_a_c_library_put_into_the_environment_of_this_process_stays_here() -> None:
    libc = ctypes.CDLL(None)
    libc.setenv(b"SET_BY_MPI", b"1", 1)
    try:
        assert Here().run(sh("echo ${SET_BY_MPI:-unset}")).stdout == "unset\n"
    finally:
        libc.unsetenv(b"SET_BY_MPI")


def test_without_input_a_program_reads_the_end_at_once(runner: Runner) -> None:
    assert runner.run(["cat"]).stdout == ""


def test_a_program_may_ignore_its_input(runner: Runner) -> None:
    assert runner.run(["true"], input=b"x" * 1_000_000).exit_code == 0


def test_much_output_on_both_streams_does_not_block(runner: Runner) -> None:
    result = runner.run(sh("head -c 3000000 /dev/zero | tr '\\0' o; head -c 3000000 /dev/zero | tr '\\0' e >&2"))
    assert (len(result.stdout), len(result.stderr)) == (3_000_000, 3_000_000)


def test_bytes_that_are_no_utf8_are_replaced(runner: Runner) -> None:
    assert runner.run(["printf", "a\\377b"]).stdout == "a\ufffdb"


def test_an_exit_code_other_than_zero_raises_with_the_last_lines_of_stderr(runner: Runner) -> None:
    with pytest.raises(SystemFailure) as caught:
        runner.run(sh('i=0; while [ $i -lt 30 ]; do echo "line $i" >&2; i=$((i+1)); done; exit 3'))
    message = str(caught.value)
    assert "ended with exit code 3" in message
    assert "line 29" in message
    assert "line 10\n" in message
    assert "line 9\n" not in message


@pytest.mark.parametrize("code", [1, 126, 127, 255])
def test_without_check_any_exit_code_is_returned(runner: Runner, code: int) -> None:
    result = runner.run(sh(f"printf partial >&2; exit {code}"), check=False)
    assert (result.exit_code, result.stderr) == (code, "partial")


@pytest.mark.parametrize("check", [True, False])
def test_a_missing_program_is_named(runner: Runner, check: bool) -> None:
    with pytest.raises(SystemFailure, match="no program 'no-such-program-x' on"):
        runner.run(["no-such-program-x", "arg"], check=check)


@pytest.mark.parametrize("check", [True, False])
def test_a_missing_folder_is_named(runner: Runner, check: bool, tmp_path: Path) -> None:
    with pytest.raises(SystemFailure, match=r"no-such-folder.*no such folder"):
        runner.run(["true"], cwd=tmp_path / "no-such-folder", check=check)


def test_a_shell_word_is_no_program(runner: Runner) -> None:
    with pytest.raises(SystemFailure):
        runner.run(["exit", "0"])


def test_lines_of_both_streams_arrive_while_the_program_runs(runner: Runner, tmp_path: Path) -> None:
    flag = tmp_path / "seen"
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        flag.touch()

    # The program goes on only after its first line was seen, so a late delivery would end in the timeout.
    script = 'echo first; while [ ! -e "$1" ]; do sleep 0.05; done; echo second >&2; printf last'
    runner.run(sh(script, str(flag)), on_line=on_line, timeout_s=60)
    assert lines[0] == "first"
    assert sorted(lines[1:]) == ["last", "second"]


@pytest.mark.thorough
def test_a_timeout_ends_the_whole_process_group(runner: Runner, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = 'sleep 1000 & echo $! >> "$1"; echo $$ >> "$1"; echo waiting >&2; wait'
    with pytest.raises(SystemFailure, match=rf"did not finish within {enough_to_start(runner):g} s.*waiting"):
        runner.run(sh(script, str(pids)), timeout_s=enough_to_start(runner))
    numbers = [int(word) for word in pids.read_text().split()]
    assert len(numbers) == 2
    assert until(lambda: not any(lives(pid) for pid in numbers))


@pytest.mark.thorough
def test_a_program_that_ignores_term_is_killed(runner: Runner, tmp_path: Path) -> None:
    assert isinstance(runner, (Here, Ssh))
    runner.grace_s = 0.2
    script = 'trap "" TERM; echo $$ > "$1"; while :; do sleep 0.1; done'
    with pytest.raises(SystemFailure, match="did not finish"):
        runner.run(sh(script, str(tmp_path / "pid")), timeout_s=enough_to_start(runner))
    assert until(lambda: not lives(int((tmp_path / "pid").read_text())))


@pytest.mark.thorough
def test_an_error_while_a_line_is_handled_ends_the_program(runner: Runner) -> None:
    pids: list[int] = []

    def on_line(line: str) -> None:
        pids.append(int(line))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        runner.run(sh("echo $$; sleep 1000"), on_line=on_line)
    assert until(lambda: not lives(pids[0]))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whatever_ends_this_process_ends_the_program(runner: Runner, number: signal.Signals) -> None:
    lines: list[str] = []
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        if until(lambda: bool(lines)):
            signal.pthread_kill(main, number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises((KeyboardInterrupt, AskedToEnd)) as ended:
        runner.run(sh("echo $$; sleep 1000 & echo $!; wait"), timeout_s=120, on_line=lines.append)
    thread.join()
    asked = ended.value
    assert isinstance(asked, AskedToEnd) == (number is not signal.SIGINT)
    assert not isinstance(asked, AskedToEnd) or asked.code == 128 + number
    assert until(lambda: not any(lives(int(line)) for line in lines))


def test_a_daemon_that_keeps_the_output_open_does_not_hold_up_the_result(tmp_path: Path) -> None:
    # Only here: over ssh, sshd itself waits for the end of output.
    result = Here().run(sh('sleep 1000 & echo $! > "$1"; echo done', str(tmp_path / "pid")), timeout_s=60)
    pid = int((tmp_path / "pid").read_text())
    try:
        assert result.stdout == "done\n"
        assert lives(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("argv", "env"),
    [
        ([], None),
        ([""], None),
        (["-x"], None),
        (["true", "a\0b"], None),
        (["true", "\ud800"], None),
        (["true"], {"A B": "x"}),
        (["true"], {"A": "\0"}),
        (["true"], {"": "x"}),
        (["true"], {"A=B": "x"}),
    ],
)
def test_what_no_program_can_be_given_is_refused(runner: Runner, argv: list[str], env: dict[str, str] | None) -> None:
    with pytest.raises(UsageError):
        runner.run(argv, env=env)


def test_captured_output_is_bounded_and_says_what_is_left_out() -> None:
    result = Here(capture_bytes=1000).run(sh("head -c 500000 /dev/zero | tr '\\0' o; echo end"))
    note, kept = result.stdout.split("\n", 1)
    assert note == f"[the first {500_004 - 1000} bytes are left out]"
    assert len(kept) == 1000
    assert kept.endswith("oend\n")


def test_a_program_ended_by_a_signal_says_so() -> None:
    assert Here().run(sh("kill -9 $$"), check=False).exit_code == -9
    with pytest.raises(SystemFailure, match="was ended by SIGKILL"):
        Here().run(sh("kill -9 $$"))


def test_a_file_that_cannot_be_executed_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(SystemFailure, match=r"cannot run '.*/f': Permission denied"):
        Here().run([str(tmp_path / "f")])


@for_each("host", ["", "-oProxyCommand=touch /tmp/x", "a b", "a\nb"])
def test_a_host_that_ssh_would_misread_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="not a host name"):
        Ssh(host)


def test_a_program_name_that_would_set_a_variable_over_there_is_refused() -> None:
    with pytest.raises(UsageError, match="would set a variable"):
        Ssh("there").run(["A=b", "true"])


def test_ssh_never_asks_and_gives_up_on_a_silent_host() -> None:
    argv = Ssh("there", options=["-p", "2222"], config=Path("/x/config")).argv("true")
    assert argv[0] == "ssh"
    assert "BatchMode=yes" in argv
    assert any(word.startswith("ConnectTimeout=") for word in argv)
    assert argv[argv.index("-F") + 1] == "/x/config"
    assert argv[argv.index("-p") + 1] == "2222"
    assert argv[-3:] == ["--", "there", "true"]


def test_a_host_that_does_not_answer_is_worth_a_retry(sshd: Any) -> None:
    with pytest.raises(Transient, match="the connection to there failed"):
        Ssh("there", config=sshd.config, options=["-p", "1"]).run(["true"], check=False)


def test_a_host_that_hangs_is_worth_a_retry(sshd: Any) -> None:
    sshd.freeze()
    try:
        with pytest.raises(Transient, match="there stopped responding: 'true' on there did not finish"):
            Ssh("there", config=sshd.config).run(["true"], timeout_s=0.5)
    finally:
        sshd.thaw()


def test_a_refused_key_is_named_with_the_host(sshd: Any, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    stranger = tmp_path / "config"
    stranger.write_text(sshd.config.read_text().replace("user_key", "no_such_key"))
    with pytest.raises(Transient, match=r"(?s)there failed: .*Permission denied"):
        Ssh("there", config=stranger, options=["-i", str(tmp_path / "other")]).run(["true"])


def test_a_connection_that_breaks_is_worth_a_retry_and_leaves_nothing_running(sshd: Any, tmp_path: Path) -> None:
    ssh = Ssh("there", config=sshd.config)
    seen = tmp_path / "seen"
    # The parent of our shell's parent over there is the server's process for this connection. It must not die
    # before the first line came through: until then nobody here can know what to end over there.
    script = """
        echo $$ > "$1"; echo ready; while [ ! -e "$2" ]; do sleep 0.05; done
        set -- $(cat /proc/$PPID/stat); kill -9 $4; sleep 1000
    """
    with pytest.raises(Transient, match="the connection to there failed"):
        ssh.run(sh(script, str(tmp_path / "pid"), str(seen)), timeout_s=60, on_line=lambda _: seen.touch())
    assert until(lambda: not lives(int((tmp_path / "pid").read_text())))


def test_our_own_notes_do_not_show_in_the_output(sshd: Any) -> None:
    lines: list[str] = []
    result = Ssh("there", config=sshd.config).run(sh("printf fair >&2"), on_line=lines.append)
    assert (result.stderr, lines) == ("fair", ["fair"])
    assert isinstance(result, Result)


def test_a_program_that_is_left_has_a_session_of_its_own_and_no_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRMILE_KEPT", "kept")
    monkeypatch.setenv("FAIRMILE_GONE", "gone")
    script = 'echo "$$ $(ps -o sid= -p $$) ${FAIRMILE_KEPT-} ${FAIRMILE_GONE-}" > a; cat >> a; echo lost; mv a said'
    left = Here().start(["sh", "-c", script], cwd=tmp_path, without=["FAIRMILE_GONE"])
    assert until((tmp_path / "said").exists)
    assert (tmp_path / "said").read_text().split() == [str(left.pid), str(left.pid), "kept"]


def test_a_program_that_is_left_is_told_from_a_later_one_of_its_number_and_buried() -> None:
    left = Here().start(["sleep", "0.5"])
    assert Path(f"/proc/{left.pid}/stat").read_text().rpartition(")")[2].split()[19] == str(left.began)
    assert left.host == os.uname().nodename
    assert until(lambda: not Path(f"/proc/{left.pid}").exists())


def test_what_cannot_be_started_and_left_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemFailure, match="no-such-program"):
        Here().start(["no-such-program"])
    with pytest.raises(SystemFailure, match="no such folder"):
        Here().start(["true"], cwd=tmp_path / "missing")


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP"])
def test_an_interruption_while_a_program_starts_leaves_none_behind(tmp_path: Path, name: str) -> None:
    script = """if True:
        import sys
        from fairmile.base.commands import Here
        try:
            Here().run(["sh", "-c", f"echo $$ > {sys.argv[1]}; kill -{sys.argv[2]} $PPID; exec sleep 77"])
        except (KeyboardInterrupt, SystemExit):
            print("interrupted")
    """
    for attempt in range(4):  # the moment differs
        noted = tmp_path / str(attempt)
        argv = [sys.executable, "-c", script, str(noted), name]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert done.stdout == "interrupted\n"
        if noted.exists() and noted.read_text():
            assert not is_running(int(noted.read_text()))
