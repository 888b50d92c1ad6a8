from __future__ import annotations

import gc
import subprocess
import sys

from fairmile.base.garbage import no_search


def test_nothing_is_searched_in_the_block_and_afterwards_as_before() -> None:
    with no_search():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with no_search():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_short_program_searches_rarely_and_leaves_nothing_to_search_at_its_end() -> None:
    program = "import atexit, gc; atexit.register(lambda: print(gc.get_threshold()[0], gc.get_freeze_count() > 0))"
    calls = "from fairmile.base.garbage import search_rarely; search_rarely()"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{program}\n{calls}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "100000 True\n"
