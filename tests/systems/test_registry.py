"""Finding systems, and explaining what is wrong with their files."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from fairmile.base.errors import Conflict, InvalidDocument, NotFound, Problem, SystemFailure, UsageError
from fairmile.systems import registry
from fairmile.systems.model import System
from fairmile.systems.registry import BUILT_IN, Systems, add_system, check_file, remove_system

LAKE = """\
name: lake
title: The lake
aliases: [pond]
scheduler: {dialect: slurm}
partitions:
  gpu:
    cores: 64
    gpu: {count: 4, model: A100}
verified: 2026-11-01
sources: [https://example.org/lake]
"""
TODAY = date(2026, 11, 20)
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a system file; `old` is replaced by `new` in the lake's."""

    def call(name: str = "lake.yaml", old: str = "", new: str = "", text: str = LAKE) -> Path:
        assert not old or old in text
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(old, new) if old else text)
        return path

    return call


def lines_of(problems: list[Problem]) -> list[str]:
    return [f"{problem.line} {problem.field}: {problem.message}" for problem in problems]


# Finding


def test_built_in_systems_are_found_by_name_and_by_alias() -> None:
    systems = Systems()
    assert systems["deep"].title == "DEEP"
    assert systems["juwels-booster"] is systems["juwels"]
    assert "juwels-cluster" in systems
    assert "jewels" not in systems
    assert 3 not in systems
    assert list(systems) == systems.names() == sorted(systems.names())
    assert "juwels-booster" not in systems.names()


def test_an_unknown_name_gets_the_nearest_and_all() -> None:
    with pytest.raises(NotFound, match=r"no system named 'jurecca'; did you mean 'jureca'\?") as caught:
        Systems()["jurecca"]
    assert (caught.value.hint or "").startswith("known: aurora, ")
    with pytest.raises(NotFound):
        Systems().origin("jurecca")


@pytest.mark.parametrize("name", ["../lake", "/etc/passwd", "", ".", "a/b", "lake.yaml", "a\0b"])
def test_no_name_leads_out_of_the_folders(name: str, write: Write) -> None:
    folder = write("systems/lake.yaml").parent
    write("lake.yaml")
    assert name not in Systems([folder])


def test_reading_one_system_reads_one_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write().parent
    seen: list[str] = []
    real = registry.read_document
    monkeypatch.setattr(registry, "read_document", lambda text, file: seen.append(Path(file).name) or real(text, file))
    systems = Systems([folder])
    assert systems["lake"].title == "The lake"
    assert systems["lake"] is systems["lake"]
    assert systems["deep"].name == "deep"
    assert seen == ["lake.yaml", "deep.yaml"]
    # An alias is looked for only in files that say the word.
    assert Systems([folder])["pond"].name == "lake"
    assert seen[2:] == ["lake.yaml"]


def test_a_later_file_replaces_an_earlier_one_of_the_same_name(write: Write) -> None:
    centre = write("centre/deep.yaml", "name: lake", "name: deep").parent
    user = write("user/deep.yaml", text=LAKE.replace("name: lake", "name: deep").replace("The lake", "Mine")).parent
    single = write("else.yaml", "The lake", "Single")
    assert (Systems()["deep"].title, Systems().origin("deep")) == ("DEEP", BUILT_IN)
    assert Systems([centre])["deep"].title == "The lake"
    assert Systems([centre, user])["deep"].title == "Mine"
    assert Systems([centre, user]).origin("deep") == str(user / "deep.yaml")
    systems = Systems([centre, user], {"deep": single})
    assert (systems["deep"].title, systems["deep"].name, systems.origin("deep")) == ("Single", "deep", str(single))
    assert systems.names() == Systems().names()


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert Systems([tmp_path / "none"]).names() == Systems().names()


def test_a_broken_file_troubles_nobody_else(write: Write) -> None:
    folder = write("lake.yaml", "slurm", "slrum").parent
    write("pool.yaml", "name: lake", "name: pool")
    systems = Systems([folder])
    assert systems["pool"].title == "The lake"
    assert systems["pond"].name == "pool"
    assert "lake" in systems
    with pytest.raises(InvalidDocument, match=r"lake\.yaml:4 scheduler\.dialect: expected 'slurm'") as caught:
        systems["lake"]
    assert "fairmile system check" in (caught.value.hint or "")
    rows = {row.name: row for row in systems.rows()}
    assert "lake.yaml:4 scheduler.dialect" in rows["lake"].problem
    assert (rows["lake"].origin, rows["pool"].problem) == (str(folder / "lake.yaml"), "")


def test_a_file_in_a_folder_bears_the_name_of_its_system(write: Write) -> None:
    folder = write("river.yaml").parent
    with pytest.raises(InvalidDocument, match=r"river\.yaml:1 name: is 'lake', but the file is called 'river\.yaml'"):
        Systems([folder])["river"]


