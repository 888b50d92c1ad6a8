"""Logins from netrc and keyrings, tokens from where tools keep them, and addresses shown without their secrets."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from cases import for_each
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base.errors import UsageError
from fairmile.transfer.credentials import Credentials, Login, shown_address, without_login

NETRC = "machine data.example.org login me password hunter2\nmachine other.org login you password pw\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def netrc(path: Path, text: str = NETRC) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


# Logins


def test_a_login_comes_from_the_netrc_of_the_home(home: Path) -> None:
    netrc(home / ".netrc")
    credentials = Credentials({"HOME": str(home)})
    assert credentials.login("data.example.org") == Login("me", "hunter2")
    assert credentials.login("other.org") == Login("you", "pw")
    assert credentials.login("example.org") is None


def test_netrc_names_another_file(home: Path) -> None:
    netrc(home / ".netrc", "machine data.example.org login wrong password wrong\n")
    environ = {"HOME": str(home), "NETRC": str(netrc(home / "mine"))}
    assert Credentials(environ).login("data.example.org") == Login("me", "hunter2")


def test_without_a_netrc_there_is_no_login(home: Path) -> None:
    assert Credentials({"HOME": str(home)}).login("data.example.org") is None


@pytest.mark.parametrize(
    "text",
    [
        "machine h login me password my hunter2\n",
        "machine h login me hunter2\n",
        "machine h\nlogin me\npassword ok\nhunter2 hunter2\n",
        "nonsense hunter2",
    ],
)
def test_a_netrc_that_cannot_be_understood_is_told_without_its_secrets(home: Path, text: str) -> None:
    path = netrc(home / ".netrc", text)
    with pytest.raises(UsageError, match=f"{path}:[0-9]+ cannot be parsed") as caught:
        Credentials({"HOME": str(home)}).login("h")
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"
    assert "machine HOST" in (caught.value.hint or "")


def test_a_netrc_that_is_no_text_or_no_file_is_told(home: Path) -> None:
    (home / ".netrc").write_bytes(b"machine h login \xff\xfe password \xff\n")
    with pytest.raises(UsageError, match=r"\.netrc cannot be parsed"):
        Credentials({"HOME": str(home)}).login("h")
    with pytest.raises(UsageError, match="cannot read"):
        Credentials({"NETRC": str(home)}).login("h")


def test_a_login_does_not_show_its_password() -> None:
    login = Login("me", "hunter2")
    assert "hunter2" not in f"{login} {login!r} {[login]}"


def fake_keyring(monkeypatch: pytest.MonkeyPatch, answer: object) -> list[str]:
    """Put a keyring in place that gives an answer, or raises it, and tell what it was asked for."""
    asked: list[str] = []

    class KeyringError(Exception):
        pass

    def get_credential(service: str, user: str | None) -> object:
        asked.append(service)
        if isinstance(answer, str):
            raise KeyringError(answer)
        return answer

    keyring, errors = ModuleType("keyring"), ModuleType("keyring.errors")
    errors.KeyringError = KeyringError  # type: ignore[attr-defined]
    keyring.errors = errors  # type: ignore[attr-defined]
    keyring.get_credential = get_credential  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    return asked


def test_a_keyring_is_asked_where_netrc_knows_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_keyring(monkeypatch, SimpleNamespace(username="me", password="hunter2"))
    assert Credentials({"HOME": str(home)}).login("data.example.org") == Login("me", "hunter2")
    assert asked == ["fairmile:data.example.org"]
    netrc(home / ".netrc")
    assert Credentials({"HOME": str(home)}).login("other.org") == Login("you", "pw")
    assert len(asked) == 1


@pytest.mark.parametrize("answer", [None, "no backend is installed"])
def test_a_keyring_that_knows_nothing_or_is_locked_is_no_error(
    home: Path, monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    fake_keyring(monkeypatch, answer)
    assert Credentials({"HOME": str(home)}).login("data.example.org") is None


# Tokens


def test_a_token_comes_from_the_first_variable_that_is_set(home: Path) -> None:
    (home / "token").write_text("from a file\n")
    environ = {"HOME": str(home), "SECOND": " from a variable \n", "EMPTY": ""}
    credentials = Credentials(environ)
    assert credentials.token(("EMPTY", "FIRST", "SECOND"), "token") == "from a variable"
    assert credentials.token(("EMPTY", "FIRST"), "missing", "token") == "from a file"
    assert credentials.token(("EMPTY",), "missing") is None


def test_a_file_without_a_token_is_passed_over(home: Path) -> None:
    (home / "empty").write_text("\n")
    (home / "binary").write_bytes(b"\xff\xfe")
    (home / "folder").mkdir()
    (home / "last").write_text("token")
    credentials = Credentials({"HOME": str(home)})
    assert credentials.token((), "empty", "binary", "folder", "last") == "token"


def test_files_are_below_the_home_unless_they_are_absolute(home: Path) -> None:
    credentials = Credentials({"HOME": str(home)})
    assert credentials.home_file(".cache/token") == home / ".cache" / "token"
    assert credentials.home_file("/etc/token") == Path("/etc/token")


# Addresses


@for_each(
    "address, shown",
    [
        ("https://example.org/a?b=c#d", "https://example.org/a?b=c#d"),
        ("https://me:hunter2@example.org/a", "https://example.org/a"),
        ("https://me@example.org/a", "https://example.org/a"),
        ("https://me:hunt@er2@example.org/a", "https://example.org/a"),
        ("https://example.org/a@b", "https://example.org/a@b"),
        ("https://example.org?mail=a@b", "https://example.org?mail=a@b"),
        ("s3://key:hunter2@bucket/a", "s3://bucket/a"),
        ("git+https://me:hunter2@example.org/a.git@v1", "git+https://example.org/a.git@v1"),
        ("https://h/a?token=hunter2", "https://h/a?token=…"),
        ("https://h/a?x=1&access_token=hunter2&y=2", "https://h/a?x=1&access_token=…&y=2"),
        (
            "https://h/a?X-Amz-Signature=hunter2&X-Amz-Credential=hunter2",
            "https://h/a?X-Amz-Signature=…&X-Amz-Credential=…",
        ),
        ("https://h/a?sig=hunter2#part", "https://h/a?sig=…#part"),
        ("https://h/a?api_key=hunter2;x=1", "https://h/a?api_key=…;x=1"),
        ("https://h/a?pwd=hunter2&PASSWORD=hunter2&user=me", "https://h/a?pwd=…&PASSWORD=…&user=me"),
        ("https://h/a#access_token=hunter2", "https://h/a#access_token=…"),
        (
            "see https://me:hunter2@h/a and ftp://x:hunter2@h/b?key=hunter2 too",
            "see https://h/a and ftp://h/b?key=… too",
        ),
    ],
)
def test_an_address_is_shown_without_its_secrets(address: str, shown: str) -> None:
    assert shown_address(address) == shown
    assert "hunter2" not in shown_address(address)


@given(password=st.text(st.characters(exclude_characters="/?#", exclude_categories=("Cs", "Cc", "Z")), min_size=1))
def test_no_password_before_a_host_is_ever_shown(password: str) -> None:
    shown = shown_address(f"https://me:{password}@example.org/a")
    assert shown == "https://example.org/a"


@pytest.mark.parametrize(
    "address, bare, login",
    [
        ("https://h/a@b", "https://h/a@b", None),
        ("https://me:pw@h:8443/a?b#c", "https://h:8443/a?b#c", Login("me", "pw")),
        ("https://me@h/", "https://h/", Login("me", "")),
        ("https://me:p%40s%2Fs@h/", "https://h/", Login("me", "p@s/s")),
        ("https://me:p@ss@h/", "https://h/", Login("me", "p@ss")),
        ("https://:pw@[::1]:80/", "https://[::1]:80/", Login("", "pw")),
    ],
)
def test_a_login_is_taken_out_of_an_address(address: str, bare: str, login: Login | None) -> None:
    assert without_login(address) == (bare, login)


def test_what_is_no_address_has_no_login() -> None:
    with pytest.raises(UsageError, match="is not an address") as caught:
        without_login("https://me:hunter2@[::1/")
    assert "hunter2" not in str(caught.value)
