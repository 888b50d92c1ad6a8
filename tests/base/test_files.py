from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base.errors import DiskFailure, InvalidDocument, NotFound, SystemFailure, Transient, UsageError
from fairmile.base.files import Lock, read_text, safe_join, write_atomic, written_aside


def python(script: str, *words: str) -> subprocess.Popen[str]:
    """Start a Python process that runs `script` with the package importable."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip


def finish(workers: list[subprocess.Popen[str]]) -> None:
    for worker in workers:
        worker.communicate()
    assert [worker.returncode for worker in workers] == [0] * len(workers)


def test_a_write_creates_parents_and_leaves_nothing_but_the_file(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a" / "b" / "f", "é\n")
    assert (tmp_path / "a" / "b" / "f").read_bytes() == "é\n".encode()
    assert os.listdir(tmp_path / "a" / "b") == ["f"]


def test_a_write_replaces_the_old_file_and_keeps_its_permissions(tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_text("old")
    target.chmod(0o640)
    write_atomic(target, b"new")
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@pytest.mark.parametrize(("mask", "mode"), [(0o002, 0o664), (0o027, 0o640)])
def test_a_new_file_follows_the_umask(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        write_atomic(tmp_path / "f", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == mode


def test_a_given_mode_is_set_exactly(tmp_path: Path) -> None:
    write_atomic(tmp_path / "f", b"x", mode=0o600)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o600


def test_a_link_is_replaced_and_what_it_led_to_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "f").symlink_to("victim")
    write_atomic(tmp_path / "f", b"x")
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "f").is_symlink()


def no_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    # No file system without hard links can be mounted by an ordinary test run.
    def link(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)


@pytest.mark.parametrize("with_links", [True, False])
def test_an_exclusive_write_leaves_an_existing_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_links: bool
) -> None:
    if not with_links:
        no_hard_links(monkeypatch)
    write_atomic(tmp_path / "f", b"first", exclusive=True)
    with pytest.raises(FileExistsError):
        write_atomic(tmp_path / "f", b"second", exclusive=True)
    assert (tmp_path / "f").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["f"]


def test_of_many_exclusive_writers_exactly_one_wins(tmp_path: Path) -> None:
    winners: list[int] = []
    gate = threading.Barrier(8)

    def compete(number: int) -> None:
        gate.wait()
        try:
            write_atomic(tmp_path / "f", str(number), exclusive=True)
            winners.append(number)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=compete, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(tmp_path / "f").read_text()] == [str(number) for number in winners]


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    target = tmp_path / "f"
    write_atomic(target, b"a" * 200_000)

    def write_many() -> None:
        for letter in b"bcdefgh" * 5:
            write_atomic(target, bytes([letter]) * 200_000)

    writer = threading.Thread(target=write_many)
    writer.start()
    while writer.is_alive():
        data = target.read_bytes()
        assert len(data) == 200_000
        assert len(set(data)) == 1
    writer.join()


def test_a_file_in_place_of_a_folder_is_a_clear_failure(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    for path in (tmp_path / "f" / "g", tmp_path / "f" / "g" / "h"):
        with pytest.raises(SystemFailure, match="cannot write") as caught:
            write_atomic(path, b"x")
        assert "folder" in (caught.value.hint or "")


def test_a_folder_in_place_of_the_file_is_a_clear_failure(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(SystemFailure, match="cannot write"):
        write_atomic(tmp_path / "d", b"x")
    assert os.listdir(tmp_path) == ["d"]


def test_text_that_utf8_cannot_express_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="surrogate"):
        write_atomic(tmp_path / "f", "\ud800")
    assert os.listdir(tmp_path) == []


FAILING_WRITE = """
import os, sys
from fairmile.base.errors import SystemFailure
from fairmile.base.files import write_atomic
try:
    write_atomic(sys.argv[1] + "/f", b"new" * 100_000)
except SystemFailure as error:
    print(error.hint, "|", sorted(os.listdir(sys.argv[1])))
