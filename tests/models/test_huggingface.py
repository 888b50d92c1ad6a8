"""A model becomes a folder that the libraries of Hugging Face read, and goes to a hub by their client."""

from __future__ import annotations

import base64
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from fairmile.base.errors import Conflict, UsageError
from fairmile.models.formats import recognise
from fairmile.workspace import Workspace

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "formats" / "data"


def open_workspace(folder: Path, **environ: str) -> Workspace:
    places = {"HOME": str(folder), "FAIRMILE_HOME": str(folder / "home"), "PATH": "/usr/bin:/bin"}
    return Workspace.open(environ={**places, **environ}, cwd=folder)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


def test_a_file_is_exported_with_a_card_that_the_hub_reads(workspace: Workspace, tmp_path: Path) -> None:
    shutil.copy(ROOT / "docs" / "examples" / "tides.onnx", tmp_path / "tides.onnx")
    workspace.catalog.add(tmp_path / "tides.onnx")
    exported = workspace.models.export("tides", tmp_path / "hub")
    assert exported.files == ("README.md", "tides.onnx")
    assert ModelCard.load(tmp_path / "hub" / "README.md").text.strip() == "# tides"
    with pytest.raises(Conflict, match="is not empty"):
        workspace.models.export("tides", tmp_path / "hub")


def test_a_plan_names_the_files_of_an_export_and_writes_none(workspace: Workspace, tmp_path: Path) -> None:
    plan = workspace.models.export(DATA / "state.pt", tmp_path / "hub", upload="coast/tides", dry_run=True)
    assert plan.files == ("README.md", "model.safetensors")
    assert not (tmp_path / "hub").exists()


def test_weights_of_pytorch_become_safetensors(workspace: Workspace, tmp_path: Path) -> None:
    exported = workspace.models.export(DATA / "state.pt", tmp_path / "hub")
    assert exported.files == ("README.md", "model.safetensors")
    described = recognise(tmp_path / "hub")
    assert (described.format, described.parameters) == ("huggingface", 8)


def test_a_pickle_is_exported_only_if_its_author_is_trusted(workspace: Workspace, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not load it"):
        workspace.models.export(DATA / "pipeline.pkl", tmp_path / "hub")
    assert not (tmp_path / "hub").exists()
    exported = workspace.models.export(DATA / "pipeline.pkl", tmp_path / "hub", trust_pickle=True)
    assert exported.files == ("README.md", "pipeline.pkl")


@pytest.mark.thorough
def test_a_folder_of_transformers_comes_back_the_same(workspace: Workspace, tmp_path: Path) -> None:
    import torch
    import transformers

    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    model = transformers.BertModel(config).eval()
    model.save_pretrained(tmp_path / "bert")
    workspace.models.export(tmp_path / "bert", tmp_path / "hub")
    again = transformers.AutoModel.from_pretrained(tmp_path / "hub", local_files_only=True).eval()
    words = torch.tensor([[1, 2, 3]])
    expected = model(words).last_hidden_state
    assert torch.equal(again(words).last_hidden_state, expected)
    assert (workspace.models.apply(tmp_path / "hub", words) == expected.detach().numpy()).all()


class Hub(BaseHTTPRequestHandler):
    """The calls of a hub that an upload makes."""

    files: dict[str, bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Authorization"] != "Bearer hf_tides":
            self._answer(401, {"error": "no token"})
        elif self.path == "/api/repos/create":
            self._answer(200, {"url": f"http://{self.headers['Host']}/coast/tides", "id": "coast/tides"})
        elif "/preupload/" in self.path:
            files = [{**each, "uploadMode": "regular", "shouldIgnore": False} for each in json.loads(body)["files"]]
            self._answer(200, {"files": files})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            url = f"http://{self.headers['Host']}/coast/tides/commit/0123"
            self._answer(200, {"success": True, "commitOid": "0123", "commitUrl": url})
        else:
            self._answer(200, {"errors": [], "warnings": []})

    def _answer(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[ThreadingHTTPServer]:
    Hub.files = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_folder_is_uploaded_by_the_hubs_own_client(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{hub.server_port}"
    workspace = open_workspace(tmp_path, HF_ENDPOINT=address, HF_TOKEN="hf_tides")
    exported = workspace.models.export(DATA / "tides.pt2", tmp_path / "hub", upload="coast/tides")
    assert exported.url == f"{address}/coast/tides/commit/0123"
    assert Hub.files == {each: (tmp_path / "hub" / each).read_bytes() for each in ("README.md", "tides.pt2")}


def test_an_upload_needs_a_token(workspace: Workspace, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no token for Hugging Face"):
        workspace.models.export(DATA / "tides.pt2", tmp_path / "hub", upload="coast/tides")
