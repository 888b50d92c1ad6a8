from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base.commands import Here, Result
from fairmile.base.errors import SystemFailure
from fairmile.store import quota as module
from fairmile.store.quota import Mount, Quota, Quotas, find_mount, mount_of, parse_lfs_quota, parse_quota

KIB = 1024

# Printed by quota 4.06 under Linux 6.1, on ext4 with the feature `quota`.
FRESH = """\
Disk quotas for user alice (uid 1000): 
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
     /dev/loop0    5120   20480   30720       0       1     100     200       0
Disk quotas for group alice (gid 1000): 
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
     /dev/loop0    5120       0       0       0       1       0       0       0
Disk quotas for group climate (gid 5000): 
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
     /dev/loop0       0       0   51200       0       0       0       0       0
"""  # noqa: W291
# The same user beyond both soft limits; the exit code was 1.
OVER = """\
Disk quotas for user alice (uid 1000): 
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
     /dev/loop0   30720*  20480   30720 1795361733     154*    100     200 1795361736
"""  # noqa: W291
LARGE = """\
Disk quotas for user alice (uid 1000): 
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
     /dev/loop0   30720  5000000000 6000000000       0     154       0       0       0
"""  # noqa: W291
# With --show-mntpoint, on a mount point with a blank.
BLANK = """\
Disk quotas for user alice (uid 1000): 
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
/dev/loop1 /mnt/my data       0       0    4096       0       0       0       0       0
"""  # noqa: W291
# On XFS, for the second group.
XFS = """\
Disk quotas for group climate (gid 5000): 
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
     /dev/loop2       0   10240   20480       0       0       0      50       0
"""  # noqa: W291
# Without -v; the user has nothing there yet.
NONE = """\
Disk quotas for group alice (gid 1000): none
Disk quotas for group climate (gid 5000): no limited resources used
"""

# In the form that the Lustre manual and its program's source show: no Lustre was at hand to print them.
LUSTRE = "    /mnt/testfs  204800   30720  307200       -      17   10000   11000       -\n"
LUSTRE_OVER = "    /mnt/testfs  35000*  30720   40920 6d23h59m58s    17   10000   11000       -\n"
LUSTRE_LONG = (
    "/lustre/projects/climate\n                204800   30720  307200       -      17   10000   11000       -\n"
)
LUSTRE_PARTLY = (
    "    /mnt/testfs [204800]   30720  307200       -    [17]*  10000   11000       -\n"
    'Some errors happened when getting quota info. Some devices may be not working or deactivated. The data in "[]"'
    " is inaccurate.\n"
)
LUSTRE_DEFAULT = (
    LUSTRE + "uid 1000 is using default block quota setting\nuid 1000 is using default file quota setting\n"
)


class Says:
    """A runner that answers with texts and remembers what it was asked."""

    def __init__(self, answers: Mapping[str, str], exit_code: int = 0) -> None:
        self.answers = answers
        self.exit_code = exit_code
        self.asked: list[list[str]] = []

    def run(self, argv: Sequence[str], **_: Any) -> Result:
        self.asked.append(list(argv))
        if argv[0] not in self.answers:
            raise SystemFailure(f"no program {argv[0]!r} on this machine")
        return Result(tuple(argv), self.exit_code, self.answers[argv[0]], "", 0.0)


def mine(text: str) -> str:
    return text.replace("(uid 1000)", f"(uid {os.getuid()})").replace("(gid 1000)", f"(gid {os.getegid()})")


def test_the_soft_limit_is_the_limit() -> None:
    assert parse_quota(FRESH)[0] == Quota("user", 1000, 5120 * KIB, 20480 * KIB, 1, 100)


def test_a_group_has_its_own_limit_and_zero_is_none() -> None:
    assert parse_quota(FRESH)[1:] == [
        Quota("group", 1000, 5120 * KIB, None, 1, None),
        Quota("group", 5000, 0, 51200 * KIB, 0, None),
    ]
    assert parse_quota(XFS) == [Quota("group", 5000, 0, 10240 * KIB, 0, 50)]


def test_a_user_over_the_quota_is_understood() -> None:
    assert parse_quota(OVER) == [Quota("user", 1000, 30720 * KIB, 20480 * KIB, 154, 100)]


def test_terabytes_and_blanks_in_names_are_understood() -> None:
    assert parse_quota(LARGE)[0].limit_bytes == 5_000_000_000 * KIB
    assert parse_quota(BLANK) == [Quota("user", 1000, 0, 4096 * KIB, 0, None)]


def test_a_group_without_a_quota_gives_none() -> None:
    assert parse_quota(NONE) == []


@given(st.text())
def test_whatever_a_program_prints_is_no_error(text: str) -> None:
    parse_quota(text)
    parse_quota(FRESH.splitlines()[0] + "\n" + text)
    parse_lfs_quota(text, "user", 0)


