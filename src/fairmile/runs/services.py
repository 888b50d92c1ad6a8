"""What runs are made of: the other nouns of a workspace, each opened when a run needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from fairmile.base.quick_dataclass import dataclass
from fairmile.meter.footprint import Supply

if TYPE_CHECKING:  # a run that needs none of them must not wait for their import
    from fairmile.catalog.assets import Assets
    from fairmile.catalog.catalog import Catalog
    from fairmile.envs.envs import Envs
    from fairmile.jobs.queue import Jobs
    from fairmile.runs.prediction import Predictor
    from fairmile.runs.record.values import Value
    from fairmile.store.store import Store
    from fairmile.transfer.remote import Context


@dataclass(frozen=True)
class Services:
    """The nouns of a workspace that runs use; each is asked for only when a run needs it."""

    catalog: Callable[[], Catalog]
    assets: Callable[[], Assets]
    store: Callable[[], Store]
    envs: Callable[[], Envs]
    jobs: Callable[[], Jobs]
    context: Callable[[], Context]  # what reaches out of this machine is given
    predictors: Mapping[str, Callable[[], Predictor]] = field(default_factory=dict)  # by the package of their programs
    # By the package of programs, what raises UsageError for parameters that a command would refuse.
    checks: Mapping[str, Callable[[Sequence[str], Mapping[str, Value]], None]] = field(default_factory=dict)
    supply: Supply = field(default_factory=Supply)  # where the energy of runs comes from
