"""Notices that long work has ended, to a real web server, a sendmail and a command."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import UsageError
from fairmile.notify import (
    Mail,
    Notice,
    Program,
    Webhook,
    parse_destination,
    parse_destinations,
    send,
    shown_destinations,
)
from fairmile.workspace import Workspace

NOTICE = Notice("run", 0, "fairmile run: tides done in 3 h, level 2.5", 10_800.0, "node1")


class Receiver:
    """A web server that keeps what it is sent, and answers with `code`."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.code = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((self.path, json.loads(body)))
                self.send_response(receiver.code)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever)
    thread.start()
    yield receiver
    receiver.server.shutdown()
    thread.join()
    receiver.server.server_close()


@pytest.fixture
def sendmail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a sendmail on PATH writes its arguments and its input to."""
    program, mail = tmp_path / "bin" / "sendmail", tmp_path / "mail"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n{{ echo "$@"; cat; }} > {mail}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return mail


@pytest.mark.parametrize(
    ("text", "destination"),
    [
        ("https://hooks.example/T0/secret", Webhook("https://hooks.example/T0/secret")),
        ("ada@example.org", Mail("ada@example.org")),
        ("mailto:ada@example.org", Mail("ada@example.org")),
        ("notify-send '{text}'", Program(("notify-send", "{text}"))),
    ],
)
def test_a_destination_is_what_its_text_looks_like(text: str, destination: object) -> None:
    assert parse_destination(text) == destination


@pytest.mark.parametrize("text", ["", "  ", "http://", "https://host:x/", "ftp://host/x", "say 'open", 7, None])
def test_a_destination_that_is_none_is_refused(text: Any) -> None:
    with pytest.raises(UsageError):
        parse_destination(text)


def test_a_setting_is_one_destination_or_a_list() -> None:
    assert parse_destinations("ada@example.org") == ("ada@example.org",)
    assert parse_destinations(["ada@example.org", "true"]) == ("ada@example.org", "true")
    assert parse_destinations("") == ()


def test_a_token_in_an_address_is_never_shown() -> None:
    assert shown_destinations(["https://u:p@hooks.example:8443/T0/secret?key=k"]) == ["https://hooks.example:8443"]


def test_a_webhook_gets_json_that_chat_services_show(receiver: Receiver) -> None:
    send(NOTICE, [f"{receiver.address}/hook"], pytest.fail)
    assert receiver.requests == [("/hook", NOTICE.to_dict())]
    assert receiver.requests[0][1]["text"] == NOTICE.text


def test_sendmail_gets_a_message(sendmail: Path) -> None:
    send(NOTICE, ["ada@example.org"], pytest.fail)
    arguments, *message = sendmail.read_text().splitlines()
    assert arguments == "-i -- ada@example.org"
    assert "Subject: fairmile run done on node1" in message
    assert message[-1] == NOTICE.text


def test_a_command_gets_json_and_its_placeholders_but_no_shell(tmp_path: Path) -> None:
    notice = Notice("run", 1, "$(touch hacked); `id`", 1.0, "node1")
    send(notice, [f'sh -c \'cat > "$1"; echo "$2" >> "$1"\' sh {tmp_path}/told {{text}}'], pytest.fail)
    body, text = (tmp_path / "told").read_text().rsplit("}", 1)
    assert json.loads(body + "}")["state"] == "failed"
    assert text.strip() == notice.text


@pytest.mark.parametrize("code", [302, 404, 500])
def test_a_failure_is_one_sentence_without_the_secret_and_stops_no_other(receiver: Receiver, code: int) -> None:
    receiver.code = code
    problems: list[str] = []
    send(NOTICE, [f"{receiver.address}/secret", "no-such-program-here", "http://127.0.0.1:1/secret"], problems.append)
    assert len(problems) == 3
    assert f"{receiver.address} was not notified: the service answers {code}" in problems[0]
    assert not any("secret" in problem for problem in problems)
    assert [path for path, _ in receiver.requests] == ["/secret"]


def test_settings_apply_to_long_work_only(receiver: Receiver, tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "FAIRMILE_NOTIFY_TO": f"{receiver.address}/hook", "FAIRMILE_NOTIFY_AFTER": "1h"}
    workspace = Workspace.open(environ=environ, cwd=tmp_path)
    workspace.notify(Notice("run", 0, "short", 3599.0, "node1"), on_problem=pytest.fail)
    workspace.notify(Notice("run", 0, "long", 3600.0, "node1"), on_problem=pytest.fail)
    assert [body["text"] for _, body in receiver.requests] == ["long"]


def test_a_project_may_not_start_programs_until_it_is_trusted(tmp_path: Path) -> None:
    (tmp_path / "fairmile.yaml").write_text(f"notify:\n  to: touch {tmp_path}/hacked\n  after: 20s\n")
    workspace = Workspace.open(environ={"HOME": str(tmp_path)}, cwd=tmp_path)
    workspace.notify(Notice("run", 0, "long", 3600.0, "node1"), on_problem=pytest.fail)
    assert not (tmp_path / "hacked").exists()
    assert "notify.to" in workspace.config.ignored
