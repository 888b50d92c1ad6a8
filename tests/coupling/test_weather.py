"""Moist air simulated in C, C++ and Fortran: the bits of the uncoupled program, and the mass kept with a surrogate."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairmile import coupling

SOURCES = Path(__file__).with_name("weather")
COMPILERS = {"c": "gcc", "c++": "g++", "fortran": "gfortran"}
MPI_COMPILERS = {"c": "mpicc", "c++": "mpicxx", "fortran": "mpif90"}
MPIRUN = ["mpirun", "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
STEPS, FEWER_STEPS, MOST_LINES = 60, 40, 12
EXACT = """
from fairmile import coupling
for exchange in coupling.serve():
    cells, after = exchange.fields["cells"], exchange.answers["after"]
    if len(cells) != 5:  # Fortran's first index is the last here
        cells, after = cells.T, after.T
    condensed = 0.001 * cells[2]
    after[0] = cells[0] + 2500 * condensed
    after[1], after[2], after[3] = cells[2] - condensed, cells[3] + condensed, cells[4]
"""
SURROGATE = """
import sys
from pathlib import Path
import numpy as np
from fairmile import coupling
from fairmile.benchmarks.suite.miniweather import surrogate
from fairmile.benchmarks.suite.miniweather.kessler import Cells
(network,), _ = surrogate.load(Path(sys.argv[1]), rules=True)
for exchange in coupling.serve():
    done = network(Cells(*exchange.fields["cells"]), network.dt_s)
    exchange.answers["after"][...] = np.stack([done.temperature, done.vapour, done.cloud, done.rain])
"""


def is_added(line: str) -> bool:
    return line.rstrip(" */\n").endswith("coupling")


def is_parallel(line: str) -> bool:
    return line.rstrip(" */\n").removesuffix(" coupling").endswith((" ! MPI", "/* MPI"))


def compiled(folder: Path, language: str, *, is_coupled: bool, with_mpi: bool = False) -> Path:
    """Compile the solver; without the lines that the coupling adds, it knows nothing of one."""
    compiler = (MPI_COMPILERS if with_mpi else COMPILERS)[language]
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    source = SOURCES / ("weather.f90" if language == "fortran" else "weather.c")
    lines = source.read_text().splitlines(keepends=True)
    kept = [line for line in lines if (is_coupled or not is_added(line)) and (with_mpi or not is_parallel(line))]
    file, program = folder / source.name, folder / f"{language}-{is_coupled}-{with_mpi}"
    file.write_text("".join(kept))
    words: list[object] = [compiler, "-O1", "-ffp-contract=off", f"-I{coupling.include()}", f"-J{folder}"]
    if language != "fortran":
        words = [*words[:-1], "-x", language]
    elif is_coupled:
        words += [coupling.include() / "fairmile_couple.f90", coupling.include() / "fairmile_couple.c"]
    if language == "fortran" and with_mpi:
        library = folder / "fairmile_couple.o"
        subprocess.run(["mpicc", "-DFAIRMILE_COUPLE_MPI", "-c", str(words[-1]), "-o", str(library)], check=True)
        words[-1] = library
    subprocess.run([*map(str, [*words, file, "-o", program]), "-lm", "-ldl", "-pthread"], check=True)
    return program


def run(program: Path, model: str, *words: str, steps: int = STEPS, **variables: str) -> tuple[bytes, float]:
    """Run it beside a Python model, with an ONNX file, or (empty) alone; return its state and its change of mass."""
    folder = program.parent
    environ = os.environ | {"FAIRMILE_COUPLE": model, "FAIRMILE_COUPLE_TIMEOUT_S": "60", **variables}
    serving = None
    if model and not model.endswith(".onnx"):
        (folder / "model.py").write_text(model)
        environ["FAIRMILE_COUPLE"] = str(folder / "socket")
        serving = subprocess.Popen([sys.executable, str(folder / "model.py"), *words], env=environ)
    done = subprocess.run([program, str(steps), "state"], cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if serving is not None:
        assert serving.wait(60) == 0
    return (folder / "state").read_bytes(), float(done.stdout)


def run_job(program: Path, model: str) -> tuple[list[bytes], list[float]]:
    """Run two ranks of different lengths, as `run` does, or with a model that is a rank of their job (mpi)."""
    folder = program.parent
    environ = os.environ | {"FAIRMILE_COUPLE": model, "FAIRMILE_COUPLE_RUNTIME": str(coupling.onnx_runtime())}
    (folder / "model.py").write_text(EXACT)
    beside = [sys.executable, str(folder / "model.py")]
    words = [*MPIRUN, "-n", "1", str(program), str(STEPS), "state-0"]
    words += [
        ":",
        "-n",
        "1",
        str(program),
        str(FEWER_STEPS),
        "state-1",
        *([":", "-n", "1", *beside] if model == "mpi" else []),
    ]
    serving = subprocess.Popen(beside, env=environ) if model.endswith("socket") else None
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    if serving is not None:
        assert serving.wait(60) == 0
    return [(folder / f"state-{rank}").read_bytes() for rank in (0, 1)], [float(each) for each in done.stdout.split()]


def save_onnx(file: Path, nodes: Any, *, is_fortran: bool = False) -> Path:
    """Write a model of `cells` and `after`; `nodes` are made of the five inputs c0 … c4, and give a0 … a3."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    axis, number = (2 if is_fortran else 0), onnx.TensorProto.DOUBLE
    shapes = [[40, 20, count] if is_fortran else [count, 20, 40] for count in (5, 4)]
    node = onnx.helper.make_node
    parts = [f"c{at}" for at in range(5)]
    split = node("Split", ["cells"], parts, axis=axis, num_outputs=5)
    join = node("Concat", [f"a{at}" for at in range(4)], ["after"], axis=axis)
    values = [
        onnx.helper.make_tensor_value_info(*each)
        for each in (("cells", number, shapes[0]), ("after", number, shapes[1]))
    ]
    graph = onnx.helper.make_graph([split, *nodes, join], "model", values[:1], values[1:])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8), file)
    return file


