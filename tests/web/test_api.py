"""REST: the same objects and the same JSON as the Python calls, on a workspace with work of every kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import effort
import httpx
import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance
from sweep_making import wait_until

from fairmile.base.results import Result
from fairmile.workspace import Workspace

_FLOW = """
name: tides
steps:
  low: {shell: echo low > low.txt, outputs: low.txt}
  high: {shell: cat low.txt > high.txt, inputs: low.txt, outputs: high.txt}
"""


class Work(NamedTuple):
    """What the workspace holds."""

    space: Workspace
    run: str
    flow: str
    sweep: str
    folder: Path


@pytest.fixture(scope="session")
def work(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Work:
    """A run, a flow and a sweep."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "flow.yaml").write_text(_FLOW)
    run = workspace.runs.run(["echo", "level=1"], name="tide", folder=str(folder))
    definition, source, changes = workspace.sweeps.define(["echo", "level={x}"], params={"x": [1, 2]})
    sweep = workspace.sweeps.create(definition, source, **changes)
    workspace.sweeps.run(sweep)
    return Work(workspace, run.id, workspace.flows.run(folder / "flow.yaml").id, sweep.id, folder)


CALLS: dict[str, Callable[[Work], Result]] = {
    "/api/catalogs": lambda work: work.space.catalog.catalogs(),
    "/api/hubs?q=lake": lambda work: work.space.catalog.search_hubs("lake"),
    "/api/assets/mnist": lambda work: work.space.catalog.get("mnist"),
    "/api/assets/builtin/dataset/mnist@1.0": lambda work: work.space.catalog.get("builtin/dataset/mnist@1.0"),
    "/api/versions/mnist": lambda work: work.space.catalog.versions("mnist"),
    "/api/fair/cosmoflow": lambda work: work.space.catalog.fair("cosmoflow"),
    "/api/matches?dataset=mnist&limit=3": lambda work: work.space.catalog.match(dataset="mnist", limit=3),
    "/api/runs?name=tide": lambda work: work.space.runs.ls(name="tide"),
    "/api/runs/{run}": lambda work: work.space.runs.show(work.run),
    "/api/runs/{run}/output": lambda work: work.space.runs.output(work.run),
    "/api/runs/{run}/trace": lambda work: work.space.traces.analyze(work.run),
    "/api/compare?run={sweep}": lambda work: work.space.reports.evaluate(work.sweep),
    "/api/leaderboards/elapsed_s?limit=1": lambda work: work.space.reports.leaderboard("elapsed_s", n=1),
    "/api/sweeps": lambda work: work.space.sweeps.ls(),
    "/api/sweeps/{sweep}?best=elapsed_s": lambda work: work.space.sweeps.status(work.sweep, best="elapsed_s"),
    "/api/flows": lambda work: work.space.flows.ls(),
    "/api/flows/{flow}": lambda work: work.space.flows.status(work.flow),
    "/api/flows/{flow}/plan": lambda work: work.space.flows.plan(work.flow),
    "/api/flows/{flow}/picture": lambda work: work.space.flows.picture(work.flow),
    "/api/flows/{flow}/log?step=high": lambda work: work.space.flows.log(work.flow, "high"),
    "/workflows": lambda work: work.space.flows.ls(),
    "/workflow/{flow}": lambda work: work.space.flows.status(work.flow),
    "/workflow/{flow}/job/high": lambda work: work.space.flows.log(work.flow, "high"),
    "/api/systems": lambda work: work.space.systems.ls(),
    "/api/systems/jureca": lambda work: work.space.systems.show("jureca"),
    "/api/systems/deep/modules?software=ddp": lambda work: work.space.systems["deep"].modules("ddp"),
    "/api/jobs": lambda work: work.space.jobs.ls(),
    "/api/store": lambda work: work.space.store.ls(),
    "/api/store/pins": lambda work: work.space.store.pins(),
    "/api/benchmarks": lambda work: work.space.benchmarks.ls(),
    "/api/benchmarks/mnist": lambda work: work.space.benchmarks.show("mnist"),
}


def test_every_answer_is_the_result_of_the_call(client: httpx.Client, work: Work) -> None:
    for path, call in CALLS.items():
        answer = client.get(path.format(run=work.run, sweep=work.sweep, flow=work.flow))
        assert answer.status_code == 200, f"{path}: {answer.text}"
        assert answer.json() == json.loads(json.dumps(call(work).to_dict())), path