def test_rows_tell_what_a_list_shows(write: Write) -> None:
    folder = write().parent
    row = next(row for row in Systems([folder]).rows() if row.name == "lake")
    assert (row.title, row.scheduler, row.partitions, row.gpus) == ("The lake", "slurm", ("gpu",), ("4 × A100",))
    assert (row.aliases, row.verified, row.retired) == (("pond",), date(2026, 11, 1), None)


# Checking


def read_system(file: Path) -> System:
    return Systems([file.parent])[file.stem]


def test_a_file_without_fault_has_no_problems(write: Write) -> None:
    assert check_file(write(), today=TODAY) == []
    assert read_system(write()).partitions["gpu"].cores == 64


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("dialect: slurm", "dialect: slrum", "4 scheduler.dialect: expected 'slurm', 'lsf', 'pbs', 'flux', 'shell' or"
         " 'practice', found 'slrum'; did you mean 'slurm'?"),
        ("cores: 64", "coers: 64", "7 partitions.gpu.coers: no such field; did you mean 'cores'?"),
        ("model: A100", "modle: A100", "8 partitions.gpu.gpu.modle: no such field; did you mean 'model'?"),
        ("model: A100", "memory_gib: 40", "8 partitions.gpu.gpu.model: is missing"),
        ("title: The lake\n", "", "1 title: is missing"),
        ("title: The lake", "titel: The lake", "2 titel: no such field; did you mean 'title'?"),
        ("cores: 64", "cores: many", "7 partitions.gpu.cores: expected a whole number, found 'many'"),
        ("cores: 64", "cores: 0", "7 partitions.gpu.cores: expected at least 1, found 0"),
        ("cores: 64", "cores: true", "7 partitions.gpu.cores: expected a whole number, found True"),
        ("cores: 64", "max_time: soon", "7 partitions.gpu.max_time: 'soon' is not a duration"),
        ("cores: 64", "memory_gib: big", "7 partitions.gpu.memory_gib: expected a number, found 'big'"),
        ("verified: 2026-11-01", "verified: lately", "9 verified: expected a date such as 2026-11-15, found 'lately'"),
        ("  gpu:\n", "  g pu:\n", "6 partitions.g pu: 'g pu' is not a name"),
        ("aliases: [pond]", "aliases: pond", "3 aliases: expected a list, found 'pond'"),
        ("aliases: [pond]", "default_partition: cpu", "3 default_partition: 'cpu' is not one of the partitions: gpu"),
        ("aliases: [pond]", "software: {ddp: {tasks_per_node: all}}",
         "3 software.ddp.tasks_per_node: expected a whole number or 'gpus', found 'all'"),
        ("aliases: [pond]", "software: {ddp: [{}, {lunch: srun}]}",
         "3 software.ddp[1].lunch: no such field; did you mean 'launch'?"),
        ("aliases: [pond]", "software: {ddp: {partition: cpu}}",
         "3 software.ddp.partition: 'cpu' is not one of the partitions: gpu"),
        ("aliases: [pond]", "login: -oProxyCommand=x",
         "3 login: expected a word of letters, digits, '.', '_' and '-', found '-oProxyCommand=x'"),
        ("aliases: [pond]", "launch: {environment: {A B: c}}",
         "3 launch.environment: 'A B' is not an environment variable that can be set"),
    ],
)  # fmt: skip
def test_an_error_names_its_line_its_field_and_what_was_expected(
    old: str, new: str, problem: str, write: Write
) -> None:
    path = write("lake.yaml", old, new)
    errors = [each for each in check_file(path, today=TODAY) if each.severity == "error"]
    assert problem in lines_of(errors)
    assert all(each.file == str(path) for each in errors)
    with pytest.raises(InvalidDocument):
        read_system(path)


def test_all_errors_are_told_at_once_in_the_order_of_their_lines(write: Write) -> None:
    path = write(text=LAKE.replace("slurm", "slrum").replace("cores: 64", "cores: -1").replace("title: The lake\n", ""))
    assert [problem.line for problem in check_file(path)] == [1, 3, 6]


def test_an_unknown_field_gets_the_fields_that_are_known_there(write: Write) -> None:
    (problem,) = check_file(write("lake.yaml", "cores: 64", "colour: red"), today=TODAY)
    assert problem.message == "no such field"
    assert problem.hint.startswith("known here: nodes, cores, threads_per_core")


@pytest.mark.parametrize("text", ["", "lake", "[1, 2]", "3"])
def test_a_file_that_holds_no_keys_is_no_system(text: str, write: Write) -> None:
    (problem,) = check_file(write(text=text))
    assert problem.message.startswith("expected a system as keys with values, found ")


def test_text_that_is_no_yaml_is_told_with_its_line(write: Write) -> None:
    with pytest.raises(InvalidDocument, match=r"lake\.yaml:4: "):
        check_file(write("lake.yaml", "scheduler: {", "scheduler: }"))
    path = write()
    path.write_bytes(b"name: lake\ntitle: \xff\n")
    with pytest.raises(InvalidDocument, match=r"lake\.yaml:2: is not UTF-8 text"):
        check_file(path)
    path.write_bytes(b" " * (1 << 20) + b"  ")
    with pytest.raises(InvalidDocument, match="larger than 1 MiB"):
        check_file(path)