def constant(values: Any, name: str) -> Any:
    onnx = pytest.importorskip("onnx")
    return onnx.helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(np.asarray(values)))


def exact_nodes() -> list[Any]:
    """Return the physics of the solver."""
    node = pytest.importorskip("onnx").helper.make_node
    return [
        *(constant(0.001, "share"), constant(2500.0, "heat")),
        node("Mul", ["share", "c2"], ["condensed"]),
        node("Mul", ["heat", "condensed"], ["heating"]),
        node("Add", ["c0", "heating"], ["a0"]),
        node("Sub", ["c2", "condensed"], ["a1"]),
        node("Add", ["c3", "condensed"], ["a2"]),
        node("Identity", ["c4"], ["a3"]),
    ]


@pytest.mark.parametrize("mode", ["beside", "in process"])
@pytest.mark.parametrize("language", list(COMPILERS))
def test_a_model_that_is_the_physics_gives_the_bits_of_the_uncoupled_program(
    language: str, mode: str, tmp_path: Path
) -> None:
    uncoupled, _ = run(compiled(tmp_path, language, is_coupled=False), "")
    program = compiled(tmp_path, language, is_coupled=True)
    if mode == "beside":
        coupled, change = run(program, EXACT)
    else:
        file = save_onnx(tmp_path / "exact.onnx", exact_nodes(), is_fortran=language == "fortran")
        coupled, change = run(program, str(file), FAIRMILE_COUPLE_RUNTIME=str(coupling.onnx_runtime()))
    assert coupled == uncoupled
    assert abs(change) < 1e-13
    assert run(program, "")[0] == uncoupled
    condensed = np.frombuffer(coupled).reshape(7, 20, 40)[5]
    assert condensed.max() > 1e-4


@pytest.mark.parametrize(
    "mode",
    ["ranks", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("beside", "in process"))],
)
@pytest.mark.parametrize("language", list(COMPILERS))
def test_in_an_mpi_job_each_rank_has_the_bits_of_the_uncoupled_program(
    language: str, mode: str, tmp_path: Path
) -> None:
    pytest.importorskip("mpi4py")
    alone = compiled(tmp_path, language, is_coupled=False)
    program = compiled(tmp_path, language, is_coupled=True, with_mpi=True)
    model = {"ranks": "mpi", "beside": str(tmp_path / "socket"), "in process": str(tmp_path / "exact.onnx")}[mode]
    save_onnx(tmp_path / "exact.onnx", exact_nodes(), is_fortran=language == "fortran")
    states, changes = run_job(program, model)
    assert states == [run(alone, "", steps=steps)[0] for steps in (STEPS, FEWER_STEPS)]
    assert states[0] != states[1]
    assert max(map(abs, changes)) < 1e-13


