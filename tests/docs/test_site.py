"""The documentation as a site: it builds without a warning, every link leads somewhere, and it works offline."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import browser
import pytest
from made_once import made_once

import fairmile
from fairmile.catalog.principles.facts import rules
from fairmile.systems.model import FileSystem, Gpu, LaunchRules, Partition, SchedulerRules, SoftwareSet, System
from fairmile.testing.schemas import commands
from fairmile.workspace import options

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.thorough  # the build reads every module and page
pytest.importorskip("sphinx", reason="needs pip install 'fairmile[docs]'")


@dataclass
class Page(HTMLParser):
    """What a page links to, loads, and can be linked at."""

    file: Path
    links: set[str] = field(default_factory=set)
    loads: set[str] = field(default_factory=set)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        elif tag == "link" and values.get("rel") not in ("index", "search", "next", "prev", "canonical"):
            self.loads.add(values.get("href", ""))
        self.loads |= {values[name] for name in ("src", "poster", "data", "action") if name in values}


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once for all workers of a test session."""

    def build(folder: Path) -> None:
        strict = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q"]
        folders = ["-d", str(folder / "cache"), str(ROOT / "docs"), str(folder / "html")]
        done = subprocess.run([*strict, *folders], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    return made_once(tmp_path_factory, "site", build) / "html"


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[Path, Page]:
    return {file: Page(file) for file in sorted(site.rglob("*.html"))}


def test_every_link_and_anchor_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    def broken(page: Page, link: str) -> bool:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            return False
        target = (page.file.parent / unquote(parts.path)).resolve() if parts.path else page.file
        anchor = unquote(parts.fragment)
        return not target.is_file() or bool(anchor and target in pages and anchor not in pages[target].anchors)

    assert len(pages) > 80
    assert [(page.file.name, link) for page in pages.values() for link in page.links if broken(page, link)] == []


def test_no_page_loads_anything_from_outside(site: Path, pages: dict[Path, Page]) -> None:
    outside = re.compile(r"(https?:)?//")
    assert [(page.file.name, each) for page in pages.values() for each in page.loads if outside.match(each)] == []
    styles = {file: file.read_text(encoding="utf-8") for file in site.rglob("*.css")}
    loaded = re.compile(r"(?:@import\s+|url\()\s*[\"']?(?:https?:)?//")
    assert styles and [file.name for file, text in styles.items() if loaded.search(text)] == []


def test_the_reference_has_every_name_command_option_and_setting(site: Path, pages: dict[Path, Page]) -> None:
    anchors = {anchor for page in pages.values() for anchor in page.anchors}
    nouns = {page.file.stem for page in pages.values() if page.file.parent.name == "python"}
    names = {name for name in fairmile.__all__ if name not in nouns}
    assert {f"fm.{name}" for name in names} - anchors == set()
    assert {"fm.runs.run", "fm.catalog.search", "fm.sweeps.create", "fairmile.runs.record.run.Run"} <= anchors
    assert {f"cmdoption-fairmile-{name.replace(' ', '-')}-json" for name, _ in commands()} - anchors == set()
    settings = (site / "reference" / "settings.html").read_text(encoding="utf-8")
    assert {key for key in options({"HOME": "/"}) if f">{key}<" not in settings} == set()
    called = pages[site / "reference" / "commands-and-calls.html"].anchors
    assert {name for name, _ in commands() if f"fairmile-{name.partition(' ')[0]}" not in called} == set()
    fields = (site / "reference" / "systems.html").read_text(encoding="utf-8")
    parts = (System, SchedulerRules, Partition, Gpu, FileSystem, SoftwareSet, LaunchRules)
    assert {name for part in parts for name in part.model_fields if f">{name}<" not in fields} == set()
    scored = (site / "reference" / "fair.html").read_text(encoding="utf-8")
    assert {
        each["id"] for each in (*rules()["tests"], *rules()["indicators"]) if f">{each['id']}<" not in scored
    } == set()


def found_by_search(site: Path, words: str) -> Iterator[str]:
    """Yield the pages that the site's own search finds, in a browser that reads them as files."""
    shown = browser.dump(f"{(site / 'search.html').as_uri()}?q={words}")
    for link in re.findall(r'<li[^>]*><a href="([^"]*)"', shown.partition('id="search-results"')[2]):
        yield link.partition("?")[0].partition("#")[0]


def test_search_works_without_a_server(site: Path) -> None:
    assert "tuning.html" in set(found_by_search(site, "asha"))
