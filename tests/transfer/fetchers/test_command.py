from __future__ import annotations

import functools
import http.server
import itertools
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pytest
import web_server
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmile.base.commands import Here, Result
from fairmile.base.digest import Checksum
from fairmile.base.errors import FairmileError, InvalidDocument, NotFound, SystemFailure, Transient, UsageError
from fairmile.testing.fetchers import CONTENT, FolderFetcherTests, Served
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.fetchers.command import KNOWN, CommandFetcher, Growth, last_words, parse_command, passed_on
from fairmile.transfer.remote import Context, FolderFetcher
from fairmile.transfer.settings import Settings


def fetcher(
    name: str, settings: Any = None, *, environ: Mapping[str, str] = os.environ, runner: Any = None
) -> CommandFetcher:
    context = Context(environ, runner or Here(), Credentials({}), Settings())
    return CommandFetcher(context, parse_command(name, settings))


def script(path: Path, text: str) -> str:
    """Write a program in Python and return its path."""
    path.write_text(f"#!{sys.executable}\nimport os, sys\n{text}")
    path.chmod(0o755)
    return str(path)


def ignore(count: int) -> None:
    pass


class Pages(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Serve a folder and yield its address and itself."""
    root = tmp_path / "web"
    root.mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Pages, directory=str(root))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", root
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / 'here it\'s "fill-ed" ☃ %s {x}'
    folder.mkdir()
    return folder


def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which no program finds settings or proxies of the machine."""
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "no_proxy": "*", "RCLONE_CONFIG": str(tmp_path / "none")}


# The programs that are known


WEB = ["curl", "wget", "aria2c"]


@pytest.fixture(params=WEB)
def program(request: pytest.FixtureRequest) -> str:
    if shutil.which(request.param) is None:
        pytest.skip(f"needs the program {request.param}")
    return str(request.param)


@pytest.mark.parametrize(
    "name", ["data.bin", "two words & more.bin", "-o evil", "a[1-3]{b,c}", "ünï%25", "$(id)`id`;id"]
)
def test_a_file_comes_by_http_under_its_own_name(
    program: str, web: tuple[str, Path], folder: Path, tmp_path: Path, name: str
) -> None:
    address, root = web
    (root / name).write_bytes(CONTENT)
    counted: list[int] = []
    url = f"{address}/{quote(name)}?version=1"
    tool = fetcher(program, environ=environment(tmp_path))
    assert [(each.path, each.size_bytes) for each in tool.find(url)] == [(name, None)]
    tool.bring(url, folder, counted.append)
    assert os.listdir(folder) == [name]
    assert (folder / name).read_bytes() == CONTENT
    assert sum(counted) == len(CONTENT)


def test_a_part_of_an_older_file_is_not_completed_with_a_newer_one(
    program: str, web: tuple[str, Path], folder: Path, tmp_path: Path
) -> None:
    address, root = web
    (root / "data.bin").write_bytes(CONTENT)
    (folder / "data.bin").write_bytes(CONTENT[::-1][:1000])
    (folder / "data.bin.aria2").write_bytes(b"x")
    assert not KNOWN[program].resumes
    fetcher(program, environ=environment(tmp_path)).bring(f"{address}/data.bin", folder, ignore)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"data.bin": CONTENT}


def test_a_missing_file_is_an_error_with_the_programs_last_words_and_without_secrets(
    program: str, web: tuple[str, Path], folder: Path, tmp_path: Path
) -> None:
    address, _ = web
    tool = fetcher(program, environ=environment(tmp_path))
    with pytest.raises(
        FairmileError, match=rf"{program} could not fetch .*nowhere.*(404|Resource not found)"
    ) as caught:
        tool.bring(address.replace("//", "//ann:s3cret@") + "/nowhere?token=s3cret", folder, ignore)
    assert "s3cret" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("program", ["curl", "wget"], indirect=True)
