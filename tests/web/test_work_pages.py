"""Job scripts, sweeps, flows, store, systems and leaderboards in the browser, with data of the size that users have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import web_data
from playwright.sync_api import Page, expect

from fairmile.web.topics.sweeps import SWEEP
from fairmile.workspace import Workspace

OLD = "#!/bin/bash\n#SBATCH --nodes=1\nsrun python old.py\n"


@pytest.fixture(scope="session")
def study(workspace: Workspace) -> str:
    return web_data.make_sweep(workspace, "tides-webaaa", 60, trials=True)


@pytest.fixture(scope="session")
def flow(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> str:
    return workspace.flows.run(web_data.write_flow(tmp_path_factory.mktemp("flow"))).id


def test_the_script_follows_the_fields_and_is_what_the_call_returns(page: Page, workspace: Workspace) -> None:
    page.goto("/scripts?system=jureca&software=ddp&account=me")
    expect(page.get_by_text("compared with its sources on")).to_have_count(2)  # beside the script, and in it
    page.get_by_label("Nodes").fill("2")
    expect(page.locator("#script")).to_contain_text("#SBATCH --nodes=2")
    page.get_by_label("Time").fill("90 parsecs")
    expect(page.locator("#result .note").filter(has_text="parsecs")).to_be_visible()
    page.get_by_label("Time").fill("90m")
    expect(page.locator("#script")).to_contain_text("#SBATCH --time=01:30:00")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert Path(download.value.path()).read_text() == page.locator("#script").text_content()


def test_another_system_has_its_own_partitions(page: Page) -> None:
    page.goto("/scripts?system=jureca&partition=dc-gpu&account=me")
    page.get_by_label("System").select_option("lumi")
    expect(page.get_by_label("Partition").locator("option", has_text="standard-g")).to_have_count(1)
    expect(page.get_by_label("Partition")).to_have_value("")


def test_an_old_script_is_compared_in_the_browser(page: Page) -> None:
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url + (request.post_data or "")))
    page.goto("/scripts?system=jureca&software=ddp&account=me&nodes=2")
    page.get_by_label("Paste it here").fill(OLD)
    expect(page.locator("#changes del").filter(has_text="--nodes=1")).to_have_count(1)
    expect(page.locator("#changes ins").filter(has_text="#SBATCH --nodes=2")).to_have_count(1)
    assert not any("old.py" in each for each in sent)


def test_the_page_of_a_study_draws_its_figures_when_they_are_seen(page: Page, study: str) -> None:
    page.goto("/sweeps")
    page.get_by_role("link", name=study).click()
    expect(page.get_by_role("heading", name="All trials")).to_be_visible()
    expect(page.get_by_text("20 pruned").first).to_be_visible()
    figure = page.locator("figure[data-figure]").filter(has_text="Parameters and loss")
    figure.scroll_into_view_if_needed()
    expect(figure.get_by_role("img")).to_be_visible()  # it is drawn now
    expect(page.get_by_role("link", name=f"{study}-00004")).to_have_attribute("href", f"/runs/{study}-00004")


def test_a_figure_has_an_address_that_nobody_guesses(client: httpx.Client) -> None:
    answer = client.get("/figures/0123456789abcdef")
    assert answer.status_code == 404
    assert "Load its page again" in answer.text


def test_a_step_leads_to_its_run(page: Page, flow: str, workspace: Workspace) -> None:
    page.goto("/flows")
    page.get_by_role("link", name=flow).click()
    expect(page.locator("#counts")).to_have_text("40 done")
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
    run = workspace.flows.status(flow).step("stage0-0").run
    expect(page.locator("#graph a").filter(has_text="stage0-0")).to_have_attribute("href", f"/runs/{run}")


def test_boxes_follow_the_flow(page: Page, flow: str, workspace: Workspace) -> None:
    page.goto(f"/flows/{flow}")
    picture = workspace.flows.picture(flow).to_dict()
    detail = {"layout": picture["layout"], "steps": [], "counts": {"running": 1, "done": 39}, "holder": "process 1"}
    box = {"id": 0, "svg": picture["boxes"][0]["svg"].replace("done", "running")}
    page.evaluate(
        "([topic, detail]) => document.dispatchEvent(new CustomEvent(topic, { detail }))",
        [f"fairmile:flow:{flow}", {**detail, "boxes": [box]}],
    )
    expect(page.locator('#graph g[data-box="0"]')).to_contain_text("running")
    expect(page.locator("#counts")).to_have_text("1 running, 39 done")
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_hidden()


def test_a_path_is_no_flow(client: httpx.Client) -> None:
    assert client.get("/flows/..%2Fsecret.yaml").status_code in (404, 422)
    assert client.get("/flows/nothing").status_code == 404


def test_a_leaderboard_shows_the_numbers_of_the_call(page: Page, study: str, workspace: Workspace) -> None:
    board = workspace.reports.leaderboard("loss", n=20)
    page.goto("/leaderboards?metric=loss")
    expect(page.locator("#board tbody tr").first).to_contain_text(board.table()[1][0][1])


def test_a_system_leads_to_its_script(page: Page) -> None:
    page.goto("/systems")
    page.get_by_role("link", name="jureca", exact=True).click()
    page.get_by_role("link", name="Make a job script").click()
    expect(page.get_by_label("System")).to_have_value("jureca")


@pytest.mark.parametrize("path", ["/scripts?system=jureca&account=me", "/systems/jureca", "/store", "/leaderboards"])
def test_the_pages_are_sound(page_is_sound: Callable[..., None], study: str, path: str) -> None:
    page_is_sound(path)


@pytest.mark.parametrize("noun", ["sweeps", "flows"])
def test_pages_of_user_size_are_sound(page_is_sound: Callable[..., None], study: str, flow: str, noun: str) -> None:
    page_is_sound(f"/{noun}/{study if noun == 'sweeps' else flow}")


def test_the_page_of_a_study_that_goes_on_says_how_far_it_is_and_when_there_is_more(
    page: Page, workspace: Workspace
) -> None:
    definition, source, rest = workspace.sweeps.define(["echo", "{x}"], params={"x": [1, 2, 3]}, name="ebbs")
    sweep = workspace.sweeps.create(definition, source, **rest).id
    page.goto(f"/sweeps/{sweep}")
    expect(page.locator("#states")).to_have_text("none started of 3")
    assert SWEEP.changes(workspace, sweep, None) == (None, "none started of 3")
    workspace.runs.run(["true"], name="ebbs", group=sweep, watch_s=0)
    text = SWEEP.changes(workspace, sweep, "none started of 3")[1]
    assert text == "1 done of 3"
    expect(page.locator("#states")).to_have_text(text)
    expect(page.get_by_role("link", name="Show newer results")).to_be_visible()
