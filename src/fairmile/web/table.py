"""What the server serves: modules with routes, entries of the menu, live topics. One line each."""

from __future__ import annotations

# Modules with a `routes`, imported when the server starts; those that are asked most often first.
MODULES = (
    "fairmile.web.api.search",
    "fairmile.web.api.flows",
    "fairmile.web.api.predict",
    "fairmile.web.api.runs",
    "fairmile.web.api.store",
    "fairmile.web.api.sweeps",
    "fairmile.web.api.systems",
    "fairmile.web.pages.search",
    "fairmile.web.pages.runs",
    "fairmile.web.pages.assets",
    "fairmile.web.pages.about_api",
    "fairmile.web.pages.figures",
    "fairmile.web.pages.sweeps",
    "fairmile.web.pages.scripts",
    "fairmile.web.pages.predict",
    "fairmile.web.pages.traces",
    "fairmile.web.pages.systems",
    "fairmile.web.pages.store",
    "fairmile.web.pages.leaderboards",
    "fairmile.web.pages.flows",
    "fairmile.web.api.access",
    "fairmile.web.api.shared_catalog",
    "fairmile.web.pages.account",
    "fairmile.web.pages.access",
)

# Routes that are asked most often, with parameters of one value each in the query alone: see `shortcuts.py`.
SHORTCUTS = {"/api/search": "fairmile.web.api.search"}

# The menu, in its order; an entry whose page is not served is not shown.
NAVIGATION = (
    ("Search", "/"),
    ("Runs", "/runs"),
    ("Sweeps", "/sweeps"),
    ("Flows", "/flows"),
    ("Job scripts", "/scripts"),
    ("Predict", "/predict"),
    ("Traces", "/traces"),
    ("Store", "/store"),
    ("Systems", "/systems"),
    ("Leaderboards", "/leaderboards"),
    ("Account", "/account"),
)

# What a page can follow: the name of a topic, and the `Topic` as "module:attribute".
TOPICS: dict[str, str] = {
    "flow": "fairmile.web.topics.flows:FLOW",
    "run": "fairmile.web.topics.runs:RUN",
    "runs": "fairmile.web.topics.runs:RUNS",
    "sweep": "fairmile.web.topics.sweeps:SWEEP",
}
