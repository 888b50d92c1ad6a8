"""The kernels of the published table, and times that a model of the GPU gives them."""

from __future__ import annotations

import numpy as np
import pytest

from fairmile.benchmarks.suite.sgemm.kernels import PARAMETERS, VALUES, all_settings, model_times


@pytest.fixture(scope="module")
def settings() -> np.ndarray:
    return all_settings()


def test_there_are_as_many_kernels_as_in_the_published_table(settings: np.ndarray) -> None:
    assert settings.shape == (241_600, 14)
    means = dict(zip(PARAMETERS, settings.mean(0), strict=True))
    assert (means["MWG"], means["KWG"]) == pytest.approx((80.415364, 25.513113), abs=1e-6)
    assert (means["MDIMC"], means["VWM"]) == pytest.approx((13.935894, 2.448609), abs=1e-6)
    for column, name in zip(settings.T, PARAMETERS, strict=True):
        assert tuple(np.unique(column)) == VALUES[name]


def test_times_have_the_published_quartiles(settings: np.ndarray) -> None:
    mean_ms = model_times(settings, 0).mean(1)
    assert np.quantile(mean_ms, [0, 0.25, 0.5, 0.75, 1]) == pytest.approx([13.3, 40.7, 69.8, 228.4, 3341.5], rel=0.01)


def test_times_follow_what_decides_them_on_a_gpu() -> None:
    def time_ms(**given: int) -> float:
        usual = {"MWG": 32, "NWG": 32, "KWG": 16, "MDIMC": 8, "NDIMC": 8, "MDIMA": 8, "NDIMB": 8, "KWI": 8}
        usual |= {"VWM": 2, "VWN": 2, "STRM": 1, "STRN": 1, "SA": 1, "SB": 1} | given
        return float(model_times(np.array([[usual[name] for name in PARAMETERS]]), 0).mean())

    assert time_ms(MWG=128, NWG=128) > 3 * time_ms(), "sixteen by sixteen products do not fit into registers"
    assert time_ms(MWG=16, NWG=16) > 1.5 * time_ms(), "small tiles move more data"
    assert time_ms(STRM=0, VWM=1) > time_ms(VWM=1), "strided access conflicts"


def test_repeated_runs_differ_a_little() -> None:
    times = model_times(all_settings()[:50], 1)
    assert times.shape == (50, 4)
    assert 0 < np.std(np.log(times), axis=1).max() < 0.02
