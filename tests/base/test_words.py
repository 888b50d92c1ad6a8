from __future__ import annotations

import random
import string

from cases import for_each
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base.words import Suggestions, closest, did_you_mean, slug

SCHEDULERS = ["local", "slurm", "pbs", "lsf", "flux"]


def test_a_transposed_word_finds_its_neighbour() -> None:
    assert closest("slrum", SCHEDULERS)[0] == "slurm"


def test_case_is_ignored_and_the_spelling_of_the_candidate_is_kept() -> None:
    assert closest("COSMOFLW", ["CosmoFlow", "deepcam"]) == ["CosmoFlow"]


def test_nothing_near_gives_nothing() -> None:
    assert closest("zzzz", SCHEDULERS) == []
    assert did_you_mean("zzzz", SCHEDULERS) == ""


def test_thousands_of_unknown_words_are_not_compared() -> None:
    suggest = Suggestions()
    hints = [suggest("slrum", SCHEDULERS) for _ in range(16_000)]
    assert hints[0] == "did you mean 'slurm'?"
    assert hints[-1] == ""
    assert closest("", SCHEDULERS) == []


def test_did_you_mean_is_one_question() -> None:
    assert did_you_mean("slrum", SCHEDULERS) == "did you mean 'slurm'?"


def test_the_count_is_bounded_and_the_best_comes_first() -> None:
    assert closest("resnet-50", ["resnet-18", "resnet-51", "resnet-50", "resnet-34"], 2) == ["resnet-50", "resnet-51"]


@for_each("typo", ["cosmoflwo-v7", "cosmoflow-v", "cosmflow-v7", "Cosmoflow_v7"])
def test_the_target_is_found_among_fifty_thousand_names(typo: str) -> None:
    rng = random.Random(7)
    names = ["".join(rng.choices(string.ascii_lowercase + "-", k=rng.randint(4, 30))) for _ in range(50_000)]
    assert closest(typo, [*names, "cosmoflow-v7"])[0] == "cosmoflow-v7"


def test_the_target_is_found_among_thousands_that_look_alike() -> None:
    names = [f"simulation-run-{i:05d}" for i in range(20_000)]
    assert "simulation-run-01234" in closest("simulatoin-run-01234", names)


def test_the_target_is_found_among_thousands_of_long_names_that_share_most_of_their_letters() -> None:
    names = [f"Hub/Dataset/Group-{i % 500}/a-rather-long-name-of-a-data-set-{i:06d}@2024.1" for i in range(20_000)]
    assert closest("hub/dataset/group-17/a-rather-logn-name-of-a-data-set-012017@2024.1", names)[0] == names[12017]


def test_a_word_that_lacks_what_tells_thousands_of_names_apart_still_finds_some() -> None:
    names = [f"catalog/dataset/some-name-{i:05d}@1.0" for i in range(20_000)]
    found = closest("catalog/dataset/some-nmae@1.0", names)
    assert len(found) == 3
    assert set(found) <= set(names)


@for_each(
    "text, name",
    [
        ("Cosmo Flow", "cosmo-flow"),
        ("a - b", "a-b"),
        ("a--b", "a--b"),
        ("v1.0_rc-2", "v1.0_rc-2"),
        ("../../etc/passwd", "etc-passwd"),
        ("ﬁne ²", "fine-2"),
        ("naïve", "naive"),
        ("--rm -rf", "rm-rf"),
        ("Hello!", "hello"),
        ("", "unnamed"),
        ("...", "unnamed"),
        ("日本", "cf2abf0c"),
        ("データ v2", "v2-d0a15713"),
    ],
)
def test_a_slug_is_safe_in_paths_and_addresses(text: str, name: str) -> None:
    assert slug(text) == name


def test_a_slug_may_keep_its_case() -> None:
    assert slug("ResNet 50", keep_case=True) == "ResNet-50"


@given(st.text())
def test_a_slug_is_short_never_empty_and_its_own_slug(text: str) -> None:
    name = slug(text)
    assert 0 < len(name.encode()) <= 120
    assert set(name) <= set(string.ascii_lowercase + string.digits + "._-")
    assert name[0] not in ".-"
    assert slug(name) == name


def test_long_names_that_differ_only_at_their_end_get_different_slugs() -> None:
    one, other = slug("a" * 300 + "1"), slug("a" * 300 + "2")
    assert one != other
    assert len(one) <= 120
