"""`fairmile system`: what a user sees of machines."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from printed_results import assert_printed, assert_sound

from fairmile.workspace import Workspace

Fairmile = Callable[..., Any]

TODAY = date.today()
CLUSTER = """\
name: my-cluster
title: Our cluster
centre: Our institute
scheduler: {dialect: slurm, needs_account: true}
default_partition: gpu
partitions:
  gpu:
    nodes: 12
    cores: 64
    memory_gib: 512
    gpu: {count: 4, model: A100, memory_gib: 40}
    max_time: 2-00:00:00
file_systems:
  scratch: {path: /scratch, purpose: scratch, purge: files not read for 60 days are removed}
launch: {launcher: srun, binding: --cpu-bind=none, rendezvous_suffix: i}
software:
  ddp:
    lines: [ml CUDA/12]
    partition: gpu
    tasks_per_node: 1
    gpus_per_node: 4
    disagrees: [Others say 4 tasks.]
verified: TODAY
sources: [https://cluster.example.org]
unverified: [partitions.gpu.nodes]
""".replace("TODAY", str(TODAY))


@pytest.fixture
def cluster(place: Path) -> Path:
    file = place / "cluster.yaml"
    file.write_text(CLUSTER)
    return file


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_built_in_systems_are_listed(fairmile: Fairmile) -> None:
    result = fairmile("system", "ls")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    columns = "name centre scheduler partitions GPUs software compared newest source"
    assert lines[0].split() == columns.split()
    names = [line.split()[0] for line in lines[1:]]
    assert {"deep", "jureca", "juwels", "lumi", "cte-amd", "laptop", "frontier", "polaris"} <= set(names)
    deep = next(line for line in lines if line.startswith("deep "))
    assert "slurm" in deep
    assert "1 × Tesla V100" in deep
    assert "ddp, deepspeed, heat, horovod, tensorflow" in deep
    assert "retired 2024-11-15" in next(line for line in lines if line.startswith("summit "))


def test_the_list_is_data_too(fairmile: Fairmile) -> None:
    rows = {row["name"]: row for row in fairmile("system", "ls", "--json").json["systems"]}
    assert rows["deep"]["scheduler"] == "slurm"
    assert rows["deep"]["origin"] == "built-in"
    assert rows["deep"]["verified"] == "2026-11-15"
    assert rows["laptop"]["verified"] is None
    assert (rows["deep"]["newest_source"], rows["aurora"]["newest_source"]) == ("2023", "2026-07-27")


def test_a_page_tells_all_of_a_system(fairmile: Fairmile, cluster: Path) -> None:
    assert fairmile("system", "add", str(cluster)).code == 0
    result = fairmile("system", "show", "my-cluster")
    assert (result.code, result.err) == (0, "")
    lines = words(result.out)
    assert lines[0] == ["Our", "cluster", "(my-cluster)"]
    assert ["centre", "Our", "institute"] in lines
    assert "scheduler     slurm; every job names account; GPUs by --gpus-per-node" in result.out
    assert "launch        srun --cpu-bind=none; first node's name + 'i'" in result.out
    assert ["gpu", "*", "12", "?", "64", "512", "GiB", "4", "×", "A100", "40", "GiB", "2d"] in lines
    assert ["scratch", "/scratch", "scratch", "files", "not", "read", "for", "60", "days", "are", "removed"] in lines
    assert "  partition gpu, tasks per node 1, GPUs per node 4\n  ml CUDA/12\n  note: Others say 4 tasks." in result.out
    assert (
        f"compared    with its sources on {TODAY}; its sources have no dates\n"
        "unverified  partitions.gpu.nodes\nsource      https://cluster" in result.out
    )


@pytest.mark.parametrize("name", ["deep", "jureca", "juwels-booster", "lumi", "aurora", "summit", "laptop"])
def test_every_page_can_be_shown(fairmile: Fairmile, name: str) -> None:
    result = fairmile("system", "show", name)
    assert result.code == 0
    assert f"({name.removesuffix('-booster')})" in result.out


def test_the_exact_lines_of_a_set_are_on_the_page(fairmile: Fairmile) -> None:
    out = fairmile("system", "show", "deep").out
    line = "ml Stages/2022 GCC/11.2.0 OpenMPI/4.1.2 cuDNN/8.3.1.22-CUDA-11.5 NCCL/2.11.4-CUDA-11.5 Python/3.9.6"
    assert f"  ml --force purge\n  ml use $OTHERSTAGES\n  {line}\n  ml -nvidia-driver/.default\n" in out


def test_what_jobs_name_instead_of_a_partition_is_on_the_page(fairmile: Fairmile) -> None:
    out = fairmile("system", "show", "perlmutter").out
    assert "  gpu: jobs name no partition, --constraint=gpu, qos regular ?\n" in out


def test_a_value_that_nobody_checked_bears_a_mark(fairmile: Fairmile) -> None:
    out = fairmile("system", "show", "jureca").out
    assert "8 × MI250 64 GiB ?\n" in out
    assert "login         jureca.fz-juelich.de ?\n" in out
    assert "4 × A100 40 GiB  " in out


def test_a_page_fits_a_terminal(at_terminal: Callable[..., str]) -> None:
    shown = at_terminal("system", "show", "jureca", columns=80)
    assert "JURECA-DC" in shown


def test_a_system_as_data_is_the_whole_document(fairmile: Fairmile) -> None:
    found = fairmile("system", "show", "jureca", "--json").json
    assert found["name"] == "jureca"
    assert found["software"]["ddp"][1]["partitions"] == ["dc-mi200"]
    assert (found["verified"], found["origin"]) == ("2026-11-15", "built-in")


def test_an_unknown_system_gets_the_nearest(fairmile: Fairmile) -> None:
    result = fairmile("system", "show", "jurecca")
    assert result.code == 2
    assert "no system named 'jurecca'; did you mean 'jureca'?" in result.err


def test_a_valid_file_is_told_so(fairmile: Fairmile, cluster: Path) -> None:
    result = fairmile("system", "check", str(cluster))
    assert (result.code, result.out, result.err) == (0, f"{cluster}: valid\n", "")


def test_every_error_of_every_file_is_told(fairmile: Fairmile, cluster: Path, place: Path) -> None:
    bad = place / "bad.yaml"
    bad.write_text(CLUSTER.replace("slurm", "slrum").replace("cores: 64", "coers: 64"))
    result = fairmile("system", "check", str(bad), str(cluster))
    assert (result.code, result.err) == (2, "")
    assert (
        f"error: {bad}:4 scheduler.dialect: expected 'slurm', 'lsf', 'pbs', 'flux', 'shell' or 'practice', found"
        in result.out
    )
    assert f"error: {bad}:9 partitions.gpu.coers: no such field; did you mean 'cores'?\n  hint: known" in result.out
    assert f"{bad}: not valid, 2 errors\n{cluster}: valid\n" in result.out
    files = fairmile("system", "check", str(bad), "--json").json["files"]
    assert [(each["field"], each["line"]) for each in files[0]["problems"]] == [
        ("scheduler.dialect", 4),
        ("partitions.gpu.coers", 9),
    ]
    assert files[0]["ok"] is False


def test_a_file_that_cannot_be_read_does_not_hide_the_others(fairmile: Fairmile, cluster: Path, place: Path) -> None:
    (place / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    result = fairmile("system", "check", "nowhere.yaml", "latin.yaml", str(cluster))
    assert (result.code, result.err) == (2, "")
    assert "error: no such file: nowhere.yaml\nnowhere.yaml: not valid, 1 error\n" in result.out
    assert "error: latin.yaml:1: is not UTF-8 text\n" in result.out
    assert result.out.endswith(f"{cluster}: valid\n")


def test_a_system_of_ones_own_is_removed_by_its_alias(fairmile: Fairmile, cluster: Path, place: Path) -> None:
    cluster.write_text(CLUSTER + "aliases: [ours]\n")
    target = place.parent / "home" / "systems" / "my-cluster.yaml"
    assert fairmile("system", "add", str(cluster)).code == 0
    assert fairmile("system", "rm", "ours").out == f"removed  my-cluster: {target}\n"
    assert not target.exists()


def test_an_alias_that_is_the_name_of_a_built_in_system_is_refused(fairmile: Fairmile, cluster: Path) -> None:
    cluster.write_text(CLUSTER + "aliases: [ours, lumi]\n")
    result = fairmile("system", "add", str(cluster))
    assert result.code == 2
    assert f"error: {cluster}:26 aliases[1]: 'lumi' is the name of another system" in result.err
    assert "my-cluster" not in fairmile("system", "ls").out


def test_a_doubt_is_talk_and_leaves_the_file_valid(fairmile: Fairmile, cluster: Path) -> None:
    cluster.write_text(CLUSTER.replace(f"verified: {TODAY}", "verified: 2020-01-01"))
    result = fairmile("system", "check", str(cluster))
    assert (result.code, result.out) == (0, f"{cluster}: valid, 1 warning\n")
    assert result.err.startswith(
        f"warning: {cluster}:23 verified: verified on 2020-01-01, more than a year ago\n  hint: "
    )


def test_a_file_is_added_shown_and_removed(fairmile: Fairmile, cluster: Path, place: Path) -> None:
    target = place.parent / "home" / "systems" / "my-cluster.yaml"
    assert fairmile("system", "add", str(cluster), "--dry-run").out == f"would add my-cluster: {target}\n"
    assert not target.exists()
    assert fairmile("system", "add", str(cluster)).out == f"added    my-cluster: {target}\n"
    assert target.read_text() == CLUSTER
    assert "my-cluster" in fairmile("system", "ls").out
    assert fairmile("system", "rm", "my-cluster", "--dry-run").out == f"would remove my-cluster: {target}\n"
    assert fairmile("system", "rm", "my-cluster").out == f"removed  my-cluster: {target}\n"
    assert not target.exists()


def test_a_file_that_hides_a_built_in_system_is_told_so(fairmile: Fairmile, cluster: Path) -> None:
    cluster.write_text(CLUSTER.replace("name: my-cluster", "name: deep"))
    assert fairmile("system", "add", str(cluster)).err == "it replaces the built-in deep\n"
    assert "Our cluster (deep)" in fairmile("system", "show", "deep").out
    assert fairmile("system", "rm", "deep").code == 0
    assert "DEEP (deep)" in fairmile("system", "show", "deep").out


def test_a_built_in_system_cannot_be_removed(fairmile: Fairmile) -> None:
    result = fairmile("system", "rm", "deep")
    assert result.code == 2
    assert "'deep' is not one of your own systems: it comes from built-in" in result.err


def test_a_file_with_errors_is_not_added(fairmile: Fairmile, cluster: Path, place: Path) -> None:
    cluster.write_text(CLUSTER.replace("slurm", "slrum"))
    result = fairmile("system", "add", str(cluster))
    assert result.code == 2
    assert f"error: {cluster}:4 scheduler.dialect: expected" in result.err
    assert not (place.parent / "home" / "systems").exists()


def test_a_broken_file_of_the_user_is_named_and_leaves_the_others_alone(fairmile: Fairmile, place: Path) -> None:
    folder = place.parent / "home" / "systems"
    folder.mkdir()
    (folder / "broken.yaml").write_text("name: broken\n")
    result = fairmile("system", "ls")
    assert result.code == 0
    assert "deep" in result.out
    assert f"broken cannot be used: {folder / 'broken.yaml'}:1 title: is missing" in result.err
    rows = {row["name"]: row["problem"] for row in fairmile("system", "ls", "--json").json["systems"]}
    assert rows["broken"]
    assert rows["deep"] == ""


# From Python


def test_python_returns_what_the_commands_print(fairmile: Fairmile, cluster: Path, place: Path) -> None:
    (place / "bad.yaml").write_text("name: [\n")
    systems = Workspace.open().systems
    added = ("system", "add", str(cluster), "--dry-run")
    assert_printed(fairmile, systems.add(cluster, dry_run=True), *added)
    assert_sound(systems.add(cluster))
    assert "my-cluster" in systems
    removed = systems.rm("my-cluster", dry_run=True)
    assert_printed(fairmile, systems.ls(), "system", "ls")
    assert_printed(fairmile, systems.show("my-cluster"), "system", "show", "my-cluster")
    assert_printed(fairmile, systems.check([Path("bad.yaml"), cluster]), "system", "check", "bad.yaml", str(cluster))
    assert_printed(fairmile, removed, "system", "rm", "my-cluster", "--dry-run")
    systems.rm("my-cluster")
    assert "my-cluster" not in systems
    assert "jureca" in set(systems.ls().to_pandas()["name"])
    assert list(systems.check([cluster]).to_pandas()["ok"]) == [True]


def test_every_built_in_system_is_data_of_its_declared_type(fairmile: Fairmile) -> None:
    systems = Workspace.open().systems
    for name in systems:
        assert_sound(systems.show(name))