def test_nobody_listening_is_worth_a_retry(program: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Transient):
        fetcher(program, environ=environment(tmp_path)).bring("http://127.0.0.1:1/data", folder, ignore)


def test_a_torrent_is_data_and_no_order(web: tuple[str, Path], folder: Path, tmp_path: Path) -> None:
    if shutil.which("aria2c") is None:
        pytest.skip("needs the program aria2c")
    address, root = web
    (root / "x.torrent").write_bytes(b"d8:announce3:abce")
    (root / "x.meta4").write_bytes(b"<metalink/>")
    for name in ("x.torrent", "x.meta4"):
        fetcher("aria2c", environ=environment(tmp_path)).bring(f"{address}/{name}", folder, ignore)
        assert os.listdir(folder) == [name]


@pytest.mark.thorough
class TestRclone(FolderFetcherTests):
    hostile: ClassVar[tuple[str, ...]] = (
        "rclone://:sftp,ssh=touch%20{mark}:/x",
        "rclone://there,remote=/etc:/x",
        "rclone://:local/x",
        "rclone://--config/x",
        "rclone://-x/y",
        "rclone:///x",
        "rclone://there/a%0ab",
        "rclone://there/a b",
        "there:x",
        "--config={mark}",
    )

    @pytest.fixture
    def served(self, tmp_path: Path) -> Served[FolderFetcher]:
        if shutil.which("rclone") is None:
            pytest.skip("needs the program rclone")
        there = tmp_path / "there"
        there.mkdir()
        stamps = itertools.count(1_700_000_000)

        def publish(files: Mapping[str, bytes]) -> str:
            place = there / f"set {abs(hash(tuple(sorted(files))))}"
            for path, data in files.items():
                target = place / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
                stamp = next(stamps)
                os.utime(target, (stamp, stamp))
            shown = place / next(iter(files)) if len(files) == 1 else place
            return "rclone://mine" + shown.as_uri().removeprefix(there.as_uri())

        remote = {"RCLONE_CONFIG_MINE_TYPE": "alias", "RCLONE_CONFIG_MINE_REMOTE": str(there)}
        return Served(fetcher("rclone", environ=environment(tmp_path) | remote), publish, "rclone://mine/nowhere")


