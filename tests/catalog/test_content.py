from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from fairmile.base.errors import UsageError
from fairmile.catalog.card import Card
from fairmile.catalog.content import measure


def test_a_file_has_the_digests_a_card_takes(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b"x,y\n")
    content = measure(file)
    (entry,) = content.distribution
    assert entry["sha256"] == hashlib.sha256(b"x,y\n").hexdigest()
    assert (entry["contentSize"], entry["encodingFormat"]) == ("4 B", "text/csv")
    assert Card({"@type": "Dataset", "name": "x", "distribution": [entry]}).content == content.content


def test_the_swhid_of_a_folder_is_the_tree_id_of_git(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.py").write_text("print(1)\n")
    git = ["git", "-C", str(tmp_path / "code"), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    tree = subprocess.run([*git, "write-tree"], check=True, capture_output=True, text=True).stdout.strip()
    assert measure(tmp_path / "code").swhid == f"swh:1:dir:{tree}"


def test_a_folder_has_one_digest_that_any_change_changes(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    before = measure(tmp_path)
    assert (before.files, before.size_bytes) == (2, 2)
    (tmp_path / "b").write_text("3")
    assert measure(tmp_path).content != before.content


def test_what_holds_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no files"):
        measure(tmp_path)
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        measure(tmp_path / "nowhere")