@pytest.mark.parametrize("path", ["/api/status", "/api/store/usage", "/api/store/pools"])
def test_answers_about_now_are_there_too(client: httpx.Client, work: Work, path: str) -> None:
    assert client.get(path).status_code == 200


def test_every_answer_is_as_the_description_says(client: httpx.Client, work: Work) -> None:
    document = client.get("/openapi.json").json()
    described = {(path, method) for path, methods in document["paths"].items() for method in methods}
    for path in CALLS:
        address = path.format(run=work.run, sweep=work.sweep, flow=work.flow)
        template, schema = _described(document, address.partition("?")[0])
        described.discard((template, "get"))
        jsonschema.validate(client.get(address).json(), {**schema, "components": document["components"]})
    assert {path for path, method in described if method == "get"} <= {
        *("/api/search", "/api/facets/{facet}", "/api/status", "/api/store/usage", "/api/store/pools"),
        *("/api/flows/{name}/changes", "/api/flows/{name}/graph"),
        *("/api/studies/{name}", "/api/jobs/{name}", "/api/jobs/{name}/log", "/api/systems/{name}/usage"),
        # With accounts: see test_accounts.py.
        *(
            "/api/access/audit",
            "/api/access/requests",
            "/api/access/assets/{name}",
            "/api/account",
            "/api/account/tokens",
        ),
        "/api/catalog/{kind}/{name}/{version}.jsonld",
        "/api/catalog/{kind}/{name}/{version}/files/{sha256}/{file}",
    }


def _described(document: dict[str, Any], path: str) -> tuple[str, dict[str, Any]]:
    """Return the template of a path and the schema of its answer: the most exact one that fits."""

    def fits(template: str) -> bool:
        parts, words = template.strip("/").split("/"), path.strip("/").split("/")
        is_open = parts[-1] == "{name}" and parts[:2][-1] in ("assets", "versions", "fair") and len(words) >= len(parts)
        return (len(parts) == len(words) or is_open) and all(
            part == word or part.startswith("{") for part, word in zip(parts, words, strict=False)
        )

    template = min(filter(fits, document["paths"]), key=lambda each: (each.count("{"), len(each)))
    answer = document["paths"][template]["get"]["responses"]["200"]
    return template, answer["content"]["application/json"]["schema"]


def test_a_script_is_made_and_an_old_one_brought_up_to_date(client: httpx.Client, workspace: Workspace) -> None:
    job = {"argv": ["python", "train.py"], "software": ["ddp"], "resources": {"nodes": 2, "account": "me"}}
    made = client.post("/api/systems/deep/script", json=job).json()
    assert "#SBATCH --nodes=2" in made["script"]
    text = (Path(__file__).parents[2] / "docs" / "examples" / "train.sh").read_text()
    answer = client.post("/api/scripts/evaluate", json={"text": text, "to": "jureca"})
    assert answer.json() == workspace.systems.evaluate(text, to="jureca").to_dict()


def test_a_job_is_submitted_shown_and_cancelled(client: httpx.Client, work: Work) -> None:
    answer = client.post("/api/jobs", json={"on": "laptop", "job": {"argv": ["echo", "high tide"], "name": "tide"}})
    assert answer.status_code == 201, answer.text
    job = answer.json()["id"]
    wait_until(lambda: client.get(f"/api/jobs/{job}").json()["state"] == "done")
    assert "high tide" in client.get(f"/api/jobs/{job}/log").text
    assert client.post(f"/api/jobs/{job}/cancel", params={"dry_run": True}).status_code == 200


def test_a_flow_is_started_and_followed(client: httpx.Client, work: Work) -> None:
    seen = client.get(f"/api/flows/{work.flow}/picture").json()["cursor"]
    (work.folder / "flow.yaml").write_text(_FLOW.replace("echo low", "echo lower"))
    answer = client.post(f"/api/flows/{work.flow}/start")
    assert answer.status_code == 202, answer.text
    wait_until(lambda: (work.folder / "high.txt").read_text() == "lower\n")
    wait_until(lambda: client.get(f"/api/flows/{work.flow}").json()["counts"] == {"done": 2})
    assert client.get(f"/api/flows/{work.flow}/changes", params={"since": seen}).json()["cursor"] != seen
    assert client.get(f"/api/flows/{work.flow}/graph").headers["content-type"] == "image/svg+xml"
    assert client.post(f"/api/flows/{work.flow}/cancel", params={"dry_run": True}).json()["runs"] == []