"""


@pytest.mark.parametrize(
    ("options", "hint"), [("size=16k", "the disk is full"), ("ro", "the file system is read-only")]
)
def test_a_full_or_read_only_disk_is_a_failure_with_a_hint_that_leaves_nothing_behind(
    tmp_path: Path, options: str, hint: str
) -> None:
    mount = f"mount -t tmpfs -o {options} none {tmp_path}"
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "sh", "-c", mount], check=False).returncode:
        pytest.skip("needs user namespaces to mount a small file system")
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f'{mount} && "$@"', "_", sys.executable, "-c", FAILING_WRITE, str(tmp_path)],
        capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.stdout.startswith(hint)
    assert done.stdout.rstrip().endswith("| []")


def test_a_file_written_aside_takes_its_place_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file"
    with written_aside(target) as aside:
        aside.write_bytes(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new" and os.listdir(target.parent) == ["file"]


def test_a_write_aside_that_fails_keeps_the_old_file_and_the_first_error(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with pytest.raises(Transient, match="broke"), written_aside(target) as aside:
        aside.write_bytes(b"half")
        raise Transient("the connection broke")  # is an OSError, too, but not one of the disk
    with pytest.raises(DiskFailure, match="No space"), written_aside(target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert target.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_text_of_a_user_is_read_with_the_reason_where_it_cannot_be(tmp_path: Path) -> None:
    file = tmp_path / "tides.yaml"
    file.write_bytes("\ufeffhigh: é\n".encode())
    assert read_text(file) == "high: é\n"
    file.write_bytes(b"high: 1\nlow: \xff\n")
    with pytest.raises(InvalidDocument, match=r"tides\.yaml:2: is not UTF-8 text"):
        read_text(file)
    with pytest.raises(NotFound, match="no such file: nowhere"):
        read_text(Path("nowhere"))
    with pytest.raises(SystemFailure, match=f"cannot read {tmp_path}: Is a directory"):
        read_text(tmp_path)


@pytest.mark.parametrize("relative", ["a", "a/b.txt", "./a", ".", "a//b", "a/..b", "~root"])
def test_a_path_that_stays_inside_is_joined(tmp_path: Path, relative: str) -> None:
    assert safe_join(tmp_path, relative) == tmp_path / relative


@pytest.mark.parametrize(
    "relative", ["", "..", "../x", "a/../../x", "a/..", "/etc/passwd", "//x", "a\\..\\b", "a\0b", "\ud800"]
)
def test_a_path_that_may_leave_is_refused(tmp_path: Path, relative: str) -> None:
    with pytest.raises(UsageError):
        safe_join(tmp_path, relative)


def test_a_link_that_leads_out_is_refused_and_one_that_stays_inside_is_not(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    (tmp_path / "root-beside").mkdir()
    (root / "out").symlink_to("..")
    (root / "beside").symlink_to("../root-beside")
    (root / "in").symlink_to("d")
    (root / "loop").symlink_to("loop")
    for name in ("out/x", "beside/x", "out"):
        with pytest.raises(UsageError, match="symbolic link"):
            safe_join(root, name)
    assert safe_join(root, "in/x") == root / "in" / "x"
    assert safe_join(root, "loop") == root / "loop"


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to("real")
    assert safe_join(tmp_path / "root", "x") == tmp_path / "root" / "x"


@given(st.text(st.sampled_from("ab./\\\0~"), max_size=12))
def test_whatever_is_joined_stays_inside(relative: str) -> None:
    root = Path("/nowhere/root")
    try:
        joined = safe_join(root, relative)
    except UsageError:
        return
    assert os.path.normpath(joined) == str(root) or os.path.normpath(joined).startswith(f"{root}/")


def test_a_lock_is_gone_after_use_with_all_its_traces(tmp_path: Path) -> None:
    with Lock(tmp_path / "new" / "l") as lock:
        assert os.listdir(tmp_path / "new") == ["l"]
        assert not lock.lost
    assert os.listdir(tmp_path / "new") == []


def test_a_lock_can_be_used_again_but_not_twice_at_once(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "l")
    for _ in range(2):
        with lock, pytest.raises(RuntimeError, match="already locked"):
            lock.__enter__()


def test_who_waits_in_vain_learns_who_holds_the_lock(tmp_path: Path) -> None:
    with (
        Lock(tmp_path / "l"),
        pytest.raises(SystemFailure, match=f"process {os.getpid()} on {os.uname().nodename}") as caught,
        Lock(tmp_path / "l", timeout_s=0),
    ):
        pass
    assert str(tmp_path / "l") in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_lock_in_a_place_that_cannot_be_written_is_a_clear_failure(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(SystemFailure, match="cannot write"), Lock(tmp_path / "f" / "l"):
        pass


COUNT = """
import sys
from fairmile.base.files import Lock
for _ in range(25):
    with Lock(sys.argv[1] + ".lock", timeout_s=120):
        try:
            number = int(open(sys.argv[1]).read())
        except FileNotFoundError:
            number = 0
        open(sys.argv[1], "w").write(str(number + 1))
