"""What the committees ask for, read from `rules.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.words import did_you_mean
from fairmile.base.yaml import load

TARGETS = ("mlperf-hpc", "mlcommons-science")
AVAILABILITIES = ("research", "onprem", "cloud", "preview")


@dataclass(frozen=True)
class BenchmarkRule:
    """One benchmark of a committee; sizes of the full data set are None where the rules give none."""

    name: str
    runs: int
    train_samples: int | None = None
    eval_samples: int | None = None


@dataclass(frozen=True)
class Rules:
    """The rules of one committee; `usage` and `ruleset` are what its checkers call them."""

    target: str
    usage: str
    ruleset: str
    divisions: tuple[str, ...]
    source: str
    benchmarks: Mapping[str, BenchmarkRule]

    def benchmark(self, name: str, run: str) -> BenchmarkRule:
        """Return the rule for the benchmark of a run; UsageError lists those that can be submitted."""
        if name not in self.benchmarks:
            known = ", ".join(dict.fromkeys(each.name for each in self.benchmarks.values()))
            near = did_you_mean(name, self.benchmarks)
            raise UsageError(
                f"run {run}: {name} is not a benchmark of {self.target}", hint=near or f"{self.target} takes {known}"
            )
        return self.benchmarks[name]


@cache
def rules_for(target: str) -> Rules:
    """Return the rules of a committee."""
    document: Mapping[str, Any] = load(Path(__file__).with_name("rules.yaml").read_text(encoding="utf-8"))
    if target not in document:
        raise UsageError(f"no committee named {target!r}", hint=did_you_mean(target, document) or "")
    rules = document[target]
    benchmarks = {name: BenchmarkRule(**{"name": name, **rule}) for name, rule in rules["benchmarks"].items()}
    return Rules(target, rules["usage"], str(rules["ruleset"]), tuple(rules["divisions"]), rules["source"], benchmarks)
