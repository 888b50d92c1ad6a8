from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rank_program
import torch
from cases import for_each
from made_once import made_once
from rank_program import EvenTask, trained

from fairmile.base.errors import Integrity, Unsupported, UsageError
from fairmile.benchmarks.harness.launcher import start_ranks
from fairmile.benchmarks.harness.meeting import first_of_nodes, meeting_point
from fairmile.benchmarks.harness.ranks import Ranks
from fairmile.benchmarks.harness.settings import TrainSettings
from fairmile.benchmarks.harness.strategies import Strategy, make_strategy, pick_device

TWO = Ranks(0, 2, 0, 2)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def environ() -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "MASTER_"))}
    return own | {"PYTHONPATH": str(Path(rank_program.__file__).parent), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder where two ranks left what they trained."""
    return made_once(tmp_path_factory, "two-ranks", train_on_two_ranks)


def train_on_two_ranks(folder: Path) -> None:
    trained(folder / "chain", Ranks(), batch_size=8, epochs=1)
    assert start_ranks(2, [sys.executable, rank_program.__file__, str(folder)], environ()) == 0


def read_result(folder: Path, name: str, rank: int = 0) -> Any:
    return json.loads((folder / f"{name}.{rank}.json").read_text())


def losses(history: list[dict[str, float]]) -> list[float]:
    return [row["train_loss"] for row in history]


def assert_close(found: Any, wanted: Any, name: str = "") -> None:
    assert np.allclose(found, wanted, rtol=0, atol=1e-6), name


@pytest.mark.thorough
def test_ddp_over_two_ranks_learns_what_one_rank_with_twice_the_batch_does(two_ranks: Path, tmp_path: Path) -> None:
    single = trained(tmp_path, Ranks(), batch_size=8)
    found = read_result(two_ranks, "ddp")
    assert_close(losses(found["history"]), losses(single.history))
    assert losses(single.history)[1] < 0.9 * losses(single.history)[0]
    for name, value in single.model.state_dict().items():
        assert_close(found["weights"][name], value, name)


@pytest.mark.parametrize("way", ["", "-accumulated"])
def test_fsdp_learns_what_ddp_does_and_gives_whole_weights(two_ranks: Path, way: str) -> None:
    ddp, fsdp = read_result(two_ranks, f"ddp{way}"), read_result(two_ranks, f"fsdp{way}")
    assert_close(losses(fsdp["history"]), losses(ddp["history"]))
    assert fsdp["weights"].keys() == ddp["weights"].keys() == EvenTask().model().state_dict().keys()
    for name, value in ddp["weights"].items():
        assert_close(fsdp["weights"][name], value, name)


def test_accumulated_batches_are_one_step(two_ranks: Path, tmp_path: Path) -> None:
    found = read_result(two_ranks, "ddp-accumulated")
    single = trained(tmp_path, Ranks(), batch_size=8, accumulate=3)
    assert [row["step"] for row in found["history"]] == [4, 8]
    assert_close(losses(found["history"]), losses(single.history))


def test_activations_that_are_computed_again_change_nothing(two_ranks: Path) -> None:
    plain, again = read_result(two_ranks, "ddp"), read_result(two_ranks, "ddp-checkpointed")
    assert again["weights"].keys() == plain["weights"].keys()
    assert_close(losses(again["history"]), losses(plain["history"]))


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_predictions_of_all_ranks_come_in_the_order_of_the_samples(two_ranks: Path, way: str) -> None:
    first, second = read_result(two_ranks, way, 0), read_result(two_ranks, way, 1)
    assert first["outputs"] == second["outputs"]
    assert first["scores"] == second["scores"]
    wanted = EvenTask().validation.y
    assert len(wanted) == 21, "an odd number, so that one rank has less than the other"
    assert np.array_equal(np.asarray(first["outputs"]["y"], np.float32), wanted)


def test_a_checkpoint_goes_from_one_process_to_ddp_to_fsdp_and_back(two_ranks: Path, tmp_path: Path) -> None:
    back = trained(two_ranks / "chain", Ranks(), is_resumed=True, batch_size=8, epochs=4)
    whole = trained(tmp_path, Ranks(), batch_size=8, epochs=4)
    assert len(losses(back.history)) == 4
    assert_close(losses(back.history), losses(whole.history))
    for name, value in whole.model.state_dict().items():
        assert_close(back.model.state_dict()[name], value, name)


def test_arrays_of_unequal_length_are_put_together_in_the_order_of_the_ranks(two_ranks: Path) -> None:
    found = read_result(two_ranks, "gathered", 0)
    assert found == read_result(two_ranks, "gathered", 1)
    assert found["rows"] == [[0, 1, 2], [3, 4, 5], [100, 101, 102]]
    assert found["dtype"] == "int16"
    assert found["empty"] == [0.0, 0.0]


@pytest.mark.thorough
def test_ranks_of_mpirun_meet_without_being_told_where(tmp_path: Path) -> None:
    program = (
        "import os\n"
        "import numpy as np\n"
        "from fairmile.benchmarks.harness.ranks import Ranks\n"
        "from fairmile.benchmarks.harness.settings import TrainSettings\n"
        "from fairmile.benchmarks.harness.strategies import make_strategy\n"
        "ranks = Ranks.of(os.environ)\n"
        "strategy = make_strategy(TrainSettings(strategy='ddp', device='cpu'), ranks)\n"
        "print(strategy.gather(np.array([10 * (ranks.rank + 1)])).sum())\n"
        "strategy.close()\n"
    )
    variables = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "FAIRMILE_JOB_ID": str(free_job())}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=environ() | variables | {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    said = [each.communicate(timeout=120) for each in started]
    assert [out for out, _ in said] == ["30\n", "30\n"], said


def free_job() -> int:
    """Return a job number whose port is free."""
    while True:
        job = random.randrange(20000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", 10000 + job)):
                return job


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_a_group_of_one_works(way: str, tmp_path: Path) -> None:
    single = trained(tmp_path / "single", Ranks())
    alone = trained(tmp_path / way, Ranks(), strategy=way)
    assert_close(losses(alone.history), losses(single.history))
    assert not torch.distributed.is_initialized(), "the group was left"


def test_a_state_is_a_copy_that_training_does_not_touch() -> None:
    strategy, model, optimizer = prepared()
    learn(strategy, model, optimizer)
    state = strategy.state(model, optimizer)
    once = json.dumps(plain(state))
    learn(strategy, model, optimizer)
    assert json.dumps(plain(state)) == once
    strategy.load(model, optimizer, state)
    learn(strategy, model, optimizer)
    assert json.dumps(plain(state)) == once, "also what was loaded is not written to"


def test_what_was_loaded_goes_on_as_if_nothing_had_been_between() -> None:
    strategy, model, optimizer = prepared()
    learn(strategy, model, optimizer)
    state = strategy.state(model, optimizer)
    learn(strategy, model, optimizer)
    wanted = json.dumps(plain(strategy.state(model, optimizer)))
    other, fresh, its_optimizer = prepared(seed=2)
    other.load(fresh, its_optimizer, state)
    learn(other, fresh, its_optimizer)
    assert json.dumps(plain(other.state(fresh, its_optimizer))) == wanted


def prepared(seed: int = 1, **params: Any) -> tuple[Strategy, torch.nn.Module, torch.optim.Optimizer]:
    strategy = make_strategy(TrainSettings(device="cpu", **params), Ranks())
    torch.manual_seed(seed)
    return strategy, *strategy.prepare(torch.nn.Linear(3, 2), lambda model: torch.optim.AdamW(model.parameters()))


def learn(strategy: Strategy, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loss_of = strategy.in_precision(lambda given: model(given).square().mean())
    strategy.backward(model, loss_of(torch.arange(6.0).reshape(2, 3)))
    strategy.step(model, optimizer)


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    return value.tolist() if isinstance(value, torch.Tensor) else value


def test_gradients_are_cut_to_the_norm_and_cleared() -> None:
    strategy = make_strategy(TrainSettings(device="cpu"), Ranks())
    model, optimizer = strategy.prepare(torch.nn.Linear(3, 1), lambda each: torch.optim.SGD(each.parameters(), lr=1.0))
    before = torch.cat([each.detach().clone().flatten() for each in model.parameters()])
    strategy.backward(model, 1000 * model(torch.ones(1, 3)).sum())
    strategy.step(model, optimizer, 0.25)
    after = torch.cat([each.detach().flatten() for each in model.parameters()])
    assert float((after - before).norm()) == pytest.approx(0.25, rel=1e-4)
    assert all(each.grad is None for each in model.parameters())


def test_bf16_computes_in_bf16_and_keeps_weights_in_full_precision() -> None:
    strategy, model, _ = prepared(precision="bf16")
    assert strategy.in_precision(model)(torch.ones(1, 3)).dtype == torch.bfloat16
    assert model.weight.dtype == torch.float32
    assert model(torch.ones(1, 3)).dtype == torch.float32, "outside of it nothing changes"


def test_channels_last_is_the_layout_of_images_and_volumes_alone() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.Conv3d(2, 4, 3), torch.nn.Linear(2, 2))
    strategy = make_strategy(TrainSettings(device="cpu", channels_last=True), Ranks())
    strategy.prepare(model, lambda each: torch.optim.SGD(each.parameters()))
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert model[1].weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert model[2].weight.is_contiguous()
    state = strategy.state(model)["model"]
    assert state["0.weight"].is_contiguous(), "a state says nothing of how it was computed"


def test_what_cannot_be_had_is_one_sentence() -> None:
    cases: list[tuple[dict[str, Any], Ranks, type[Exception], str]] = [
        ({"precision": "fp16"}, Ranks(), UsageError, "precision fp16 needs a GPU"),
        ({}, TWO, UsageError, "strategy single uses one process, but the launcher started 2"),
        ({"strategy": "fsdp", "channels_last": True}, TWO, UsageError, "channels_last is not possible"),
    ]
    for params, ranks, kind, said in cases:
        with pytest.raises(kind, match=said) as failed:
            make_strategy(TrainSettings(**({"device": "cpu"} | params)), ranks)
        assert failed.value.hint


@pytest.mark.parametrize(("way", "package"), [("deepspeed", "deepspeed"), ("horovod", "horovod.torch")])
def test_a_strategy_whose_library_is_missing_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, way: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, package.split(".")[0], None)
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    with pytest.raises(Unsupported, match=f"strategy {way} needs") as failed:
        make_strategy(TrainSettings(strategy=way, device="cpu"), Ranks())
    assert f"pip install{'' if way == 'deepspeed' else ' --no-build-isolation'} {way}" in str(failed.value.hint)
    assert "DS_ACCELERATOR" not in os.environ


def test_a_device_that_is_not_there_is_said() -> None:
    with pytest.raises(UsageError, match="'gpu' is not a device"):
        pick_device("gpu", Ranks())
    with pytest.raises(UsageError, match="no 'meta' on this machine"):
        pick_device("meta", Ranks())
    if not torch.cuda.is_available():
        assert pick_device("auto", Ranks()) == torch.device("cpu")
        with pytest.raises(UsageError, match="no GPU for 'cuda:1'"):
            pick_device("cuda:1", Ranks())


def test_a_model_without_blocks_has_nothing_to_compute_again() -> None:
    with pytest.raises(UsageError, match="Linear has no blocks"):
        prepared(checkpoint_activations=True)


def test_weights_that_do_not_fit_are_named() -> None:
    strategy, model, optimizer = prepared()
    state = strategy.state(model, optimizer)
    for weights, said in (
        ({"weight": torch.zeros(2, 3)}, "it has no bias"),
        ({"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}, r"weight is \[2, 4\] there and \[2, 3\] in the model"),
        ({**state["model"], "more": torch.zeros(1)}, "which has no more"),
    ):
        with pytest.raises(Integrity, match=said):
            strategy.load(model, None, {"model": weights})
    groups = [{**state["optimizer"]["param_groups"][0], "params": [0]}]
    with pytest.raises(Integrity, match="the checkpoint's optimizer has 1 parameters, the model has 2"):
        strategy.load(model, optimizer, {**state, "optimizer": {"state": {}, "param_groups": groups}})


@for_each(
    "nodes, first",
    [
        ("gpu03 gpu04", "gpu03"),
        ("gpu[03-07,9],login1", "gpu03"),
        ("n1,n2", "n1"),
        ("nid[001,004]-ib", "nid001-ib"),
        ("single", "single"),
    ],
)
def test_the_first_of_a_list_of_nodes_is_found(nodes: str, first: str) -> None:
    assert first_of_nodes(nodes) == first


def test_ranks_meet_where_the_scheduler_says(tmp_path: Path) -> None:
    four = Ranks(1, 4, 1, 2)
    slurm = {"SLURM_JOB_NODELIST": "gpu[03-04]", "SLURM_JOB_ID": "1234567"}
    assert meeting_point(four, slurm) == ("gpu03", 10000 + 1234567 % 20000)
    assert meeting_point(four, slurm | {"FAIRMILE_NODES": "a.b b.b", "FAIRMILE_JOB_ID": "12_3"}) == ("a.b", 10123)
    assert meeting_point(four, slurm | {"MASTER_ADDR": "x", "MASTER_PORT": "77"}) == ("x", 77)
    hosts = tmp_path / "hosts"
    hosts.write_text("p1\np1\np2\np2\n")
    assert meeting_point(four, {"PBS_NODEFILE": str(hosts), "PBS_JOBID": "42.server"}) == ("p1", 10042)
    assert meeting_point(TWO, {})[0] == "127.0.0.1"
    with pytest.raises(UsageError, match="MASTER_ADDR is not set, so 4 ranks cannot find the first one") as failed:
        meeting_point(four, {})
    assert "MASTER_ADDR" in str(failed.value.hint)
