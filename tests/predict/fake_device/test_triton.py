"""How much work the source of a Triton kernel states."""

from __future__ import annotations

import pytest

from fairmile.predict.fake_device.triton import KernelWork, pointers, work_of_text

HEAD = """\
    triton_meta={{'signature': {signature}, 'device': None}},
    inductor_meta={{'kernel_name': 'triton_x', 'kernel_num_gb': {gb}}},
)
@triton.jit
def triton_x():
"""
POINTWISE = (
    HEAD.format(signature="{'in_ptr0': '*i64', 'in_ptr1': '*bf16', 'out_ptr0': '*fp32', 'xnumel': 'i32'}", gb=0.5)
    + """\
    xnumel = 1000
    tmp0 = tl.load(in_ptr0 + (x1), None)
    tmp2 = tl.load(in_ptr1 + (x0 + 128*tmp0), None).to(tl.float32)
    tmp3 = tl.rand(tmp1, (x0).to(tl.uint32))
    tmp4 = libdevice.exp(tmp2)
    tl.atomic_add(out_ptr0 + (x0), tmp4, None, sem='relaxed')
"""
)
REDUCTION = (
    HEAD.format(signature="{'in_ptr0': '*bf16', 'out_ptr1': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32'}", gb=0.25)
    + """\
    xnumel = 10
    r0_numel = 500
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        tmp0 = tl.load(in_ptr0 + (r0_1 + 500*x0), r0_mask & xmask)
        tmp2_mean, tmp2_m2, tmp2_weight = triton_helpers.welford_reduce(
            tmp1, tmp2_mean, tmp2_m2, tmp2_weight, roffset == 0
        )
    tmp3 = libdevice.rsqrt(tmp2)
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        tmp4 = tl.load(in_ptr0 + (r0_1 + 500*x0), r0_mask & xmask)
        tmp5 = libdevice.exp(tmp4)
        tl.store(out_ptr1 + (r0_1 + 500*x0), tmp5, r0_mask & xmask)
"""
)


def test_parameters_are_told_in_order_with_their_types() -> None:
    assert list(pointers(POINTWISE).items())[:2] == [("in_ptr0", "*i64"), ("in_ptr1", "*bf16")]
    assert pointers("def nothing(): ...") == {}


@pytest.mark.parametrize(
    ("source", "work"),
    [
        # 1000 reads of two bytes where an index says; the exponential outside a loop hides behind the memory.
        (POINTWISE, KernelWork(500_000_000, gathered_bytes=2000, added=1000, random=1000, running=0, looped=0)),
        (REDUCTION, KernelWork(250_000_000, gathered_bytes=0, added=0, random=0, running=5000, looped=5000)),
        ("def nothing(): ...", KernelWork(None, 0, 0, 0, 0, 0)),
    ],
)
def test_a_kernel_counts_what_it_does_for_each_of_its_elements(source: str, work: KernelWork) -> None:
    assert work_of_text(source) == work
    assert work.keywords() == {name: count for name, count in work._asdict().items() if count}