@pytest.mark.parametrize("file", ["weather.c", "weather.f90"])
def test_coupling_adds_few_lines_to_a_solver(file: str) -> None:
    lines = (SOURCES / file).read_text().splitlines()
    added = [line for line in lines if is_added(line)]
    assert len(added) <= MOST_LINES
    assert [line for line in lines if "fairmile" in line.lower() and line not in added] == []


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the network of the suite's miniWeather on a short storm."""
    torch = pytest.importorskip("torch")
    from fairmile.benchmarks.suite.miniweather import coupled, surrogate
    from fairmile.benchmarks.suite.miniweather.kessler import Cells, Kessler
    from fairmile.benchmarks.suite.miniweather.learning import make_model
    from fairmile.benchmarks.suite.miniweather.solver import Grid, NumpyKernel

    grid, snapshots = Grid(40, 20), list[Any]()
    storm = coupled.MoistSimulation.of(grid, coupled.bubble_of(0, 0, grid.length_m), Kessler(), NumpyKernel())
    list(storm.run(400, 1, 1.5, lambda cells: snapshots.append(np.stack(cells))))
    dt_s = coupled.physics_time(grid, 400, 1, 1.5)[1]
    samples, _ = surrogate.sample(snapshots, dt_s, Kessler(), 8000, 0)
    scaling = surrogate.Scaling.of(samples, "increments", "raw")
    torch.manual_seed(0)
    model = make_model(10)
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
    inputs = torch.tensor(scaling.scaled_inputs(Cells(*samples.own.astype(np.float64).T)).T)
    targets = torch.tensor(scaling.scaled_targets(samples), dtype=torch.float32)
    for _ in range(300):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    linears = [each for each in model.modules() if isinstance(each, torch.nn.Linear)]
    layers = tuple((each.weight.detach().numpy(), each.bias.detach().numpy()) for each in linears)
    file = tmp_path_factory.mktemp("network") / "network.npz"
    surrogate.save(file, [surrogate.Surrogate("mlp", layers, scaling, dt_s)], {})
    return file


def network_nodes(file: Path) -> list[Any]:
    """Return the network with its scaling as a part of a model."""
    from fairmile.benchmarks.suite.miniweather import surrogate

    onnx = pytest.importorskip("onnx")
    (net,), _ = surrogate.load(file, rules=False)
    scaling, node = net.scaling, onnx.helper.make_node
    nodes = [
        *(constant(scaling.input_low[:, None], "low"), constant(scaling.input_span[:, None], "span")),
        *(constant(scaling.target_span[:, None], "unit"), constant(np.array([5, -1]), "flat")),
        *(constant(np.array([1, 20, 40]), "grid"), constant(0.0, "zero")),
        node("Reshape", ["cells", "flat"], ["rows"]),
        node("Sub", ["rows", "low"], ["above"]),
        node("Div", ["above", "span"], ["scaled"]),
        node("Cast", ["scaled"], ["x0"], to=onnx.TensorProto.FLOAT),
    ]
    for at, (weight, bias) in enumerate(net.weights):
        nodes += [constant(weight, f"w{at}"), constant(bias[:, None], f"b{at}")]
        nodes += [node("MatMul", [f"w{at}", f"x{at}"], [f"p{at}"]), node("Add", [f"p{at}", f"b{at}"], [f"y{at}"])]
        nodes += [node("LeakyRelu", [f"y{at}"], [f"x{at + 1}"], alpha=surrogate.SLOPE)]
    nodes += [
        node("Cast", [f"y{len(net.weights) - 1}"], ["double"], to=onnx.TensorProto.DOUBLE),
        node("Mul", ["double", "unit"], ["changes"]),
        node("Split", ["changes"], [f"d{at}" for at in range(4)], axis=0, num_outputs=4),
    ]
    for at, own in enumerate((0, 2, 3, 4)):
        nodes += [
            node("Reshape", [f"d{at}", "grid"], [f"g{at}"]),
            node("Add", [f"c{own}", f"g{at}"], [f"s{at}"]),
            node("Max", [f"s{at}", "zero"], [f"a{at}"]),
        ]
    return nodes


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["beside", "in process"])
def test_a_surrogate_of_microphysics_keeps_the_mass(mode: str, network: Path, tmp_path: Path) -> None:
    program = compiled(tmp_path, "c", is_coupled=True)
    if mode == "beside":
        state, change = run(program, SURROGATE, str(network))
    else:
        file = save_onnx(tmp_path / "network.onnx", network_nodes(network))
        state, change = run(program, str(file), FAIRMILE_COUPLE_RUNTIME=str(coupling.onnx_runtime()))
    assert abs(change) < 1e-13
    fields = np.frombuffer(state).reshape(7, 20, 40)
    assert np.isfinite(fields).all()
    assert fields[4:].min() >= -1e-12  # water
    assert state != run(program, "")[0]
