"""Readers of published tables: what they take over, and what they say about a broken one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from scaling_accuracy.published import read_megatron, read_mlperf_hpc, read_vtrain

from fairmile.base.errors import InvalidDocument, NotFound

VTRAIN = (
    "# source: somewhere\n"
    "Parameters (billion),# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,"
    "tensor parallelism,data parallelism,pipeline parallelism,iteration time (ms)\n"
    "18.4,256,1024,2,6144,48,40,2048,8,8,4,10926.4\n"
)
MEGATRON = (
    "# source: somewhere\n"
    "model,mode,iteration_time_s,act_gib_per_gpu,par_opt_gib_per_gpu,act_percent_of_none\n"
    "gpt3-175B,full,18.13,,,8.71\n"
    "gpt3-175B,seqsel,13.75,12.5,45.5,18.49\n"
)
MLPERF = (
    "# summary by submission\n"
    "round,benchmark,scaling,submitter,system,accelerators,accelerator,global_batch_size,runs,olympic_mean_min,min_min,"
    "max_min,mean_epochs,median_epoch_s,train_samples,framework\n"
    'v0.7,cosmoflow,strong,LBNL,coriknl_n512_tf1.15.2,0,"Xeon, Phi",512,10,536,430,703,113.8,280.14,262144,TF 1.15\n'
    "v0.7,cosmoflow,strong,RIKEN,fugaku_8192xA64FX_tensorflow_open,0,N/A,512,10,1,1,1,1,62.5,262144,TF\n"
    "v1.0,deepcam,weak,HelmholtzAI,juwelsbooster_gpu_n3072_pytorch1.10_22x128,3072,A100,128,12,1,1,1,1,76.1,121266,PT\n"
    "v1.0,deepcam,weak,LBNL,perlmutter_10x128x4_ngc21.09,5120,A100,1024,12,1,1,1,1,9.5,121266,PT\n"
    "v1.0,deepcam,weak,NVIDIA,dgxa100_n512_ngc21.09_pytorch,4096,A100,128,12,1,1,1,1,223,121266,PT\n"
)


@pytest.fixture
def table(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "table.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_run_of_vtrain_becomes_a_model_and_a_layout(table: Callable[[str], Path]) -> None:
    (run,) = read_vtrain(table(VTRAIN), recompute="full")
    assert (run.model.hidden, run.model.heads, run.model.layers, run.model.seq) == (6144, 48, 40, 2048)
    layout = run.layout
    assert (layout.data, layout.tensor, layout.pipeline) == (8, 8, 4)
    assert (layout.micro_batch, layout.micro_batches, layout.recompute) == (2, 64, "full")
    assert run.step_time_s == pytest.approx(10.9264)
    assert run.name == "table.csv:3"


def test_rows_of_megatron_carry_their_configuration_and_what_the_paper_leaves_out(
    table: Callable[[str], Path],
) -> None:
    full, selective = read_megatron(table(MEGATRON))
    assert (full.layout.recompute, full.layout.sequence_parallel, full.activation_bytes) == ("full", False, None)
    assert (selective.layout.recompute, selective.layout.sequence_parallel) == ("selective", True)
    assert selective.layout.pipeline == 8 and selective.layout.interleave == 3
    assert selective.activation_bytes == 12.5 * 2**30
    assert selective.model.parameters == pytest.approx(175e9, rel=0.01)


def test_submissions_without_accelerators_count_nodes_and_weak_ones_their_instances(
    table: Callable[[str], Path],
) -> None:
    rows = read_mlperf_hpc(table(MLPERF))
    assert [row.accelerators for row in rows] == [512, 8192, 3072, 5120, 4096]
    assert [row.instance for row in rows] == [512, 8192, 128, 512, None]
    assert [row.family for row in rows] == ["coriknl", "fugaku", "juwelsbooster", "perlmutter", "dgxa100"]
    assert [row.division for row in rows] == ["closed", "open", "closed", "closed", "closed"]
    assert rows[0].accelerator == "Xeon, Phi"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (VTRAIN.replace("10926.4", "soon"), r"table\.csv:3: iteration time \(ms\) is 'soon', expected a number"),
        (VTRAIN.replace("10926.4", "-1"), "not negative"),
        (VTRAIN.replace("10926.4", "nan"), "not negative"),
        (VTRAIN.replace(",10926.4", ""), "11 fields stand under 12 columns"),
        (VTRAIN.replace("18.4,256", "18.4,255"), "do not fit the GPUs"),
        (VTRAIN.replace("micro batch", "micro"), "the columns micro batch are missing"),
        ("# source: nothing\n", "the table is empty"),
        ("", "the table is empty"),
    ],
)
def test_a_broken_table_is_named_with_its_line(table: Callable[[str], Path], text: str, words: str) -> None:
    with pytest.raises(InvalidDocument, match=words):
        read_vtrain(table(text), recompute="none")


def test_unknown_models_and_modes_of_megatron_are_named(table: Callable[[str], Path]) -> None:
    with pytest.raises(InvalidDocument, match="'gpt5' is not one of megatron-22B"):
        read_megatron(table(MEGATRON.replace("gpt3-175B,full", "gpt5,full")))
    with pytest.raises(InvalidDocument, match="the mode 'half'"):
        read_megatron(table(MEGATRON.replace("gpt3-175B,full", "gpt3-175B,half")))


def test_a_submission_of_unknown_size_is_named(table: Callable[[str], Path]) -> None:
    with pytest.raises(InvalidDocument, match="neither accelerators nor the name"):
        read_mlperf_hpc(table(MLPERF.replace("coriknl_n512_tf1.15.2", "coriknl")))


def test_a_missing_table_and_one_of_bytes_are_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no table"):
        read_vtrain(tmp_path / "none.csv", recompute="none")
    path = tmp_path / "bytes.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidDocument, match="cannot be read as text"):
        read_mlperf_hpc(path)