def test_a_flow_that_cannot_be_run_says_why(client: httpx.Client, work: Work) -> None:
    (work.folder / "flow.yaml").write_text(_FLOW.replace("shell: echo", "shel: echo"))
    answer = client.post(f"/workflow/run/{work.flow}")
    (work.folder / "flow.yaml").write_text(_FLOW)
    assert answer.status_code == 400
    assert "shel" in answer.json()["error"]["message"]


# Attacks


@pytest.fixture(scope="session")
def operations(client: httpx.Client) -> list[tuple[str, str]]:
    """Every route of the API: method and path."""
    paths = client.get("/openapi.json").json()["paths"]
    return [(method, path) for path, methods in paths.items() for method in methods]


HOSTILE = (
    "../../../etc/passwd",
    "/etc/passwd",
    "..",
    "\0",
    "-rf",
    "--help",
    "http://169.254.169.254/latest",
    "file:///etc/passwd",
    "' OR 1=1 --",
    "<script>alert(1)</script>",
    "{{7*7}}",
    "%s%n",
    "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    "a" * 3000,
    "(a+)+$",
    "last",
)


def test_no_name_reads_a_file_or_breaks_the_server(client: httpx.Client, operations: list[tuple[str, str]]) -> None:
    for method, path in operations:
        for text in HOSTILE[:: 4 if effort.quick else 1]:
            address = path
            while "{" in address:
                address = address[: address.index("{")] + quote(text, safe="") + address[address.index("}") + 1 :]
            answer = client.request(method, address, params={"q": text, "name": text, "run": text, "step": text})
            assert answer.status_code < 500, f"{method} {path} with {text!r}: {answer.text}"
            assert "root:" not in answer.text
            assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"argv": 1}', b"\xff\xfe", b"[" * 100_000, b'{"argv": ["a\\u0000b"]}', b"1e999"],
)
def test_no_body_breaks_the_server(client: httpx.Client, operations: list[tuple[str, str]], body: bytes) -> None:
    for method, path in operations:
        if method == "post":
            address = path.replace("{name}", "deep")
            answer = client.post(address, content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code < 500, f"{path} with {body[:20]!r}: {answer.text}"


def test_nothing_that_somebody_else_wrote_is_fetched_or_run(client: httpx.Client, work: Work) -> None:
    for name in ("http://127.0.0.1:1/x", "file:///etc/passwd", str(work.folder / "flow.yaml")):
        assert client.post(f"/api/fetch/{quote(name, safe='')}").status_code in (400, 404)
        assert client.post(f"/api/flows/{quote(name, safe='')}/start").status_code in (404, 422)
        body = {"target": name, "gpu": "h200"}
        assert client.post("/api/predict/memory", json=body).status_code in (400, 404)


def test_a_pattern_cannot_take_long(client: httpx.Client) -> None:
    """RE2 has no patterns of exponential time; what is too large for it is refused."""
    for pattern in ("(a+)+$", "(a|aa)+$", "(.*a){25}", "a{1000}{1000}"):
        assert client.get("/api/search", params={"regex": pattern}).status_code in (200, 400)
    assert client.get("/api/search", params={"q": "/(a+)+$/"}).status_code == 200


def test_whatever_changes_or_starts_something_needs_a_right(client: httpx.Client) -> None:
    harmless = {"make_script", "evaluate_script", "predict_memory", "predict_time", "predict_scaling"}
    paths = client.get("/openapi.json").json()["paths"]
    needs = {
        operation["operationId"]: operation["x-right"]
        for methods in paths.values()
        for method, operation in methods.items()
        if method != "get"
    }
    assert {name for name, right in needs.items() if right == "read"} == harmless


@pytest.fixture(scope="session")
def described(client: httpx.Client) -> Iterator[schemathesis.schemas.BaseSchema]:
    yield schemathesis.openapi.from_url(str(client.base_url.join("/openapi.json")))


@pytest.mark.parametrize("noun", ["catalog", "runs", "sweeps", "flows", "systems", "store", "predictions"])
def test_the_api_keeps_its_description(described: schemathesis.schemas.BaseSchema, noun: str) -> None:
    for operation in described.include(tag=noun).get_all_operations():
        assert isinstance(operation, Ok)

        @given(case=operation.ok().as_strategy())
        @settings(max_examples=2 if effort.quick else 12, deadline=None, suppress_health_check=list(HealthCheck))
        def holds(case: schemathesis.Case) -> None:
            # Not every text is a search, not every name a system: what is refused with a sentence is described, too.
            case.call_and_validate(excluded_checks=[positive_data_acceptance])

        holds()