def test_a_file_that_is_not_there_is_told_plainly(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no such file: .*none\.yaml"):
        check_file(tmp_path / "none.yaml")
    with pytest.raises((NotFound, SystemFailure)):
        check_file(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "warning"),
    [
        ("2026-11-01", "2025-11-19", "9 verified: verified on 2025-11-19, more than a year ago"),
        ("verified: 2026-11-01\n", "", "1 verified: this file was never verified"),
        ("sources: [https://example.org/lake]\n", "", "1 sources: no source given"),
        ("verified: 2026-11-01", "retired: 2026-11-01", "9 retired: out of service since 2026-11-01"),
        ("    cores: 64\n", "", "6 partitions.gpu: does not state its cores, so tasks cannot be fitted"),
        ("aliases: [pond]", "unverified: [login]", "3 unverified[0]: 'login' is not a value of this file"),
        ("aliases: [pond]", "unverified: [partitions.*.nodes]",
         "3 unverified[0]: 'partitions.*.nodes' is not a value of this file"),
        ("aliases: [pond]", "software: {ddp: {}}", "3 software.ddp: has no lines"),
        ("aliases: [pond]", "software: {ddp: {lines: [ml --force purge, ml use /x]}}",
         "3 software.ddp.lines: load nothing"),
        ("aliases: [pond]", "software: {ddp: {lines: [ml CUDA], partition: gpu, gpus_per_node: 8}}",
         "3 software.ddp.gpus_per_node: 8, but 'gpu' has 4 on a node"),
        ("aliases: [pond]", "software: {ddp: {lines: [ml CUDA], partition: gpu, tasks_per_node: 4, cpus_per_task: 32}}",
         "3 software.ddp.cpus_per_task: the tasks need 128 on a node, but 'gpu' has 64"),
    ],
)  # fmt: skip
def test_what_is_only_doubtful_is_a_warning(old: str, new: str, warning: str, write: Write) -> None:
    path = write("lake.yaml", old, new)
    problems = check_file(path, today=TODAY)
    assert lines_of(problems) == [warning]
    assert problems[0].severity == "warning"
    assert read_system(path).name == "lake"


@pytest.mark.parametrize(
    "doubt",
    ["title", "partitions", "partitions.gpu.gpu.model", "partitions.*.cores", "partitions.*", "sources[0]"],
)
def test_a_doubt_may_name_any_value_that_is_there(doubt: str, write: Write) -> None:
    assert check_file(write("lake.yaml", "aliases: [pond]", f'unverified: ["{doubt}"]'), today=TODAY) == []


@pytest.mark.parametrize(
    "line", ["ml CUDA", "module load CUDA", "ml bsc gcc/10", "source env.sh", ". env.sh", "export A=1", "spack load x"]
)
def test_lines_that_load_something_are_no_doubt(line: str, write: Write) -> None:
    path = write("lake.yaml", "aliases: [pond]", f"software: {{ddp: {{lines: ['{line}']}}}}")
    assert check_file(path, today=TODAY) == []


# Adding and removing


def test_a_checked_file_is_copied_under_the_name_of_its_system(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    draft = write("draft.yaml")
    added = add_system(draft, folder, dry_run=True)
    assert (added.name, added.file, folder.exists()) == ("lake", folder / "lake.yaml", False)
    add_system(draft, folder)
    assert added.file.read_text() == LAKE
    assert Systems([folder])["lake"].title == "The lake"
    add_system(draft, folder)


def test_another_file_of_the_same_name_is_replaced_only_when_asked(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    add_system(write("draft.yaml"), folder)
    other = write("other.yaml", "The lake", "Another")
    with pytest.raises(Conflict, match="describes 'lake' already"):
        add_system(other, folder)
    assert read_system(folder / "lake.yaml").title == "The lake"
    add_system(other, folder, replace=True)
    assert read_system(folder / "lake.yaml").title == "Another"


def test_a_file_with_errors_is_not_added(write: Write, tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument):
        add_system(write("draft.yaml", "slurm", "slrum"), tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_only_the_users_own_systems_can_be_removed(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    add_system(write("draft.yaml"), folder)
    systems = Systems([folder])
    assert remove_system("lake", folder, systems, dry_run=True).file.exists()
    assert not remove_system("lake", folder, systems).file.exists()
    with pytest.raises(UsageError, match="'deep' is not one of your own systems: it comes from built-in"):
        remove_system("deep", folder, systems)
    with pytest.raises(NotFound, match="no system named 'lake'"):
        remove_system("lake", folder, systems)


def test_a_broken_file_of_the_user_can_be_removed(write: Write) -> None:
    folder = write("lake.yaml", "slurm", "slrum").parent
    assert not remove_system("lake", folder, Systems([folder])).file.exists()