"""


def test_processes_take_turns(tmp_path: Path) -> None:
    workers = [python(COUNT, str(tmp_path / "n")) for _ in range(4)]
    finish(workers)
    assert (tmp_path / "n").read_text() == "100"
    assert os.listdir(tmp_path) == ["n"]


def foreign_lock(path: Path, age_s: float, token: str = "0123456789abcdef") -> None:
    path.write_text(f"host=elsewhere\npid=77\ntoken={token}\nplace=other-kernel/1\nstarted=5\n")
    os.utime(path, (time.time() - age_s,) * 2)


HOLD = """
import sys
from fairmile.base.files import Lock
with Lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_lock_of_a_killed_process_of_this_host_is_taken_over_at_once(tmp_path: Path) -> None:
    if not os.path.exists("/proc/self/stat"):
        pytest.skip("needs /proc to tell a dead process from a living one")
    holder = python(HOLD, str(tmp_path / "l"))
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(SystemFailure, match=f"process {holder.pid} "), Lock(tmp_path / "l", timeout_s=0):
        pass
    holder.kill()
    with Lock(tmp_path / "l", timeout_s=0.5):  # before the holder is reaped: a zombie holds nothing
        pass
    holder.communicate()
    assert os.listdir(tmp_path) == []


def test_a_lock_of_another_host_is_respected_while_it_is_renewed(tmp_path: Path) -> None:
    foreign_lock(tmp_path / "l", age_s=10)
    with pytest.raises(SystemFailure, match="process 77 on elsewhere"), Lock(tmp_path / "l", timeout_s=0.1):
        pass
    assert "elsewhere" in (tmp_path / "l").read_text()


def test_a_lock_of_another_host_is_taken_over_when_its_lease_ran_out(tmp_path: Path) -> None:
    foreign_lock(tmp_path / "l", age_s=100)
    with Lock(tmp_path / "l", timeout_s=0.1):
        assert "elsewhere" not in (tmp_path / "l").read_text()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("shift_s", [-1e6, 1e6])
def test_the_clock_of_this_machine_does_not_decide_over_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift_s: float
) -> None:
    foreign_lock(tmp_path / "fresh", age_s=10)
    foreign_lock(tmp_path / "stale", age_s=100)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + shift_s)
    with pytest.raises(SystemFailure, match="elsewhere"), Lock(tmp_path / "fresh", timeout_s=0):
        pass
    with Lock(tmp_path / "stale", timeout_s=0):
        pass


def test_a_held_lock_is_renewed(tmp_path: Path) -> None:
    with Lock(tmp_path / "l", lease_s=0.2):
        os.utime(tmp_path / "l", (0, 0))
        deadline = time.monotonic() + 30
        while (tmp_path / "l").stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert (tmp_path / "l").stat().st_mtime > 0


