"""A real browser for pages that are files: what a page holds after a script of the test has acted in it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom")


def program() -> str:
    """Return the browser; skip the test where there is none."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs the program chromium")
    return browser


def dump(address: str, *flags: str) -> str:
    """Return a page as it is after its scripts ran."""
    command = [program(), *_FLAGS, *flags, address]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def act(page: str, script: str, folder: Path, *flags: str) -> Any:
    """Return what `script`, the body of a function, returns in a page, whose policy stays in force."""
    whole = f"""
      (async () => {{ {script} }})().then((answer) => {{
        const text = document.createElement("pre");
        text.id = "answer";
        text.textContent = JSON.stringify(answer);
        document.body.replaceChildren(text);
      }});
    """
    own = base64.b64encode(hashlib.sha256(whole.encode()).digest()).decode()
    allowed = page.replace("script-src ", f"script-src 'sha256-{own}' ", 1)
    file = folder / "acted.html"
    file.write_text(allowed.replace("</body>", f"<script>{whole}</script></body>"))
    answer = re.search(r'<pre id="answer">(.*?)</pre>', dump(file.as_uri(), *flags), re.DOTALL)
    assert answer, "the script of the test did not run"
    return json.loads(unescape(answer[1]))
