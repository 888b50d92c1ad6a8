from __future__ import annotations

from cases import for_each

from fairmile.base.errors import RunFailed
from fairmile.benchmarks.harness.memory import Fit, largest_batch, sentence

GIB = 1 << 30


class Device:
    """A device whose need is known: so much for the model, so much for each sample."""

    def __init__(self, limit_bytes: int, fixed_bytes: int, per_sample_bytes: int, extra: dict[int, int] | None = None):
        self.limit_bytes, self.fixed_bytes, self.per_sample_bytes = limit_bytes, fixed_bytes, per_sample_bytes
        self.extra = extra or {}
        self.measured: list[int] = []

    def measure(self, size: int) -> int | None:
        self.measured.append(size)
        peak_bytes = self.fixed_bytes + size * self.per_sample_bytes + self.extra.get(size, 0)
        return peak_bytes if peak_bytes <= self.limit_bytes else None


def test_the_largest_batch_and_the_need_of_the_one_asked_for_are_found_by_a_few_small_ones() -> None:
    device = Device(80 * GIB, 2 * GIB, 3 * GIB)
    assert largest_batch(device.measure, 64, device.limit_bytes) == Fit(194 * GIB, 26)
    assert device.measured == [1, 2, 4, 8, 26]


def test_a_need_that_is_no_line_at_the_smallest_batch_does_not_mislead() -> None:
    device = Device(80 * GIB, 2 * GIB, 3 * GIB, extra={1: 20 * GIB})
    assert largest_batch(device.measure, 64, device.limit_bytes).largest == 26


def test_the_search_goes_down_where_the_line_promises_too_much() -> None:
    device = Device(80 * GIB, 2 * GIB, 3 * GIB, extra=dict.fromkeys(range(20, 99), 10 * GIB))
    found = largest_batch(device.measure, 64, device.limit_bytes)
    assert found.largest == 22  # 23 needs 81 GiB
    assert len(device.measured) < 10


def test_a_device_on_which_only_the_smallest_fit_is_asked_no_more_than_needed() -> None:
    device = Device(10 * GIB, GIB, 4 * GIB)
    assert largest_batch(device.measure, 64, device.limit_bytes).largest == 2
    assert largest_batch(Device(GIB, 2 * GIB, GIB).measure, 64, GIB) == Fit(0, 0)
    assert largest_batch(Device(4 * GIB, 2 * GIB, GIB).measure, 3, 4 * GIB).largest == 2


def test_nothing_is_measured_that_is_not_smaller_than_what_failed() -> None:
    device = Device(80 * GIB, 79 * GIB, GIB // 100)
    largest_batch(device.measure, 4, device.limit_bytes)
    assert max(device.measured) < 4


def test_the_sentence_says_what_is_needed_and_what_fits() -> None:
    error = sentence("batch_size", 64, "cuda:0 (80.0 GiB)", Fit(194 * GIB, 26))
    assert isinstance(error, RunFailed)
    assert error.exit_code == 1
    assert str(error) == (
        "batch_size 64 does not fit on cuda:0 (80.0 GiB): one batch needs about 194.0 GiB; "
        "the largest batch that fits is about 26"
    )
    assert error.hint is not None
    assert error.hint.startswith("`-p batch_size=26`, with `-p accumulate=3`")


@for_each(
    "name, fit, text, hint",
    [
        ("batch_size", Fit(0, 0), "not even one sample fits", "checkpoint_activations=true"),
        ("batch_size", None, "does not fit on cuda:0", "accumulate"),
        ("eval_batch_size", Fit(9 * GIB, 5), "the largest batch that fits is about 5", "-p eval_batch_size=5"),
    ],
)
def test_what_could_not_be_found_out_is_not_said(name: str, fit: Fit | None, text: str, hint: str) -> None:
    error = sentence(name, 64, "cuda:0", fit)
    assert text in str(error)
    assert hint in (error.hint or "")
    assert "about 0" not in str(error)
