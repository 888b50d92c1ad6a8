"""Reports as pages: complete, self-contained, and safe whatever the runs say."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from run_making import make_run, metric_document, repeats, training_events

from fairmile.base.errors import NotFound, Unsupported, UsageError
from fairmile.reports import figures
from fairmile.reports.blocks import Cell, Note, Table, Text
from fairmile.reports.html import render
from fairmile.reports.leaderboard import leaderboard
from fairmile.reports.page import Report, leaderboard_blocks, report
from fairmile.runs.record.record import RunRecord
from fairmile.runs.record.run import Run

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
VOID = {"meta", "img", "br", "input", "link", "hr"}


class Page(HTMLParser):
    """Reads a page: its tags, the text of each, and whether all that opens closes."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.inside: dict[str, list[str]] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        for tag in self.open:
            self.inside.setdefault(tag, []).append(data)

    def text(self, tag: str = "main") -> str:
        return " ".join(" ".join(self.inside.get(tag, [])).split())


def trained(tmp_path: Path, id: str = "train-k3x9qa", **said: Any) -> Run:
    spans = {"epoch": {"count": 8, "total_s": 24.0, "mean_s": 3.0, "max_s": 3.3, "p50_s": 3.0, "p95_s": 3.2}}
    facts: dict[str, Any] = {
        "events": training_events(),
        "metrics": {"loss": metric_document(0.17, better="lower")},
        "prediction": {"elapsed_s": {"value": 30.0, "low": 25.0, "high": 36.0, "source": "4 earlier runs on n1"}},
        "elapsed_s": 31.5,
        "params": {"lr": 0.1},
        "output": "epoch 1\nall is well\n",
        "result": {"spans": spans},
    }
    return make_run(tmp_path, id, **(facts | said))


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a run that was trained, drawn once."""
    return report([trained(tmp_path_factory.mktemp("trained"))]).html()


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the figures where only words matter."""
    monkeypatch.setattr(figures, "find_spec", lambda name: None)


def read_page(html: str) -> Page:
    page = Page(html)
    assert page.open == []
    return page


def page_of(made: Report) -> Page:
    return read_page(made.html())


def test_the_report_of_a_run_tells_all_of_it(html: str) -> None:
    text = read_page(html).text()
    for word in (
        "train · train-k3x9qa", "done", "0.17", "31.5 s", "1,234 J", "3.0 GiB", "python train.py", "lr = 0.1",
        "commit 0123456789abcdef0123456789abcdef01234567 on main", "b" * 64, "c" * 64, "d" * 64, "NVIDIA H200",
        "mlx5_0 InfiniBand", "/data: ext4", "Debian 12", "3.11.7", "torch==2.4.0", "OMP_NUM_THREADS",
        "4 earlier runs on n1", "25 … 36 s", "+5 %", "device 0 (NVIDIA H200)", "±5 % says the vendor",
        "no powercap on this machine", "all is well", "fairmile rerun train-k3x9qa",
    ):  # fmt: skip
        assert word in text, word


@pytest.mark.usefixtures("undrawn")
def test_the_executed_command_stands_before_the_one_with_placeholders(tmp_path: Path) -> None:
    run = trained(tmp_path, spec={"argv": ["python", "train.py", "{lr}"]})
    run.record.argv = ["python", "train.py", "0.1"]
    text = page_of(report([run])).text()
    assert re.search(r"command python train\.py 0\.1 command as given python train\.py '\{lr\}'", text)


@pytest.mark.thorough
def test_phases_come_with_their_energy(html: str) -> None:
    text = read_page(html).text()
    assert re.search(r"epoch 8 24 s 3 s 3 s 3.2 s 3.3 s 76.2 % 7,\d{3} J", text)


def test_a_page_asks_nobody_for_anything(html: str) -> None:
    for tag, attributes in Page(html).tags:
        for name in ("src", "href", "action", "data", "xlink:href"):
            value = attributes.get(name) or ""
            assert value.startswith(("#", "data:")) or not value, (tag, name, value)
    assert not re.search(r"url\((?!#)", html)
    assert "@import" not in html


def test_only_our_own_script_may_run(html: str) -> None:
    page = read_page(html)
    policy = next(attributes["content"] or "" for tag, attributes in page.tags if "http-equiv" in attributes)
    script = "".join(page.inside["script"])
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


