"""Runs sent to platforms: against servers on this machine that answer as the documents of the platforms say."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import openml_server
import pytest
import zenodo_server
from clearml_server import KEY, SECRET, clearml_server
from faults import BREAK, Fault, Recorded, serving
from run_documents import lay_run, trivial

from fairmile.base.commands import Here
from fairmile.base.errors import Conflict, FairmileError, SystemFailure, Transient, UsageError
from fairmile.runs.exchange import EXCHANGES
from fairmile.runs.record.record import RunRecord
from fairmile.runs.record.run import Run
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.remote import Context
from fairmile.transfer.settings import HUBS, Settings


class Platform(NamedTuple):
    """A server that takes runs, how a user reaches it, and the request after which a first upload may break."""

    name: str
    server: Any
    context: Context
    first: str
    last: str
    secret: str

    def upload(self, run: Run, **options: Any) -> list[str]:
        sent: list[str] = EXCHANGES[self.name].upload(run, self.context, **options)  # type: ignore[attr-defined]
        return sent

    def held(self) -> int:
        """Return how many runs the server has."""
        counts = {"zenodo": "depositions", "clearml": "tasks", "openml": "runs"}
        return len(getattr(self.server, counts[self.name]))


def _context(environ: Mapping[str, str], hub: str = "") -> Context:
    settings = Settings(retries=2, stall_s=5.0, hubs={**HUBS, "zenodo": hub} if hub else HUBS)
    return Context(environ, Here(), Credentials(environ), settings)


@contextmanager
def _zenodo(home: Path) -> Iterator[Platform]:
    server = zenodo_server.Zenodo()
    with serving(server) as address:
        context = _context({"ZENODO_TOKEN": zenodo_server.TOKEN, "HOME": str(home)}, address)
        yield Platform("zenodo", server, context, "POST /api/deposit", "PUT /api/files", zenodo_server.TOKEN)


@contextmanager
def _clearml(home: Path) -> Iterator[Platform]:
    with clearml_server(strict=True) as server:
        # As clearml-init writes it.
        lines = [f"{name}_server: {server.address}" for name in ("web", "api", "files")]
        keys = f'credentials {{"access_key" = "{KEY}", "secret_key" = "{SECRET}"}}'
        (home / "clearml.conf").write_text("\n".join(["api {", "# web_server: no", *lines, keys, "}"]))
        context = _context({"HOME": str(home)})
        yield Platform("clearml", server, context, "tasks.create", "POST /$", SECRET)


@contextmanager
def _openml(home: Path) -> Iterator[Platform]:
    openml = pytest.importorskip("openml", reason="openml is not installed")
    server = openml_server.OpenML()
    with serving(server) as address, pytest.MonkeyPatch.context() as patch:
        patch.setattr(openml.config, "server", f"{address}/api/v1/xml")
        patch.setattr(openml.config, "apikey", openml_server.KEY)
        yield Platform("openml", server, _context({"HOME": str(home)}), "POST", "xml/run/$", openml_server.KEY)


_PLATFORMS = {"zenodo": _zenodo, "clearml": _clearml, "openml": _openml}


@pytest.fixture(params=["zenodo", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("clearml", "openml"))])
def platform(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Platform]:
    with _PLATFORMS[request.param](tmp_path) as made:
        yield made


@pytest.fixture
def run(run: Run) -> Run:
    """A training with predictions for a task of OpenML."""
    run.tags.append("openml-task-59")
    text = "@RELATION p\n@ATTRIBUTE repeat NUMERIC\n@ATTRIBUTE prediction {a,b}\n@DATA\n0,a\n"
    (run.folder / "work" / "predictions.arff").write_text(text)
    return run


def test_a_dry_run_says_what_would_leave_and_asks_nobody(platform: Platform, run: Run) -> None:
    lines = platform.upload(run, dry_run=True)
    assert not platform.server.requests
    text = "\n".join(lines)
    assert "train.py" in text and "loss" in text and platform.secret not in text
    assert any("predictions.arff (7" in line for line in lines), "files have sizes"


def test_a_run_is_sent_once(platform: Platform, run: Run) -> None:
    (address,) = platform.upload(run)
    assert address.startswith(platform.server.address) and platform.held() == 1
    if platform.name == "zenodo":
        assert platform.upload(run) == [address], "the draft is there already"
        assert len(platform.server.lines("PUT")) == 1, "and has its file"
    else:
        with pytest.raises(Conflict, match="already holds run train-k3x9qa as"):
            platform.upload(run)
    assert platform.held() == 1


@pytest.mark.thorough
def test_an_upload_that_broke_goes_on_with_what_is_there(platform: Platform, run: Run) -> None:
    platform.server.faults.append(Fault(platform.last, BREAK, times=9))
    with pytest.raises(Transient) as error:
        platform.upload(run)
    platform.server.faults.clear()
    assert "run the command again" in str(error.value.hint)
    platform.upload(run)
    assert platform.held() == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("status", "headers", "kind", "hint"),
    [
        (401, {}, SystemFailure, "ZENODO_TOKEN|clearml-init|openml configure"),
        (403, {}, SystemFailure, "ZENODO_TOKEN|clearml-init|openml configure"),
        (413, {}, SystemFailure, "no file of this size"),
        (429, {"Retry-After": "3600"}, Transient, "wait 3600 s"),
        (500, {}, Transient, "again"),
        (503, {"Retry-After": "0"}, Transient, "again"),
        (BREAK, {}, Transient, "again"),
    ],
)
def test_a_refusal_is_one_sentence_without_the_key(
    platform: Platform, run: Run, status: int, headers: dict[str, str], kind: type[FairmileError], hint: str
) -> None:
    body = f'{{"message": "not with {platform.secret}"}}'.encode()
    platform.server.faults.append(Fault(platform.last, status, headers, body, times=9))
    with pytest.raises(kind) as error:
        platform.upload(run)
    assert "\n" not in error.value.message and platform.secret not in error.value.message
    assert str(status or "connection") in error.value.message
    assert re.search(hint, str(error.value.hint))


def test_a_server_that_asks_to_wait_is_asked_again(platform: Platform, run: Run) -> None:
    platform.server.faults.append(Fault(platform.first, 429, {"Retry-After": "0"}))
    platform.upload(run)
    assert platform.held() == 1


def test_without_a_key_nothing_is_asked(platform: Platform, run: Run, tmp_path: Path) -> None:
    (tmp_path / "clearml.conf").unlink(missing_ok=True)
    empty = _context({"HOME": str(tmp_path)}, platform.server.address)
    with pytest.MonkeyPatch.context() as patch:
        if platform.name == "openml":
            patch.setattr("openml.config.apikey", "")
        with pytest.raises(UsageError, match=r"no (token|key) for"):
            platform._replace(context=empty).upload(run)
    assert not platform.server.requests


# Zenodo


@pytest.fixture
def zenodo(tmp_path: Path) -> Iterator[Platform]:
    with _zenodo(tmp_path) as made:
        yield made


def test_a_deposition_is_a_draft_until_it_is_published(zenodo: Platform, run: Run) -> None:
    (draft,) = zenodo.upload(run)
    assert "not published" in draft and not zenodo.server.depositions[1000]["submitted"]
    assert zenodo.upload(run, publish=True) == [f"{zenodo.server.address}/records/1000 (10.5072/zenodo.1000)"]
    with pytest.raises(Conflict, match=r"as 10\.5072/zenodo\.1000"):
        zenodo.upload(run, publish=True)
    assert len(zenodo.server.depositions) == 1


def test_what_its_owner_changed_in_a_draft_stays(zenodo: Platform, run: Run) -> None:
    zenodo.upload(run)
    zenodo.server.depositions[1000]["metadata"]["title"] = "Tides"
    zenodo.upload(run, publish=True)
    assert zenodo.server.depositions[1000]["metadata"]["title"] == "Tides"


def test_the_deposited_crate_is_the_run(zenodo: Platform, run: Run, tmp_path: Path) -> None:
    zenodo.upload(run)
    (data,) = zenodo.server.buckets["bucket-1000"].values()
    assert "work/predictions.arff" in zipfile.ZipFile(BytesIO(data)).namelist()
    metadata = zenodo.server.depositions[1000]["metadata"]
    assert metadata["creators"] == [{"name": "Ada Løvelace"}] and "fairmile-run:train-k3x9qa" in metadata["keywords"]
    (tmp_path / "got").mkdir()
    (tmp_path / "got" / "train-k3x9qa.crate.zip").write_bytes(data)
    [imported] = EXCHANGES["zenodo"].read(tmp_path / "got")
    assert imported.id == run.id


@pytest.mark.thorough
def test_a_draft_is_found_behind_many_others(zenodo: Platform, run: Run) -> None:
    zenodo.upload(run)
    for number in range(2000, 2120):
        zenodo.server.depositions[number] = {"id": number, "metadata": {"keywords": ["mine"]}, "submitted": False}
        zenodo.server.buckets[f"bucket-{number}"] = {}
    zenodo.upload(run)
    assert len(zenodo.server.lines("POST")) == 1


def test_a_token_goes_to_no_other_server(zenodo: Platform, run: Run) -> None:
    other = Recorded()
    with serving(other) as address:
        shown: Callable[..., dict[str, Any]] = zenodo.server._shown
        elsewhere = lambda number, **more: shown(number, **more) | {"links": {"bucket": address, "publish": address}}  # noqa: E731
        zenodo.server._shown = elsewhere
        with pytest.raises(SystemFailure, match="leads to another server"):
            zenodo.upload(run)
    assert not other.requests


def test_a_run_of_nobody_is_not_deposited(zenodo: Platform, tmp_path: Path) -> None:
    document = trivial()
    with pytest.raises(UsageError, match="does not say whose it is"):
        zenodo.upload(Run(RunRecord.from_dict(document), lay_run(tmp_path / "other", document)))


# ClearML, OpenML


@pytest.mark.thorough
def test_a_task_has_the_parameters_values_and_files_of_its_run(run: Run, tmp_path: Path) -> None:
    with _clearml(tmp_path) as clearml:
        clearml.upload(run)
        (task,) = clearml.server.tasks
        events = [each for body in clearml.server.told("events.add_batch") for each in body]
        (artifacts,) = clearml.server.told("tasks.add_or_update_artifacts")
    assert task["status"] == "completed" and task["hyperparams"]["General"]["lr"]["value"] == "0.1"
    assert [each["value"] for each in events if each.get("metric") == "loss"] == [2.0, 0.5]
    names = {each["key"]: each["uri"] for each in artifacts["artifacts"]}
    assert {"run.json", "work/predictions.arff"} <= set(names)
    assert len(clearml.server.uploaded) == len(names)


@pytest.mark.thorough
def test_a_flow_that_openml_has_is_used_again(run: Run, tmp_path: Path) -> None:
    with _openml(tmp_path) as openml:
        openml.upload(run)
        run.record.id = "train-second"
        openml.upload(run)
        assert (len(openml.server.flows), len(openml.server.runs)) == (1, 2)
        sent = openml.server.runs[0]
        assert b"<oml:task_id>59<" in sent["description"] and b"<oml:flow_id>1<" in sent["description"]
        assert sent["predictions"].endswith(b"0,a\n")


@pytest.mark.thorough
def test_openml_takes_no_run_without_task_or_predictions(run: Run, tmp_path: Path) -> None:
    with _openml(tmp_path) as openml:
        (run.folder / "work" / "predictions.arff").unlink()
        with pytest.raises(UsageError, match=r"made no predictions\.arff"):
            openml.upload(run)
        run.tags.remove("openml-task-59")
        with pytest.raises(UsageError, match="names no task of OpenML"):
            openml.upload(run)
        assert not openml.server.requests
