"""Bytes that kernels move: a stand-in writes what ncu wrote of an H200, behind the same command line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairmile.base.errors import Integrity, Unsupported
from fairmile.traces import counters
from fairmile.traces.analyze import TraceAnalysis
from fairmile.traces.counted import traffic_of
from fairmile.traces.counters import counting_command, is_product, kernel_label, read_counts
from fairmile.traces.record import Recorded, RecordSettings, record
from fairmile.workspace import Workspace

COUNTED = Path(__file__).parent / "ncu_h200.csv"  # a normal fill, an addition, a product, a clamp, a convolution
NCU = """#!/bin/sh
while [ "$1" != "--log-file" ]; do shift; done
cp "{counted}" "$2"
shift 2
exec "$@"
"""
# A machine without a GPU: what the recorder asks of CUDA says that it was asked.
CUDA = """\
import torch
torch.set_num_threads(1)
def asked(word):
    return lambda *_: print(word, optimized, file=open("ASKED", "a"))
optimized = 0
torch.cuda.is_initialized = lambda: True
torch.cuda.synchronize, torch.cuda.profiler.start, torch.cuda.profiler.stop = asked("wait"), asked("on"), asked("off")
torch.cuda.get_device_name = lambda *_: "NVIDIA H200"
"""
TRAINING = """\
model = torch.nn.Linear(512, 256, bias=False)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(6):
    model(torch.randn(64, 512)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimized += 1
"""
Counted = tuple[Recorded, list[str]]


@pytest.fixture(scope="module")
def on_a_gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Stand in for a GPU and for ncu; yield the file that holds what ncu writes."""
    folder = tmp_path_factory.mktemp("gpu")
    counted, ncu = folder / "counted.csv", folder / "bin" / "ncu"
    counted.write_bytes(COUNTED.read_bytes())
    ncu.parent.mkdir()
    ncu.write_text(NCU.format(counted=counted))
    ncu.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counters, "_DEVICES", ("/",))
        patch.setenv("PATH", f"{ncu.parent}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        for name in [name for name in os.environ if name.startswith(("FAIRMILE_", "OMPI_", "PMI", "RANK", "WORLD"))]:
            patch.delenv(name)
        yield counted


def count(folder: Path, text: str = CUDA + TRAINING) -> Recorded:
    """Record a program with counters; its first lines stand in for CUDA."""
    pytest.importorskip("torch")
    (folder / "program.py").write_text(text)
    settings = RecordSettings(skip=2, steps=2, after_s=600, counters=True)
    return record([sys.executable, str(folder / "program.py")], folder / "counted", settings=settings, watch=False)


@pytest.fixture(scope="module")
def counted(on_a_gpu: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recorded, list[str]]:
    """Return a recording with counters, and what its stand-in for CUDA was asked after how many whole steps."""
    folder = tmp_path_factory.mktemp("counted")
    recorded = count(folder, CUDA.replace("ASKED", str(folder / "asked")) + TRAINING)
    return recorded, (folder / "asked").read_text().splitlines()


def analyze(*paths: Path) -> TraceAnalysis:
    return Workspace.open().traces.analyze([str(each) for each in paths])


def test_the_window_is_that_of_the_recorded_steps(counted: Counted) -> None:
    recorded, asked = counted
    assert asked == ["wait 1", "on 1", "wait 3", "off 3"]  # the hook runs within the step that ends
    (traced,) = recorded.traced
    assert (traced.first_step, traced.last_step, traced.device) == (2, 3, "NVIDIA H200")
    assert (recorded.counters, recorded.notes, recorded.exit_code) == ("counters.csv", (), 0)


def test_traffic_is_told_by_kernel_and_step_beside_what_the_products_must_move(counted: Counted) -> None:
    analysis = analyze(counted[0].folder)
    moved = analysis.traffic
    assert moved is not None
    assert (moved.device, moved.steps) == ("NVIDIA H200", 2)
    assert (moved.read_bytes, moved.written_bytes) == (5_745_931_520, 1_515_341_568)
    kernels = {each.kernel: each for each in moved.kernels}
    add = kernels["vectorized_elementwise_kernel<CUDAFunctorOnSelf_add>"]
    assert (add.calls, add.read_bytes, add.written_bytes) == (1, 268_446_464, 241_265_152)
    assert add.bytes_per_s == pytest.approx((268_446_464 + 241_265_152) / 124_448e-9)
    assert add.of_peak == pytest.approx(add.bytes_per_s / 4.8e12)
    assert sum(each.read_bytes for each in moved.kernels) == moved.read_bytes
    # In each step a product forward and the one of the weight's gradient: every matrix once, in fp32.
    operands = 4 * (64 * 512 + 512 * 256 + 64 * 256)
    assert moved.products_model_bytes == 2 * 2 * operands
    assert moved.products_bytes == 5_534_646_016


def test_times_under_the_counter_are_not_told(counted: Counted) -> None:
    analysis = analyze(counted[0].folder)
    assert (analysis.is_timed, analysis.findings) == (False, ())
    assert "times and findings need a recording without --counters" in analysis.notes[0]
    assert {each.seconds for each in analysis.operators} == {0.0}


def test_beside_a_recording_of_times_both_are_told(counted: Counted, tmp_path: Path) -> None:
    settings = RecordSettings(skip=1, steps=3, after_s=600)
    (tmp_path / "timed.py").write_text("import torch\noptimized = 0\n" + TRAINING)
    timed = record([sys.executable, str(tmp_path / "timed.py")], tmp_path / "timed", settings=settings, watch=False)
    both = analyze(timed.folder, counted[0].folder)
    assert both.traffic == analyze(counted[0].folder).traffic
    assert both.is_timed
    assert both.steps == 3


def test_of_several_ranks_the_first_is_counted(on_a_gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    (traced,) = count(tmp_path, CUDA.replace("ASKED", os.devnull) + TRAINING).traced
    assert (traced.file, traced.reason) == (None, "counters are read of rank 0")


def test_a_process_without_a_gpu_says_so_and_so_does_ncu(on_a_gpu: Path, tmp_path: Path) -> None:
    kernels = on_a_gpu.read_bytes()
    on_a_gpu.write_text("==PROF== Connected to process 562\n==WARNING== No kernels were profiled.\n")
    try:
        recorded = count(tmp_path, "import torch\noptimized = 0\n" + TRAINING)
    finally:
        on_a_gpu.write_bytes(kernels)
    assert recorded.traced[0].reason == "it had used no GPU when counting was to begin"
    assert recorded.notes[-1] == "no kernel ran in the recorded steps"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters",
            "NVreg_RestrictProfilingToAdminUsers=0, or run as root",
        ),
        ("==ERROR== The application returned an error code (1).", "ncu counted nothing: The application returned"),
        ("==WARNING== No kernels were profiled.", "no kernel ran in the recorded steps"),
    ],
)
def test_why_there_are_no_counters_is_one_sentence(tmp_path: Path, said: str, expected: str) -> None:
    (tmp_path / "counters.csv").write_text(f"==PROF== Connected to process 562\n{said}\n")
    (tmp_path / "recording.json").write_text('{"processes": []}')
    counts, reason = read_counts(tmp_path / "counters.csv")
    assert counts == []
    assert expected in reason
    with pytest.raises(Unsupported, match=f"has no counters: .*{re.escape(expected)}"):
        traffic_of([tmp_path], ())