def test_names_outputs_and_reasons_are_only_text(tmp_path: Path) -> None:
    run = trained(
        tmp_path,
        "evil",
        state="failed",
        metrics={EVIL: 1.0},
        params={EVIL: EVIL},
        output=EVIL,
        tags=[EVIL],
        lock=[EVIL],
        inputs={EVIL: EVIL},
        result={
            "reason": EVIL,
            "spans": {EVIL: {"count": 1}},
            "energy": {"parts": [{"scope": EVIL}], "missing": {EVIL: EVIL}},
        },
        captured={"hardware": {"host": EVIL, "cpu": {"model": EVIL}}, "scheduler": {"name": EVIL}},
        events=[line | ({"log": {EVIL: 1.0}} if "log" in line else {}) for line in training_events()],
    )
    for made in (report([run]), report([run, trained(tmp_path, "b")])):
        page = page_of(made)
        assert [tag for tag, _ in page.tags].count("script") == 1
        assert "img" not in [tag for tag, _ in page.tags]
        assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
        assert EVIL in page.text()


@pytest.mark.usefixtures("undrawn")
def test_commands_in_sentences_stand_out_and_are_only_text() -> None:
    blocks = [Text("`a <b>` and `c"), Note("run `fairmile doctor`"), Table(("why",), [[Cell("try `a_b`")]])]
    html = render("page", blocks)
    assert "<p><code>a &lt;b&gt;</code> and `c</p>" in html
    assert "run <code>fairmile doctor</code>" in html
    assert "try <code>a_<wbr>b</code>" in html


def test_control_characters_and_half_letters_do_not_reach_the_page(tmp_path: Path) -> None:
    run = trained(tmp_path, params={"x": "a\x00\x1b\u202eb\ud800c"}, output="\x1b[31mred\x1b[0m\r\n 5 %\r 100 %\n")
    html = report([run]).html()
    html.encode()
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", html)
    assert "red\n 100 %" in html


@pytest.mark.thorough
def test_every_figure_can_be_taken_along(html: str) -> None:
    page = read_page(html)
    links = {a["download"]: a["href"] or "" for tag, a in page.tags if tag == "a" and "download" in a}
    assert list(links) == ["learning-curve.svg", "phases.svg", "prediction.svg"]
    for address in links.values():
        ElementTree.fromstring(base64.b64decode(address.removeprefix("data:image/svg+xml;base64,")))


@pytest.mark.thorough
def test_ids_are_unique_although_figures_are_alike(html: str) -> None:
    page = read_page(html)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = [each for _, a in page.tags for value in a.values() for each in re.findall(r"url\(#([^)]*)\)", value or "")]
    used += [(a.get("xlink:href") or "")[1:] for tag, a in page.tags if tag == "use"]
    assert used and set(used) <= set(ids)


@pytest.mark.thorough
def test_figures_take_the_colours_of_the_page(html: str) -> None:
    svg = re.search(r"<svg.*?</svg>", html, re.DOTALL)
    assert svg is not None
    assert "var(--ink)" in svg[0] and "var(--c0)" in svg[0]
    assert not re.search(r"#(?:0072b2|1f2328|ffffff)", svg[0])


@pytest.mark.thorough
def test_the_same_runs_give_the_same_bytes(html: str, tmp_path: Path) -> None:
    assert report([trained(tmp_path)]).html() == html


@pytest.mark.usefixtures("undrawn")
def test_a_failure_is_the_first_thing_told(tmp_path: Path) -> None:
    run = trained(
        tmp_path, state="failed", result={"reason": "out of memory", "exit_code": 137, "hint": "a smaller batch"}
    )
    text = page_of(report([run])).text()
    assert "This run failed: out of memory (exit code 137)." in text
    assert text.index("a smaller batch") < text.index("all is well") < text.index("Machine host")


@pytest.mark.parametrize(
    ("state", "words"),
    [("timeout", "ran out of time"), ("cancelled", "was cancelled"), ("interrupted", "was interrupted")],
)
def test_every_end_has_its_words(tmp_path: Path, state: str, words: str) -> None:
    assert f"This run {words}:" in page_of(report([make_run(tmp_path, state=state)])).text()


def test_a_metric_that_ended_as_nan_is_told_although_the_run_is_done(tmp_path: Path) -> None:
    page = report([make_run(tmp_path, metrics={"loss": "NaN", "error": 0.1})]).markdown()
    assert "> The last value of loss is NaN or infinite." in page


