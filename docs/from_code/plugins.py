"""The kinds of plug-ins and what is there of each."""

from __future__ import annotations

from fairmile.base.registry import Registry
from fairmile.catalog.exchange import READERS, WRITERS
from fairmile.envs.containers import RUNTIMES
from fairmile.jobs.schedulers import SCHEDULERS
from fairmile.meter.figures import LOGS
from fairmile.meter.sources import SOURCES
from fairmile.resolve import RESOLVERS
from fairmile.runs.exchange import EXCHANGES
from fairmile.runs.prediction import PREDICTORS
from fairmile.sweeps.files import DIALECTS
from fairmile.sweeps.tuning.curves import METHODS
from fairmile.sweeps.tuning.engine import ENGINES
from fairmile.traces.reading import FORMATS
from fairmile.transfer.fetchers import FETCHERS
from from_code.markdown import code, codes, page, table

_REGISTRIES: tuple[Registry, ...] = (  # type: ignore[type-arg]
    *(FETCHERS, READERS, WRITERS, SCHEDULERS, SOURCES, RUNTIMES, RESOLVERS, DIALECTS, ENGINES, METHODS),
    *(FORMATS, EXCHANGES, PREDICTORS, LOGS),
)


def plugin_page() -> str:
    rows = [
        (each.kind, code(each.group) if each.group else "in the package only", codes(each.names()))
        for each in _REGISTRIES
    ]
    return page(
        "Plug-ins",
        "Every kind of plug-in is one table of names. An installed package adds to a table with an entry point of its "
        "group; a name of the table wins over an entry point of the same name. `fairmile doctor` lists plug-ins that "
        "cannot be loaded, with the reason. [Extend](../extend/index.md) has an example of each kind.",
        table(["kind", "entry point group", "names"], rows),
    )