def test_without_a_gpu_or_ncu_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = RecordSettings(counters=True)
    monkeypatch.setattr(counters, "_DEVICES", ())
    with pytest.raises(Unsupported, match="no NVIDIA GPU on this machine"):
        record(["touch", str(tmp_path / "ran")], tmp_path / "new", settings=settings)
    monkeypatch.setattr(counters, "_DEVICES", ("/",))
    monkeypatch.setattr(counters, "_PLACES", ())
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unsupported, match="ncu of NVIDIA Nsight Compute is not installed") as caught:
        record(["touch", str(tmp_path / "ran")], tmp_path / "new", settings=settings)
    assert "module load" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


def test_caches_and_clocks_are_left_as_the_program_has_them(on_a_gpu: Path) -> None:
    command = counting_command(["python", "train.py"], Path("log.csv"), os.environ)
    assert command[-2:] == ["python", "train.py"]
    for option in ("--cache-control none", "--clock-control none", "--profile-from-start off", "--log-file log.csv"):
        assert option in " ".join(command)


def test_units_and_words_of_the_program_between_are_read(tmp_path: Path) -> None:
    text = COUNTED.read_text().replace('"byte","268,446,464"', '"Mbyte","268.446464"')
    (tmp_path / "log").write_text(text.replace('"3","562"', 'epoch 1: loss 0.5\n"unfinished\n"3","562"', 1))
    assert read_counts(tmp_path / "log")[0] == read_counts(COUNTED)[0]


def test_a_table_that_is_broken_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(COUNTED.read_text().replace('"268,446,464"', '"many"'))
    with pytest.raises(Integrity, match="log: not a table of ncu"):
        read_counts(tmp_path / "log")


def test_kernels_have_names_that_a_person_reads() -> None:
    names = [kernel_label(each.kernel) for each in read_counts(COUNTED)[0]]
    assert names[2] == "vectorized_elementwise_kernel<CUDAFunctorOnSelf_add>"
    assert names[3].startswith("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n")
    assert names[-2] == "reduce_kernel<sum_functor>"


def test_kernels_of_products_and_convolutions_are_known() -> None:
    kernels = [each.kernel for each in read_counts(COUNTED)[0]]
    assert [at for at, each in enumerate(kernels) if is_product(each)] == [3, 5, 6, 7, 8]
    assert not is_product("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true>(T1)")
    assert is_product("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>(Params)")