def test_no_value_is_called_the_best_where_no_direction_is_known(tmp_path: Path) -> None:
    lines = report([make_run(tmp_path, metrics={"norm": 72.2})]).markdown().splitlines()
    cells = next(line for line in lines if line.startswith("| norm | ") and line.count("|") == 10).split("|")
    assert [cells[2].strip(), cells[3].strip()] == ["72.2", ""]


def test_a_run_that_still_runs_is_reported_as_far_as_it_is_known(tmp_path: Path) -> None:
    text = page_of(report([make_run(tmp_path, state="running")])).text()
    assert "This run is running" in text


def test_a_record_with_next_to_nothing_is_still_reported(tmp_path: Path) -> None:
    document = {"format": "fairmile-run/1", "id": "x", "created": 0.0, "spec": {"name": "x", "argv": ["true"]}}
    document |= {"state": "interrupted", "captured": {}, "result": None}
    run = Run(RunRecord.from_dict(document), tmp_path / "gone")
    assert "fairmile rerun x" in page_of(report([run])).text()
    assert "fairmile rerun x" in report([run]).markdown()


def test_a_packed_run_says_what_is_left_out(tmp_path: Path) -> None:
    run = trained(tmp_path)
    packed = Run(run.record, run.folder, packed=True)
    made = report([packed])
    assert "fairmile runs unpack train-k3x9qa" in page_of(made).text()
    assert [picture.name for picture in made.pictures] == ["prediction"]


@pytest.mark.usefixtures("undrawn")
def test_long_output_is_shown_from_its_end(tmp_path: Path) -> None:
    run = trained(tmp_path, output="".join(f"line {n}\n" for n in range(100_000)))
    text = page_of(report([run])).text("pre")
    assert "line 99999" in text and "line 99940" in text
    assert "line 99000" not in text


def test_a_line_of_ten_megabytes_does_not_fill_the_page(tmp_path: Path) -> None:
    assert len(report([trained(tmp_path, output="x" * 10_000_000)]).html()) < 400_000


def test_several_runs_are_compared_ranked_and_listed(tmp_path: Path) -> None:
    runs = [
        *repeats(tmp_path, "base", {"loss": [1.0, 1.1, 0.9]}, params={"lr": 0.1}),
        *repeats(tmp_path, "wide", {"loss": [2.0, 2.1, 1.9]}, params={"lr": 0.2}),
        make_run(tmp_path, "bad", name="wide", group="wide", params={"lr": 0.2}, state="failed", metrics={"loss": 9.0}),
    ]
    made = report(runs)
    text = page_of(made).text()
    for word in (
        "7 runs in 2 groups", "6 done, 1 failed", "Comparison", "worse", "param lr 0.1 0.2", "Leaderboard by loss",
        "base-000000", "What failed", "the program ended with exit code 1", "fairmile rerun bad",
        "wide: 1 of 4 runs do not count (1 failed)",
    ):  # fmt: skip
        assert word in text, word
    assert made.to_dict()["leaderboard"]["places"][0]["label"] == "base"


def test_the_list_of_runs_has_no_empty_columns(tmp_path: Path) -> None:
    runs = repeats(tmp_path, "a", {"loss": [1.0, 1.1], "energy_j": [None, None]})
    lines = report(runs).markdown().splitlines()
    heading = next(line for line in lines if line.startswith("| run |"))
    assert heading == "| run | state | system | loss | elapsed time | largest memory | created (UTC) |"


@pytest.mark.usefixtures("undrawn")
def test_repeats_of_one_thing_get_their_mean_and_spread(tmp_path: Path) -> None:
    text = page_of(report(repeats(tmp_path, "base", {"loss": [1.0, 2.0, 3.0]}))).text()
    assert "Over the repeats" in text
    assert "loss 2 1 50 %" in text
    assert "Leaderboard" not in text


def test_a_sweep_of_many_points_is_ranked_and_not_compared_with_its_first(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"t-{n}", group="s", params={"lr": n}, metrics={"loss": float(n)}) for n in range(30)]
    text = page_of(report(runs)).text()
    assert "The first 20 of 30." in text
    assert "Comparison" not in text
    assert "Distribution of loss" in text


def test_curves_over_repeats_are_drawn_as_bands(tmp_path: Path) -> None:
    runs = [trained(tmp_path, f"{name}-{n}", name=name, group=name) for name in ("a", "b") for n in range(3)]
    assert [picture.name for picture in report(runs).pictures] == ["comparison", "band-loss"]