def test_a_lock_file_that_makes_no_sense_is_respected_for_a_lease(tmp_path: Path) -> None:
    (tmp_path / "l").write_text("token=../../etc\npid=x")
    with pytest.raises(SystemFailure, match="locked by another process"), Lock(tmp_path / "l", timeout_s=0):
        pass
    os.utime(tmp_path / "l", (0, 0))
    with Lock(tmp_path / "l", timeout_s=0):
        pass
    assert os.listdir(tmp_path) == []


def test_who_lost_the_lock_is_told_and_leaves_the_new_holder_alone(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "l")
    with pytest.raises(SystemFailure, match="was taken over"), lock:
        (tmp_path / "l").unlink()
        foreign_lock(tmp_path / "l", age_s=0)
    assert lock.lost
    assert "elsewhere" in (tmp_path / "l").read_text()


def test_the_error_inside_a_lost_lock_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Lock(tmp_path / "l"):
        (tmp_path / "l").unlink()
        raise ZeroDivisionError


def test_a_lock_whose_claimant_lives_is_left_to_it(tmp_path: Path) -> None:
    foreign_lock(tmp_path / "l", age_s=100, token="feed")
    foreign_lock(tmp_path / "l.claim-feed.0", age_s=0)
    with pytest.raises(SystemFailure, match="elsewhere"), Lock(tmp_path / "l", timeout_s=0.1):
        pass
    assert sorted(os.listdir(tmp_path)) == ["l", "l.claim-feed.0"]


def test_the_claim_of_a_dead_process_does_not_block_the_lock_for_ever(tmp_path: Path) -> None:
    foreign_lock(tmp_path / "l", age_s=100, token="feed")
    foreign_lock(tmp_path / "l.claim-feed.0", age_s=90)
    with Lock(tmp_path / "l", timeout_s=0.1):
        pass
    assert os.listdir(tmp_path) == []


def test_what_killed_waiters_left_is_swept_when_a_lock_is_taken_over(tmp_path: Path) -> None:
    foreign_lock(tmp_path / "l", age_s=100)
    foreign_lock(tmp_path / "l.00000000000000aa", age_s=1_000_000)
    foreign_lock(tmp_path / "l.00000000000000bb", age_s=100)
    (tmp_path / "l.txt").write_text("not ours")
    with Lock(tmp_path / "l", timeout_s=0.1):
        pass
    assert sorted(os.listdir(tmp_path)) == ["l.00000000000000bb", "l.txt"]


STEAL = """
import os, sys, time
from fairmile.base.files import Lock
sys.stdin.readline()
with Lock(sys.argv[1], timeout_s=120):
    os.close(os.open(sys.argv[1] + "-inside", os.O_CREAT | os.O_EXCL))
    time.sleep(0.01)
    os.unlink(sys.argv[1] + "-inside")
"""


@pytest.mark.thorough
def test_of_many_that_take_over_a_stale_lock_only_one_at_a_time_gets_in(tmp_path: Path) -> None:
    for round_number in range(3):
        path = tmp_path / str(round_number) / "l"
        path.parent.mkdir()
        foreign_lock(path, age_s=1000)
        workers = [python(STEAL, str(path)) for _ in range(6)]
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        finish(workers)
        assert os.listdir(path.parent) == []


FORK = """
import os, sys
from fairmile.base.files import Lock
with Lock(sys.argv[1]):
    child = os.fork()
    if not child:
        sys.exit(0)
    os.waitpid(child, 0)
    print(os.path.exists(sys.argv[1]))
"""


def test_a_forked_child_does_not_release_the_lock_of_its_parent(tmp_path: Path) -> None:
    assert python(FORK, str(tmp_path / "l")).communicate()[0] == "True\n"
    assert os.listdir(tmp_path) == []


def test_a_lock_works_without_hard_links_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_hard_links(monkeypatch)
    with Lock(tmp_path / "l"), pytest.raises(SystemFailure, match="locked by"), Lock(tmp_path / "l", timeout_s=0):
        pass
    assert os.listdir(tmp_path) == []


def test_a_device_or_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomic(pipe, b"2.5")
        assert os.read(reader, 10) == b"2.5"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    write_atomic(os.devnull, b"gone")
    assert Path(os.devnull).is_char_device()
