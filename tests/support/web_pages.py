"""What every page of the server must be: readable by all, without errors, light, and no wider than a phone."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page

PATIENCE_MS = 300_000  # a machine may be busy; what hangs ends with its test
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}
MOST_SCRIPT_BYTES = 60_000  # compressed, on any page
# The rules of axe whose answer depends on colours and places, and not only on what the document says.
_OF_APPEARANCE = ("color-contrast", "link-in-text-block", "scrollable-region-focusable")


def new_context(browser: Browser, **options: Any) -> BrowserContext:
    """Return a fresh profile of a browser, which waits for clicks and pages as long as for what they show."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    return context


@cache
def _axe() -> str:
    return resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")


def page_is_sound(page: Page, address: str, *, most_bytes: int = 200_000) -> None:
    """Open a page, light and dark, wide and on a phone, and fail where anything about it is wrong."""
    problems: list[str] = []
    loaded: dict[str, bytes] = {}

    def note(message: Any) -> None:
        if message.type in ("error", "warning"):
            problems.append(f"console: {message.text}")

    def fail(error: Any) -> None:
        problems.append(f"script: {error}")

    def keep(response: Any) -> None:
        if response.status >= 400:
            problems.append(f"{response.status}: {response.url}")
        elif response.request.resource_type in ("script", "document"):
            loaded[response.url] = response.body()

    events = {"console": note, "pageerror": fail, "response": keep}
    for name, listener in events.items():
        page.on(name, listener)  # type: ignore[call-overload]
    try:
        for scheme, size, rules in (("light", DESKTOP, ()), ("dark", PHONE, _OF_APPEARANCE)):
            page.set_viewport_size(size)  # type: ignore[arg-type]
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(address, wait_until="load")
            problems += [f"{scheme}: {each}" for each in faults_of(page, rules)]
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{address} is {wide} pixels wider than a phone"
    finally:
        for name, listener in events.items():
            page.remove_listener(name, listener)
    assert problems == [], f"{address}: {problems}"
    own = urlsplit(page.url).path
    html = next(body for url, body in loaded.items() if urlsplit(url).path == own)
    scripts = sum(len(gzip.compress(body)) for url, body in loaded.items() if "/static/" in url)
    assert len(html) <= most_bytes, f"{address} has {len(html):,} bytes"
    assert scripts <= MOST_SCRIPT_BYTES, f"{address} loads {scripts:,} bytes of script"


def faults_of(page: Page, rules: Sequence[str] = ()) -> list[str]:
    """Return what axe finds wrong on a page as it is now, by those of its rules or by all."""
    page.evaluate(_axe())
    # What is shown of a fault is its element: to make selectors for all takes a third of the time.
    options = {"resultTypes": ["violations"], "selectors": False, "preload": False, "iframes": False}
    options |= {"runOnly": list(rules)} if rules else {}
    result = page.evaluate("options => axe.run(document, options)", options)
    faults = ((each["id"], node) for each in result["violations"] for node in each["nodes"])
    return [f"{rule}: {node['html']}: {node['failureSummary']}" for rule, node in faults]