@given(
    st.lists(st.integers(0, 2**53), min_size=6, max_size=6),
    st.sampled_from(["/dev/sda1", "server:/home 2", "//x y/1 2 3"]),
)
def test_every_number_is_read_from_its_own_column(numbers: list[int], name: str) -> None:
    used, soft, hard, files, soft_files, hard_files = numbers
    text = f"Disk quotas for user u (uid 7): \n{name} {used}* {soft} {hard} 0 {files} {soft_files} {hard_files} 12\n"
    limit = min((n for n in (soft, hard) if n), default=None)
    found = parse_quota(text)
    assert [(quota.used_bytes, quota.used_files) for quota in found] == [(used * KIB, files)]
    assert found[0].limit_bytes == (None if limit is None else limit * KIB)
    assert found[0].limit_files == min((n for n in (soft_files, hard_files) if n), default=None)


@pytest.mark.parametrize("text", [LUSTRE, LUSTRE_LONG, LUSTRE_PARTLY, LUSTRE_DEFAULT])
def test_lustre_is_read_in_all_its_forms(text: str) -> None:
    assert parse_lfs_quota(text, "user", 7) == Quota("user", 7, 204800 * KIB, 30720 * KIB, 17, 10000)


def test_a_lustre_user_over_the_quota_is_understood() -> None:
    found = parse_lfs_quota(LUSTRE_OVER, "group", 7)
    assert found is not None and (found.used_bytes, found.limit_bytes) == (35000 * KIB, 30720 * KIB)


def test_lustre_without_quotas_gives_none() -> None:
    assert parse_lfs_quota("Unexpected quotactl error: Operation not permitted\n", "user", 7) is None


def test_the_quotas_of_this_user_and_of_the_folders_group_count(tmp_path: Path) -> None:
    runner = Says({"quota": mine(FRESH)}, exit_code=1)
    found = Quotas(runner).of(tmp_path)
    assert [(quota.kind, quota.id) for quota in found] == [("user", os.getuid()), ("group", os.getegid())]
    assert runner.asked == [["quota", "-u", "-g", "-v", "-w", "-p", "-f", mount_of(tmp_path).point]]


def test_below_a_folder_of_a_group_that_groups_quota_counts(tmp_path: Path) -> None:
    try:
        os.chown(tmp_path, -1, 5000)
    except PermissionError:
        pytest.skip("may not give a folder to any group here")
    tmp_path.chmod(0o770 | stat.S_ISGID)
    found = Quotas(Says({"quota": mine(FRESH)})).of(tmp_path)
    assert [(quota.kind, quota.id) for quota in found] == [("user", os.getuid()), ("group", 5000)]


def test_a_missing_program_means_no_quota_and_is_asked_once(tmp_path: Path) -> None:
    runner = Says({})
    quotas = Quotas(runner)
    assert quotas.of(tmp_path) == quotas.of(tmp_path) == []
    assert len(runner.asked) == 1


def test_on_lustre_its_own_program_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No Lustre can be mounted here.
    monkeypatch.setattr(module, "mount_of", lambda folder: Mount("/lustre", "lustre", "mgs@tcp:/fs"))
    runner = Says({"lfs": LUSTRE})
    assert [quota.kind for quota in Quotas(runner).of(tmp_path)] == ["user", "group"]
    assert runner.asked == [
        ["lfs", "quota", "-q", "-u", str(os.getuid()), "/lustre"],
        ["lfs", "quota", "-q", "-g", str(os.getegid()), "/lustre"],
    ]


@pytest.mark.skipif(shutil.which("quota") is None, reason="needs the program quota")
def test_the_real_program_is_understood_or_means_no_quota(tmp_path: Path) -> None:
    assert all(quota.limit_bytes is None or quota.limit_bytes > 0 for quota in Quotas(Here()).of(tmp_path))


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:25 / /home rw - autofs systemd-1 rw,fd=1
31 22 0:26 / /home rw,nosuid shared:1 master:2 - nfs4 server:/export/home rw,vers=4.2
32 22 0:27 / /home/my\\040data rw - ext4 /dev/nvme0n1p1 rw
33 22 0:28 / /homework rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "mount"),
    [
        ("/usr/lib", Mount("/", "ext4", "/dev/vda")),
        ("/home", Mount("/home", "nfs4", "server:/export/home")),
        ("/home/alice/x", Mount("/home", "nfs4", "server:/export/home")),
        ("/home/my data/x", Mount("/home/my data", "ext4", "/dev/nvme0n1p1")),
        ("/homework", Mount("/homework", "tmpfs", "tmpfs")),
    ],
)
def test_a_folder_lies_on_the_nearest_file_system_above_it(path: str, mount: Mount) -> None:
    assert find_mount(MOUNTS, path) == mount


def test_a_link_leads_to_the_file_system_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc")
    assert mount_of(tmp_path / "link").type == "proc"