def test_of_many_groups_the_best_are_drawn(tmp_path: Path) -> None:
    runs = [
        make_run(
            tmp_path,
            f"run-{at}",
            name=f"n{at}",
            group=f"n{at}",
            events=training_events(final=1.0 - at / 100, epochs=3),
            metrics={"loss": metric_document(1.0 - at / 100, better="lower")},
        )
        for at in range(12)
    ]
    band = next(each for each in report(runs).pictures if each.name == "band-loss").svg().decode()
    assert ">n11<" in band
    assert ">n0<" not in band


def test_no_runs_are_no_report() -> None:
    with pytest.raises(UsageError, match="no run to report"):
        report([])


def test_without_matplotlib_the_rest_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    made = report([trained(tmp_path)])
    assert made.pictures == [] and made.lacks_figures
    page = page_of(made).text()
    assert page.index("pip install 'fairmile[plots]'") < page.rindex("Provenance"), "said above the first section"
    with pytest.raises(Unsupported, match="figures need matplotlib"):
        made.write(tmp_path / "figures", "svg")


def test_markdown_says_the_same(tmp_path: Path) -> None:
    text = report([trained(tmp_path)]).markdown("figures")
    image = "![Phases and power](figures/phases.svg)"
    for word in (
        "# train · train-k3x9qa (done)",
        "## Metrics",
        "| loss | 0.17 |",
        image,
        "fairmile rerun train-k3x9qa",
    ):
        assert word in text, word


def test_markdown_can_hold_its_figures(tmp_path: Path) -> None:
    assert "](data:image/svg+xml;base64," in report([trained(tmp_path)]).markdown()


def test_markdown_shows_text_as_text(tmp_path: Path) -> None:
    parser = pytest.importorskip("markdown_it")
    evil = f"*a* _b_ `c` [d](http://x) | e\n# f {EVIL}"
    run = trained(tmp_path, metrics={evil: 1.0}, params={evil: evil}, output="```\n</pre>" + EVIL)
    html = parser.MarkdownIt("commonmark").enable("table").render(report([run]).markdown("f"))
    page = Page(html)
    assert page.open == []
    tags = [tag for tag, _ in page.tags]
    assert not {"script", "em", "a"} & set(tags)
    assert (
        page.text("table").count("*a* _b_ `c` [d](http://x) | e # f") == 2
    )  # among the numbers that matter, and the metrics
    assert all(attributes["src"] in ("f/learning-curve.svg", "f/phases.svg", "f/prediction.svg")
               for tag, attributes in page.tags if tag == "img")  # fmt: skip


def test_files_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    made = report([trained(tmp_path)])
    names = ["learning-curve", "phases", "prediction"]
    assert made.write(tmp_path / "r.html") == [tmp_path / "r.html"]
    files = made.write(tmp_path / "r.md", "md")
    assert files == [tmp_path / "r.md", *(tmp_path / "r-figures" / f"{name}.svg" for name in names)]
    assert made.write(tmp_path / "p", "png") == [tmp_path / "p" / f"{name}.png" for name in names]
    assert all(file.stat().st_size > 1000 for file in [tmp_path / "r.html", *files])


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    made = report([trained(tmp_path)])
    assert made.write(tmp_path / "r.md", "md", dry_run=True)[0] == tmp_path / "r.md"
    assert not (tmp_path / "r.md").exists()


def test_figures_of_runs_that_logged_nothing_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nothing to draw"):
        report([make_run(tmp_path)]).write(tmp_path / "p", "svg")


def test_a_report_is_plain_data(tmp_path: Path) -> None:
    run = trained(tmp_path, metrics={"loss": "NaN"})
    document = json.loads(json.dumps(report([run]).to_dict(), allow_nan=False))
    assert document["measures"]["loss"]["value"] == "NaN"
    assert document["prediction"]["elapsed_s"]["measured"] == 31.5
    assert document["rerun"] == "fairmile rerun train-k3x9qa"


def test_an_interval_goes_below_its_value_on_a_phone(tmp_path: Path) -> None:
    board = leaderboard(repeats(tmp_path, "a", {"loss": [0.1, 0.2]}), "loss")
    html = render("Board", list(leaderboard_blocks(board)))
    assert '0.15 <span class="range">(0.1 to 0.2)</span>' in html
    assert ".range { display: block;" in html
