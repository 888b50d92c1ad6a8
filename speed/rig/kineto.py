"""Writes what the PyTorch profiler writes of a data-parallel training on GPUs, rank by rank, of any size.

One step of a network of 24 blocks: batch from the host, forward, backward with one all-reduce for every four blocks on
a stream of its own, optimizer. Every event has the fields, the layout and the order of a real trace; times follow from
a small simulation (a host that launches, two streams, collectives that end together on all ranks), so that idle time,
overlap and waiting come out of the figures like in a real one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

BASE_NS = 1_790_857_026_000_000_000
BLOCKS = 24
BUCKET = 4
COMPUTE_STREAM, COMM_STREAM, COPY_STREAM = 7, 20, 24
_FORWARD = (
    (
        "aten::native_layer_norm",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>",
        9.0,
    ),
    ("aten::addmm", "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_cublas", 61.0),
    (
        "aten::_efficient_attention_forward",
        "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)",
        48.0,
    ),
    ("aten::addmm", "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x256x32_warpgroupsize2x1x1_cublas", 84.0),
    (
        "aten::gelu",
        "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)>",
        12.0,
    ),
    (
        "aten::add",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>",
        7.0,
    ),
)
_BACKWARD = tuple((f"{op}_backward", kernel, 1.9 * cost) for op, kernel, cost in reversed(_FORWARD))
_OPTIMIZER = (
    (
        "aten::_foreach_add_",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<1>>",
        30.0,
    ),
    (
        "aten::_foreach_lerp_",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<2>>",
        41.0,
    ),
    (
        "aten::_foreach_addcdiv_",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<3>>",
        55.0,
    ),
)


_ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@dataclass
class Rank:
    """What one rank has written and where its clocks stand, in microseconds."""

    number: int
    world: int
    out: StringIO = field(default_factory=StringIO)
    host: float = 5_000_000.0
    streams: dict[int, float] = field(default_factory=lambda: {COMPUTE_STREAM: 0.0, COMM_STREAM: 0.0, COPY_STREAM: 0.0})
    correlation: int = 0
    external: int = 0
    collective: int = 0
    memory: int = 1 << 30

    def __post_init__(self) -> None:
        self.random = random.Random(self.number)

    def event(self, cat: str, name: str, tid: int, ts: float, dur: float, args: str, pid: int | None = None) -> None:
        pid = 4000 + self.number if pid is None else pid
        self.out.write(
            f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
            f'    "ts": {ts:.3f}, "dur": {dur:.3f},\n    "args": {{\n      {args}\n    }}\n  }},\n'
        )

    def flow(self, phase: str, tid: int, ts: float, pid: int) -> None:
        end = ', "bp": "e"' if phase == "f" else ""
        self.out.write(
            f'  {{\n    "ph": "{phase}", "id": {self.correlation}, "pid": {pid}, "tid": {tid}, "ts": {ts:.3f},\n'
            f'    "cat": "ac2g", "name": "ac2g"{end}\n  }},\n'
        )

    def op(self, name: str, dur: float, shape: str = "[32, 1024], [1024, 1024]") -> None:
        self.external += 1
        self.event(
            "cpu_op", name, self.thread, self.host, dur,
            f'"External id": {self.external},"Record function id": 0, "Concrete Inputs": ["", "", "1"], '
            f'"Input type": ["float", "float", "Scalar"], "Input Strides": [[1024, 1], [1024, 1], []], '
            f'"Input Dims": [{shape}, []], "Ev Idx": {self.external}',
        )  # fmt: skip

    @property
    def thread(self) -> int:
        return 4000 + self.number

    def launch(self, call: str, cat: str, name: str, stream: int, dur: float, extra: str) -> tuple[float, float]:
        """Put work on a stream, its launch before it; return when it ran."""
        self.correlation += 1
        took = 4.0 + 2.0 * self.random.random()
        self.event(
            "cuda_runtime", call, self.thread, self.host, took,
            f'"External id": {self.external}, "cbid": 211, "correlation": {self.correlation}',
        )  # fmt: skip
        self.flow("s", self.thread, self.host, 4000 + self.number)
        start = max(self.streams[stream] + 1.1, self.host + took + 1.5)
        self.event(
            cat, name, stream, start, dur,
            f'"External id": {self.external}, "device": {self.number}, "context": 1, "stream": {stream}, '
            f'"correlation": {self.correlation}, {extra}',
            pid=self.number,
        )  # fmt: skip
        self.flow("f", stream, start, self.number)
        self.streams[stream] = start + dur
        self.host += took
        return start, start + dur

    def kernel(self, op: str, name: str, cost: float) -> None:
        self.op(op, 19.0)
        self.host += 3.0
        self.op(op.replace("aten::", "aten::_"), 12.0)
        self.host += 1.5
        size = self.random.choice((512, 2048, 1 << 16, 1 << 20))
        self.memory += size
        self.out.write(
            f'  {{\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",\n'
            f'    "pid": {4000 + self.number}, "tid": {self.thread}, "ts": {self.host:.3f},\n    "args": {{\n'
            f'      "Total Reserved": 8589934592, "Total Allocated": {self.memory}, "Bytes": {size}, '
            f'"Addr": {140_000_000_000_000 + self.memory}, "Device Id": {self.number}, "Device Type": 1\n'
            "    }\n  },\n"
        )
        blocks = self.random.randrange(1, 2048)
        self.launch(
            "cudaLaunchKernel", "kernel", name, COMPUTE_STREAM, cost * (0.9 + 0.2 * self.random.random()),
            f'"queued": 0, "registers per thread": 64, "shared memory": 16384, "blocks per SM": {blocks / 132:.6f}, '
            f'"warps per SM": {4 * blocks / 132:.6f}, "grid": [{blocks}, 1, 1], "block": [128, 1, 1], '
            '"est. achieved occupancy %": 31',
        )  # fmt: skip
        self.host += 6.0


def steps(ranks: list[Rank], first: int = 3) -> Iterator[int]:
    """Write one step after the other to all ranks."""
    step = first
    while True:
        begins = [rank.host for rank in ranks]
        for rank in ranks:
            _input_and_forward(rank)
        for block in reversed(range(BLOCKS)):
            for rank in ranks:
                slow = 1.25 if rank.number == rank.world - 1 else 1.0
                for op, kernel, cost in _BACKWARD:
                    rank.kernel(op, kernel, slow * cost)
            if block % BUCKET == 0:
                _all_reduce(ranks)
        for rank, begin in zip(ranks, begins, strict=True):
            _finish(rank, begin, step)
        yield step
        step += 1


def _input_and_forward(rank: Rank) -> None:
    rank.event(
        "user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", rank.thread, rank.host,
        180.0,
        f'"External id": {rank.external}, "Record function id": 0, "Ev Idx": {rank.external}',
    )  # fmt: skip
    rank.host += 190.0
    rank.op("aten::to", 30.0)
    rank.launch(
        "cudaMemcpyAsync", "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", COPY_STREAM, 90.0,
        '"bytes": 9633792, "memory bandwidth (GB/s)": 24.7',
    )  # fmt: skip
    rank.launch(
        "cudaMemsetAsync", "gpu_memset", "Memset (Device)", COMPUTE_STREAM, 1.3,
        '"bytes": 4096, "memory bandwidth (GB/s)": 3.1',
    )  # fmt: skip
    for _ in range(BLOCKS):
        for op, kernel, cost in _FORWARD:
            rank.kernel(op, kernel, cost)


def _all_reduce(ranks: list[Rank]) -> None:
    """Write a collective that no rank leaves before the last one came."""
    ready = [max(each.streams[COMM_STREAM], each.streams[COMPUTE_STREAM], each.host + 12.0) + 1.1 for each in ranks]
    end = max(ready) + 410.0
    members = ", ".join(str(rank.number) for rank in ranks)
    for rank, start in zip(ranks, ready, strict=True):
        about = (
            '"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 12582912, "Out msg nelems": 12582912, '
            f'"Group size": {rank.world}, "Process Group Name": "0", "Process Group Description": "default_pg", '
            f'"Process Group Ranks": "[{members}]", "In split size": "[]", "Out split size": "[]", '
            f'"Seq": {rank.collective}'
        )
        rank.op("c10d::allreduce_", 40.0, "[[12582912]]")
        rank.host += 4.0
        rank.event(
            "cpu_op", "record_param_comms", rank.thread, rank.host, 30.0, f'"External id": {rank.external}, {about}'
        )
        rank.event(
            "user_annotation", "nccl:all_reduce", rank.thread, rank.host + 1.0, 20.0,
            f'"External id": {rank.external}, "Record function id": 0',
        )  # fmt: skip
        rank.host += 3.0
        rank.streams[COMM_STREAM] = max(start - 1.1, rank.host + 6.0)
        at = max(rank.streams[COMM_STREAM] + 1.1, rank.host + 7.5)
        rank.launch(
            "cudaLaunchKernelExC", "kernel", _ALL_REDUCE, COMM_STREAM, end - at,
            '"queued": 0, "registers per thread": 96, "shared memory": 82240, '
            f'"grid": [24, 1, 1], "block": [544, 1, 1], "est. achieved occupancy %": 0, {about}',
        )  # fmt: skip
        rank.streams[COMM_STREAM] = end
        rank.host += 10.0
        rank.collective += 1


def _finish(rank: Rank, begin: float, step: int) -> None:
    rank.streams[COMPUTE_STREAM] = max(rank.streams[COMPUTE_STREAM], rank.streams[COMM_STREAM])
    for _ in range(6):
        for op, kernel, cost in _OPTIMIZER:
            rank.kernel(op, kernel, cost)
    waited = max(rank.streams.values()) - rank.host
    if waited > 0:
        rank.event(
            "cuda_runtime", "cudaDeviceSynchronize", rank.thread, rank.host, waited, '"cbid": 165, "correlation": 0'
        )
        rank.host += waited
    rank.host += 50.0
    rank.event(
        "user_annotation", f"ProfilerStep#{step}", rank.thread, begin, rank.host - begin - 1.0,
        f'"External id": {rank.external}, "Record function id": 0, "Ev Idx": {rank.external}',
    )  # fmt: skip


def write_ranks(folder: Path, world: int, size_bytes: int) -> list[Path]:
    """Write one trace for each rank, whole steps up to about a size."""
    files = [folder / f"rank{rank}.json" for rank in range(world)]
    ranks = [Rank(rank, world) for rank in range(world)]
    streams = [file.open("w", encoding="utf-8") for file in files]
    try:
        for rank, stream in zip(ranks, streams, strict=True):
            stream.write(_head(rank))
        for _ in steps(ranks):
            for rank, stream in zip(ranks, streams, strict=True):
                stream.write(rank.out.getvalue())
                rank.out = StringIO()
            if streams[0].tell() >= size_bytes:
                break
        for rank, stream, file in zip(ranks, streams, files, strict=True):
            end = f'"name": "Record Window End", "pid": "", "tid": "", "ts": {rank.host:.3f}'
            stream.write(f'  {{\n    "ph": "i", "s": "g", {end}\n  }}\n  ],\n  "traceName": "{file.name}"\n}}')
    finally:
        for stream in streams:
            stream.close()
    return files


def _head(rank: Rank) -> str:
    members = ", ".join(map(str, range(rank.world)))
    named = "".join(
        f'  {{\n    "name": "thread_name", "ph": "M", "ts": 5000000.000, "pid": {pid}, "tid": {tid},\n'
        f'    "args": {{\n      "name": "{name}"\n    }}\n  }},\n'
        for pid, tid, name in (
            (4000 + rank.number, rank.thread, f"thread {rank.thread} (python)"),
            *((rank.number, stream, f"stream {stream} ") for stream in rank.streams),
        )
    )
    return (
        '{\n  "schemaVersion": 1,\n  "deviceProperties": [\n    {\n      '
        f'"id": {rank.number}, "name": "NVIDIA H200", "totalGlobalMem": 150109880320, "computeMajor": 9\n'
        '    }\n  ],\n  "distributedInfo": {"backend": "nccl", '
        f'"rank": {rank.number}, "world_size": {rank.world}, "pg_count": 1, "pg_config": [{{"pg_name": "0", '
        f'"pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": {rank.world}, "ranks": [{members}]}}], '
        '"nccl_version": "2.28.9"},\n'
        f'  "host_name": "n{rank.number // 4}",\n  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": {BASE_NS},\n'
        f'  "traceEvents": [\n{named}'
    )
