"""The lessons on the site have empty exercises, whether they were built or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairmile.course.lessons import find_lesson

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("is_built", [False, True])
def test_pages_of_lessons_have_no_solutions(is_built: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    pytest.importorskip("myst_parser", reason="needs pip install 'fairmile[docs]'")
    from from_code import course

    monkeypatch.setattr(course, "BUILT", tmp_path)
    if is_built:
        notebook = find_lesson(2).solved()
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "tide"}]
        (tmp_path / "02-run.ipynb").write_text(json.dumps(notebook))
    page = course.course_pages()["course/02-run.md"]
    assert "# 2 First run and rerun" in page and "```python\nimport fairmile as fm" in page
    assert ("built without outputs: run `make course`" in page) is not is_built
    assert "better = ..." in page and "better = fm.run(" not in page and "code-cell" not in page
    assert ("tide" in page.partition("## Exercises")[0].replace("tides", "")) is is_built
    assert "\ntide\n" not in page.partition("## Exercises")[2].partition("## Key points")[0]