def test_rclone_lists_a_folder_of_a_web_server_and_brings_it(
    web: tuple[str, Path], folder: Path, tmp_path: Path
) -> None:
    if shutil.which("rclone") is None:
        pytest.skip("needs the program rclone")
    address, root = web
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "sub" / "a b").write_bytes(b"x")
    (root / "sub" / "deep" / "data.bin").write_bytes(CONTENT)
    remote = {"RCLONE_CONFIG_WEB_TYPE": "http", "RCLONE_CONFIG_WEB_URL": address}
    tool = fetcher("rclone", environ=environment(tmp_path) | remote)
    assert {each.path: each.size_bytes for each in tool.find("rclone://web/sub")} == {
        "a b": 1,
        "deep/data.bin": len(CONTENT),
    }
    tool.bring("rclone://web/sub", folder, ignore)
    assert (folder / "deep" / "data.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("name", KNOWN)
def test_every_known_program_follows_the_rules_for_declared_ones(name: str) -> None:
    known = KNOWN[name]
    settings = {"command": list(known.argv), "schemes": list(known.schemes), "output": known.output}
    settings |= {"find": list(known.find)} if known.find else {}
    settings |= {"input": known.input} if known.input else {}
    declared = parse_command(name, settings)
    assert (declared.argv, declared.find, declared.output) == (known.argv, known.find, known.output)
    assert known.schemes


# Programs that the settings declare


class TestADeclaredProgram(FolderFetcherTests):
    hostile: ClassVar[tuple[str, ...]] = (
        "my:///$(touch {mark})",
        "my:///x\ny",
        "my:///%00",
        "-x",
        "--my://x",
        "http://x/y",
        "my",
        "",
    )

    @pytest.fixture
    def served(self, tmp_path: Path) -> Served[FolderFetcher]:
        there = tmp_path / "there"
        there.mkdir()
        copy = script(
            tmp_path / "mytool",
            "import shutil\n"
            "verb, source, target = sys.argv[1:]\n"
            "assert verb == 'get'\n"
            "if os.path.isdir(source): shutil.copytree(source, target, dirs_exist_ok=True)\n"
            "else: shutil.copy(source, target)\n",
        )

        def publish(files: Mapping[str, bytes]) -> str:
            place = there / f"set {abs(hash(tuple(sorted(files))))}"
            for path, data in files.items():
                target = place / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
            return (place / next(iter(files)) if len(files) == 1 else place).as_uri().replace("file:", "my:")

        settings = {"command": [copy, "get", "/{path}", "{folder}"], "schemes": ["my"], "output": "folder"}
        return Served(fetcher("mytool", settings), publish, f"my://{there}/nowhere?token=s3cret", secret="s3cret")


def test_what_a_program_finds_is_read_as_rclone_writes_it(tmp_path: Path) -> None:
    listing = [
        {"Path": "a.txt", "Size": 5, "ModTime": "2024-01-01T00:00:00Z", "Hashes": {"md5": "0" * 32, "odd": "1"}},
        {"Path": "b", "Size": -1, "IsDir": True},
        {"path": "b/c", "size": -1},
    ]
    tool = script(tmp_path / "mytool", f"print({json.dumps(listing)!r})")
    found = fetcher(
        "mytool", {"command": [tool, "{url}", "{folder}"], "output": "folder", "find": [tool, "{url}"]}
    ).find("my:x")
    assert [(each.path, each.size_bytes, each.checksums, each.validator) for each in found] == [
        ("a.txt", 5, (Checksum("md5", "0" * 32),), "5-2024-01-01T00:00:00Z"),
        ("b/c", None, (), ""),
    ]


@pytest.mark.parametrize("printed", ["", "nonsense", "{}", "[1]", '[{"Size": 1}]', '[{"Path": ""}]'])
def test_a_listing_that_is_no_listing_is_an_error(tmp_path: Path, printed: str) -> None:
    tool = script(tmp_path / "mytool", f"print({printed!r})")
    with pytest.raises(SystemFailure):
        fetcher("mytool", {"command": [tool, "{url}", "{file}"], "find": [tool, "{url}"]}).find("my:x")


def test_an_empty_listing_means_that_nothing_is_there(tmp_path: Path) -> None:
    tool = script(tmp_path / "mytool", "print([])")
    with pytest.raises(NotFound):
        fetcher("mytool", {"command": [tool, "{url}", "{file}"], "find": [tool, "{url}"]}).find("my:x")


def test_a_program_that_resumes_finds_what_was_there_and_others_do_not(tmp_path: Path, folder: Path) -> None:
    tool = script(tmp_path / "mytool", "print(*os.listdir(sys.argv[2])); open(sys.argv[2] + '/new', 'w').write('x')")
    for resumes, expected in ((True, ["new", "old", "sub"]), (False, ["new"])):
        (folder / "old").write_text("x")
        (folder / "sub").mkdir(exist_ok=True)
        settings = {"command": [tool, "{url}", "{folder}"], "output": "folder", "resumes": resumes}
        fetcher("mytool", settings).bring("my:x", folder, ignore)
        assert sorted(os.listdir(folder)) == expected


def test_emptying_does_not_follow_links(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "data").write_text("x")
    (folder / "link").symlink_to(tmp_path / "precious")
    tool = script(tmp_path / "mytool", "open(sys.argv[2], 'w').write('x')")
    fetcher("mytool", {"command": [tool, "{url}", "{file}"]}).bring("my:x/y", folder, ignore)
    assert os.listdir(folder) == ["y"]
    assert (tmp_path / "precious" / "data").exists()


def test_a_program_that_ends_well_without_data_is_an_error(folder: Path) -> None:
    with pytest.raises(SystemFailure, match="wrote nothing"):
        fetcher("mytool", {"command": ["true", "{url}", "{file}"]}).bring("my:x", folder, ignore)


def test_a_missing_program_is_named(folder: Path) -> None:
    with pytest.raises(SystemFailure, match="no program 'no-such-tool'"):
        fetcher("mytool", {"command": ["no-such-tool", "{url}", "{file}"]}).bring("my:x", folder, ignore)


def test_a_failing_program_is_quoted_without_secrets_and_control_characters(tmp_path: Path, folder: Path) -> None:
    tool = script(
        tmp_path / "mytool",
        "sys.stderr.write('50%\\r100%\\n\\x1b[31mno https://ann:s3cret@host/x?api_key=s3cret for you\\n'); sys.exit(7)",
    )
    with pytest.raises(SystemFailure, match=r"mytool could not fetch my:x \(exit code 7\): .*for you") as caught:
        fetcher("mytool", {"command": [tool, "{url}", "{file}"]}).bring("my:x", folder, ignore)
    assert "s3cret" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_program_gets_the_environment_of_the_user(tmp_path: Path, folder: Path) -> None:
    tool = script(tmp_path / "mytool", "open(sys.argv[2], 'w').write(os.environ['MY_TOKEN'])")
    environ = {"MY_TOKEN": "t0ken", "BASH_FUNC_x%%": "() { :; }"}
    fetcher("mytool", {"command": [tool, "{url}", "{file}"]}, environ=environ).bring("my:x/y", folder, ignore)
    assert (folder / "y").read_text() == "t0ken"
    assert passed_on(environ) == {"MY_TOKEN": "t0ken"}


def test_bytes_are_told_while_a_program_runs_and_an_error_there_ends_it(tmp_path: Path, folder: Path) -> None:
    tool = script(
        tmp_path / "mytool",
        "import time\nstream = open(sys.argv[2], 'w', buffering=1)\n"
        "for _ in range(600): stream.write('x' * 9999); time.sleep(0.1)",
    )

    class Enough(Exception):
        pass

    def enough(count: int) -> None:
        assert 0 < count < 600 * 9999
        raise Enough

    with pytest.raises(Enough):
        fetcher("mytool", {"command": [tool, "{url}", "{file}"]}).bring("my:x/y", folder, enough)


@pytest.mark.parametrize(
    ("path", "name"),
    [("a/b.txt", "b.txt"), ("a/b%2Fc", "c"), ("a/..", "download"), ("", "download"), ("a%0ab", "download"),
     ("a%5Cb", "download"), ("x" * 300, "download"), ("a/b/?x=/y", "b"), ("a#b/c", "a")],
)  # fmt: skip
def test_a_file_is_named_after_the_end_of_its_address(path: str, name: str) -> None:
    assert fetcher("curl").find(f"https://host/{path}")[0].path == name


class Recorder(Here):
    """Runs nothing, and keeps what it was asked to run."""

    def __init__(self) -> None:
        super().__init__()
        self.argv: list[str] = []
        self.input = ""

    def run(self, argv: Any, **more: Any) -> Result:
        self.argv, self.input = list(argv), more.get("input") or ""
        return Result(tuple(argv), 1, "", "", 0.0)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_an_address_is_refused_or_stays_within_its_own_word(text: str) -> None:
    template = ["mytool", "get", "--from={url}", "{url}", "/{path}", "{path}", "--out", "{file}"]
    recorder = Recorder()
    tool = fetcher("mytool", {"command": template, "schemes": ["my"]}, runner=recorder)
    with tempfile.TemporaryDirectory() as folder, pytest.raises(FairmileError) as caught:
        tool.bring(f"my://{text}", Path(folder), ignore)
    if isinstance(caught.value, UsageError):
        assert recorder.argv == []
        return
    assert len(recorder.argv) == len(template)
    assert recorder.argv[:2] == ["mytool", "get"]
    assert recorder.argv[2] == f"--from=my://{text}"
    assert recorder.argv[6] == "--out"
    assert not any(word.startswith("-") for word in (*recorder.argv[3:6], recorder.argv[7]))


@pytest.mark.parametrize("name", KNOWN)
def test_a_password_in_an_address_never_becomes_an_argument(name: str, folder: Path) -> None:
    recorder = Recorder()
    scheme = KNOWN[name].schemes[0]
    address = f"{name}+{scheme}://ann:s3cret@host/data.bin"
    with pytest.raises(FairmileError) as caught:
        fetcher(name, runner=recorder).bring(address, folder, ignore)
    assert "s3cret" not in " ".join(recorder.argv) + str(caught.value) + str(caught.value.hint)
    if KNOWN[name].input:  # the others refuse it
        assert "ann:s3cret@host" in recorder.input
    else:
        assert isinstance(caught.value, UsageError)
        assert recorder.argv == []


@pytest.mark.parametrize("program", WEB, indirect=True)
def test_a_login_in_an_address_reaches_the_server(program: str, folder: Path) -> None:
    seen: list[str] = []

    def wants_login(exchange: web_server.Exchange) -> None:
        seen.append(exchange.request.headers.get("authorization", ""))
        (exchange.answer if seen[-1] else functools.partial(web_server.wants_a_login, exchange))()

    with web_server.web_server({"data.bin": CONTENT}, wants_login) as server:
        address = server.url("data.bin").replace("//", "//ann:s3cret@")
        fetcher(program).bring(f"{program}+{address}", folder, ignore)
    assert (folder / "data.bin").read_bytes() == CONTENT
    assert seen[-1] == "Basic YW5uOnMzY3JldA=="


def test_a_key_in_a_query_never_becomes_an_argument_either(folder: Path) -> None:
    recorder = Recorder()
    with pytest.raises(UsageError, match="every user of this machine could read"):
        fetcher("azcopy", runner=recorder).bring("azcopy+https://host/data.bin?sig=s3cret", folder, ignore)
    assert recorder.argv == []


def test_no_path_brings_a_second_line_into_the_standard_input(folder: Path) -> None:
    mine = fetcher("mytool", {"command": ["mytool", "{file}"], "input": "get {path}\n"})
    with pytest.raises(UsageError, match="not allowed in a path"):
        mine.bring("mytool+my://host/a%0Adelete", folder, lambda count: None)


def test_a_declared_program_may_read_the_address_from_its_standard_input(tmp_path: Path, folder: Path) -> None:
    tool = script(tmp_path / "mytool", "open(sys.argv[1], 'w').write(sys.stdin.read())")
    mine = fetcher("mytool", {"command": [tool, "{file}"], "input": "get {url}"})
    mine.bring("mytool+my://ann:s3cret@host/x", folder, ignore)
    assert (folder / "x").read_text() == "get my://ann:s3cret@host/x"


GOOD = {
    "command": ["mytool", "get", "{url}", "--out", "{folder}"],
    "output": "folder",
    "schemes": ["my"],
    "resumes": True,
}


def test_a_declaration_is_read() -> None:
    command = parse_command("mytool", GOOD | {"find": ["mytool", "ls", "{host}", "{{}}"]})
    assert command.argv == ("mytool", "get", "{url}", "--out", "{folder}")
    assert (command.schemes, command.resumes, command.output) == (("my",), True, "folder")
    assert command.find == ("mytool", "ls", "{host}", "{{}}")


@for_each(
    "change, field, says",
    [
        ({"command": "mytool get {url}"}, ".command", "expected a list of words"),
        ({"command": None}, ".command", "expected a list of words"),
        ({"command": []}, ".command", "expected a list of words"),
        ({"command": ["mytool", 1]}, ".command", "expected a list of words"),
        ({"command": ["mytool", "a\0b", "{url}", "{folder}"]}, ".command", "expected a list of words"),
        ({"command": ["{url}", "{folder}"]}, ".command[0]", "not a program"),
        ({"command": ["-x", "{url}", "{folder}"]}, ".command[0]", "not a program"),
        ({"command": ["mytool", "{uri}", "{folder}"]}, ".command[1]", "unknown placeholder {uri}"),
        ({"command": ["mytool", "{}", "{folder}"]}, ".command[1]", "unknown placeholder {}"),
        ({"command": ["mytool", "{url.__class__}", "{folder}"]}, ".command[1]", "unknown placeholder"),
        ({"command": ["mytool", "{url!r}", "{folder}"]}, ".command[1]", "unknown placeholder"),
        ({"command": ["mytool", "{url:>9}", "{folder}"]}, ".command[1]", "unknown placeholder"),
        ({"command": ["mytool", "{url", "{folder}"]}, ".command[1]", "brace without its other half"),
        ({"command": ["mytool", "{folder}"]}, ".command", "no word contains {url}"),
        ({"command": ["mytool", "{url}"]}, ".command", "no word contains {folder}"),
        ({"command": ["mytool", "{url}", "{file}"]}, ".command", "no word contains {folder}"),
        ({"output": "pipe"}, ".output", "expected file or folder"),
        ({"output": ["file"]}, ".output", "expected file or folder"),
        ({"resumes": "yes"}, ".resumes", "expected true or false"),
        ({"schemes": "my"}, ".schemes", "expected a list"),
        ({"schemes": ["My Scheme"]}, ".schemes", "expected a list"),
        ({"find": ["mytool", "{folder}"]}, ".find[1]", "unknown placeholder {folder}"),
        ({"find": "mytool ls"}, ".find", "expected a list of words"),
        ({"comand": []}, ".comand", "did you mean 'command'?"),
    ],
)
def test_a_wrong_declaration_is_refused_and_the_field_is_named(change: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        parse_command("mytool", GOOD | change)
    problem = caught.value.problems[0]
    assert problem.field == f"transfer.fetchers.mytool{field}"
    assert says in problem.message
    assert str(caught.value).startswith(f"transfer.fetchers.mytool{field}: ")


@pytest.mark.parametrize(("name", "settings"), [("mytool", ["mytool"]), ("mytool", "x"), ("a b", GOOD), ("-x", GOOD)])
def test_what_is_no_declaration_at_all_is_refused(name: str, settings: Any) -> None:
    with pytest.raises(InvalidDocument, match=r"transfer\.fetchers"):
        parse_command(name, settings)


def test_an_unknown_program_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(NotFound, match="did you mean 'aria2c'") as caught:
        parse_command("aria2", None)
    assert "transfer.fetchers.aria2" in str(caught.value.hint)


# Progress


def test_growth_looks_rarely_counts_only_what_is_there_and_never_backwards(tmp_path: Path) -> None:
    now = [0.0]
    told: list[int] = []
    (tmp_path / "before").write_bytes(b"x" * 10)
    growth = Growth(tmp_path, told.append, ignored=["*.tmp"], clock=lambda: now[0])
    (tmp_path / "a").write_bytes(b"x" * 5000)
    (tmp_path / "busy.tmp").write_bytes(b"x" * 5000)
    growth.look_now_and_then()
    assert told == []
    now[0] = 1.0
    growth.look_now_and_then()
    growth.look_now_and_then()
    assert told == [5000]
    with open(tmp_path / "hole", "wb") as stream:
        stream.truncate(1 << 30)
    now[0] = 2.0
    growth.look_now_and_then()
    assert told == [5000]
    (tmp_path / "hole").unlink()
    (tmp_path / "a").unlink()
    growth.look()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b").write_bytes(b"x" * 6000)
    growth.look()
    assert told == [5000, 1000]


def test_last_words_are_few_and_clean() -> None:
    printed = "first\n" * 100 + "10%\r20%\r\n\n" + "a\tb\x07\n" + "see https://u:p@h/?sig=abc"
    assert last_words(printed).endswith("10%; 20%; a b; see https://h/?sig=…")
    assert last_words("x" * 10**6) == "x" * 1000
    assert last_words("") == ""
