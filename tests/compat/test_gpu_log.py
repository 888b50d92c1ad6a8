"""Logs of cloudmesh-gpu, of all its forms."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairmile.base.errors import InvalidDocument, NotFound
from fairmile.compat.gpu_log import read, recognises
from fairmile.meter.energy import energies

SHARED = Path(os.environ.get("FAIRMILE_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
A100 = SHARED / "predecessors" / "gpu-log" / "earthquake-a100-gpu0.log"

OLD = """\
# ####################################################################################
# time, 0 id, 0 gpu_util %, 0 memory_util %, 0 encoder_util %, 0 decoder_util %, 0 gpu_temp C, 0 power_draw W
2022-05-22:16:54:15.500000,0,0,0,0,0,26,50.00
2022-05-22:16:54:16.500000,0,97,3,0,0,30,150.00
2022-05-22:16:54:20.500000,0,100,4,0,0,31,250.00
"""
NEW = """\
time, 0 id, 0 gpu_util %, 0 gpu_temp C, 0 power_draw W, 0 vram_mem_used MiB, 1 id, 1 gpu_util %, 1 gpu_temp C, \
1 power_draw W, 1 vram_mem_used MiB,\x20
2024-05-22T16:54:15.000000,   0,   5,    26,    50.00, 1024 MiB,   1,  10,    27,   100.00, 2048 MiB
2024-05-22T16:54:16,   0,   5,    26,    70.00, 1024 MiB,   1,  10,    27,   N, 2048 MiB
2024-05-22T16:54:17.000000,   0,   5,    26,    70.00, 1024 MiB,   1,  10,    27,   300.00, 2048 MiB
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "gpu.log"
    file.write_text(text)
    return file


def test_the_old_form_has_a_heading_behind_a_hash(tmp_path: Path) -> None:
    found = read(written(tmp_path, OLD))
    assert found.damaged == 0
    assert found.samples.column("gpu0.power") == [50.0, 150.0, 250.0]
    assert found.samples.column("gpu0.utilisation") == [0.0, 97.0, 100.0]
    assert found.samples.column("gpu0.temperature") == [26.0, 30.0, 31.0]
    (energy,) = energies(found.samples)
    assert energy.joules == pytest.approx(100 + 800)
    assert (energy.method, energy.source, energy.scope) == ("trapezoid", "nvidia-smi", "device 0")


def test_the_times_are_kept_to_the_microsecond(tmp_path: Path) -> None:
    found = read(written(tmp_path, OLD.replace("15.500000", "15.760601")))
    assert found.samples.at_ns[0] == 1653238455_760601_000


def test_the_new_form_has_no_hash_and_several_gpus(tmp_path: Path) -> None:
    found = read(written(tmp_path, NEW))
    assert found.damaged == 0
    assert found.samples.column("gpu0.memory") == [float(1 << 30)] * 3
    assert found.samples.column("gpu1.power") == [100.0, None, 300.0]
    assert [energy.joules for energy in energies(found.samples)] == pytest.approx([60 + 70, 400])
    assert [energy.scope for energy in energies(found.samples)] == ["device 0", "device 1"]


def test_the_dense_form_has_no_blanks(tmp_path: Path) -> None:
    head, *lines = NEW.splitlines()
    dense = read(written(tmp_path, "\n".join([head, *(line.replace(" ", "") for line in lines)])))
    assert dense.samples.columns == read(written(tmp_path, NEW)).samples.columns


@pytest.mark.parametrize(
    "line",
    [
        "2022-05-22:16:54:17.500000,0,0,0",
        "2022-05-22:16:54:17.500000,0,0,0,0,0,26,50.00,99",
        "2022-13-45:16:54:17.500000,0,0,0,0,0,26,50.00",
        "'gpu_util'",
        "\x00\x00\x00",
    ],
)
def test_damaged_lines_are_counted_and_the_rest_is_read(tmp_path: Path, line: str) -> None:
    found = read(written(tmp_path, f"{OLD}{line}\n2022-05-22:16:54:21.500000,0,0,0,0,0,26,250.00\n"))
    assert found.damaged == 1
    assert found.samples.column("gpu0.power") == [50.0, 150.0, 250.0, 250.0]


def test_a_line_that_a_crash_cut_off_is_counted(tmp_path: Path) -> None:
    for length in range(len(OLD) - 40, len(OLD) - 2):
        found = read(written(tmp_path, OLD[:length]))
        assert len(found.samples.at_ns) + found.damaged == 3


def test_logs_of_the_same_gpus_written_into_one_file_are_read_on(tmp_path: Path) -> None:
    later = OLD.replace("16:54", "17:54")
    assert len(read(written(tmp_path, OLD + later)).samples.at_ns) == 6


def test_another_heading_is_not_read_by_the_first(tmp_path: Path) -> None:
    found = read(written(tmp_path, OLD + NEW))
    assert (len(found.samples.at_ns), found.damaged) == (3, 1)


def test_what_is_no_such_log_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument, match=r"gpu\.log: it has no column header"):
        read(written(tmp_path, "hello\n"))
    with pytest.raises(NotFound, match="no such file"):
        read(tmp_path / "missing.log")
    assert recognises(OLD) and recognises(NEW) and not recognises('{"writer": {}}\n')


@pytest.mark.skipif(not A100.exists(), reason="needs the shared data")
def test_the_log_of_a_real_training_gives_its_known_energy() -> None:
    found = read(A100)
    (energy,) = energies(found.samples)
    assert energy.joules == pytest.approx(1_079_987, rel=1e-3)
    assert found.damaged == 0
    assert energy.longest_gap_s == pytest.approx(5.39, abs=0.01)
