"""Logging in at a real OIDC provider, which runs in a process of its own, and the attacks that must fail."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import web_pages
from argon2 import PasswordHasher
from certificates import Certificate, make_certificate
from oidc_provider import CLIENT_ID, CLIENT_SECRET, running_provider, spoil_next
from playwright.sync_api import Browser

from fairmile.access import logins
from fairmile.access.oidc import OidcSettings, account_name
from fairmile.base.errors import UsageError
from fairmile.web.serve import ServeSettings, serve
from fairmile.workspace import Workspace


class Centre:
    """A server whose people log in at a provider."""

    def __init__(self, workspace: Workspace, address: str, issuer: str, certificate: Certificate) -> None:
        self.workspace = workspace
        self.address = address
        self.issuer = issuer
        self.certificate = certificate
        self.browsers: list[httpx.Client] = []

    def browser(self) -> httpx.Client:
        """Return a browser without pages: it keeps cookies and follows no redirect by itself."""
        self.browsers.append(httpx.Client(verify=self.certificate.client(), trust_env=False, timeout=300))
        return self.browsers[-1]

    def at_provider(self, browser: httpx.Client, after: str = "/") -> str:
        """Begin to log in, and return the page of the provider that the browser is sent to."""
        begun = browser.get(f"{self.address}/login/oidc", params={"next": after})
        assert begun.status_code == 303
        return begun.headers["location"]

    def confirmed(self, browser: httpx.Client, user: str, after: str = "/") -> str:
        """Log in at the provider, and return where it sends the browser back to."""
        answer = browser.post(self.at_provider(browser, after), data={"user": user})
        assert answer.status_code == 302, answer.text
        return answer.headers["location"]

    def log_in(self, user: str, after: str = "/") -> tuple[httpx.Client, httpx.Response]:
        browser = self.browser()
        return browser, browser.get(self.confirmed(browser, user, after))


@pytest.fixture(scope="module")
def centre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Centre]:
    place = tmp_path_factory.mktemp("centre")
    certificate = make_certificate(place)
    (place / "secret").write_text(f"{CLIENT_SECRET}\n")
    with running_provider() as issuer, pytest.MonkeyPatch.context() as patch:
        patch.setattr(logins, "INTERVAL_S", 0.05)
        oidc = {
            "issuer": issuer,
            "client_id": CLIENT_ID,
            "client_secret_file": "secret",
            "label": "University of Somewhere",
            "groups": {"/hpc/hydro": "hydro", "/hpc/admins": "admins"},
            "rights": {"admins": "admin", "hydro": "read"},
            "members": ["hydro"],
        }
        (place / "settings.yaml").write_text(json.dumps({"access": {"oidc": oidc}}))
        environ = {"FAIRMILE_HOME": str(place / "home"), "HOME": str(place), "PATH": "/usr/bin:/bin"}
        workspace = Workspace.open(environ={**environ, "FAIRMILE_CONFIG": str(place / "settings.yaml")}, cwd=place)
        workspace.access.accounts._new_hasher = lambda: PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
        workspace.access.add_user("root", "correct horse battery", rights=["admin"])
        settings = ServeSettings(port=0, cert=certificate.file, key=certificate.file, accounts=True)
        with serve(workspace, settings, wait=False) as serving:
            centre = Centre(workspace, serving.address.rstrip("/"), issuer, certificate)
            yield centre
        for browser in centre.browsers:  # the server has ended although they keep their connections
            browser.close()


@pytest.fixture(autouse=True)
def _fresh(centre: Centre) -> None:
    """Forget the failures of other tests: all come from one address."""
    centre.workspace.access.accounts.by_address.succeeded("127.0.0.1")
    spoil_next(centre.issuer, "no")


def is_logged_in(centre: Centre, browser: httpx.Client) -> bool:
    return browser.get(f"{centre.address}/account").status_code == 200


def test_a_person_logs_in_and_claims_become_account_groups_and_rights(centre: Centre) -> None:
    browser, answer = centre.log_in("ada", "/assets/x")
    assert answer.status_code == 200 and 'content="0; url=/assets/x"' in answer.text
    cookies = answer.headers.get_list("set-cookie")
    assert [each.partition("=")[0] for each in cookies] == ["__Host-fairmile", "__Host-fairmile-login"]
    assert "SameSite=Strict" in cookies[0] and "Max-Age=0" in cookies[1]
    account = browser.get(f"{centre.address}/api/account").json()
    assert (account["name"], account["groups"], account["login"]) == ("ada", ["hydro"], centre.issuer)
    assert account["rights"] == ["browse", "read"]
    assert len([each for each in centre.workspace.access.users() if each.name == "ada"]) == 1
    centre.workspace.access.set_user("ada", groups=[], rights=["admin"])
    centre.log_in("ada")  # the provider decides, at each login
    assert centre.workspace.access.accounts.get("ada").to_dict() == account


def test_claims_that_only_userinfo_has_count_if_they_are_of_the_same_person(centre: Centre) -> None:
    _, _ = centre.log_in("dan")
    assert centre.workspace.access.accounts.get("dan").rights >= {"admin"}
    centre.workspace.access.remove_user("dan")


def test_who_is_no_member_is_refused_and_gets_no_account(centre: Centre) -> None:
    browser, answer = centre.log_in("bob")
    assert "may not use this server" in answer.text and not is_logged_in(centre, browser)
    assert "bob" not in [each.name for each in centre.workspace.access.users()]


def test_a_name_that_somebody_else_has_here_gives_no_access_to_their_account(centre: Centre) -> None:
    browser, answer = centre.log_in("carol")
    assert html.escape("account 'root' already exists") in answer.text and not is_logged_in(centre, browser)


@pytest.mark.parametrize(
    "fault",
    ["nonce", "audience", "audiences", "azp", "issuer", "expired", "none", "hmac", "unsigned", "key", "kid"],
)
def test_a_token_that_is_wrong_in_one_way_opens_nothing(centre: Centre, fault: str) -> None:
    browser = centre.browser()
    back = centre.confirmed(browser, "ada")
    spoil_next(centre.issuer, fault)
    answer = browser.get(back)
    assert "set-cookie" not in answer.headers
    assert 'role="alert"' in answer.text
    assert not is_logged_in(centre, browser)


def test_a_code_counts_once(centre: Centre) -> None:
    browser = centre.browser()
    begun = centre.at_provider(browser)
    kept = {each.name: each.value for each in browser.cookies.jar}
    back = browser.post(begun, data={"user": "ada"}).headers["location"]
    assert "Logged in" in browser.get(back).text
    again = centre.browser()
    again.headers["cookie"] = "; ".join(f"{name}={value}" for name, value in kept.items() if value)
    assert "did not confirm" in again.get(back).text


def test_the_answer_to_a_login_of_another_browser_is_refused(centre: Centre) -> None:
    """Somebody sends you a link that logs you in as them: what you upload would be theirs."""
    attacker, victim = centre.browser(), centre.browser()
    back = centre.confirmed(attacker, "ada")
    assert "not begun in this browser" in victim.get(back).text
    centre.at_provider(victim)  # also with a login of their own under way
    assert "not begun in this browser" in victim.get(back).text
    assert not is_logged_in(centre, victim)


@pytest.mark.parametrize("change", ["state", "code", "iss", "cookie"])
def test_an_answer_that_was_changed_on_the_way_is_refused(centre: Centre, change: str) -> None:
    browser = centre.browser()
    back = centre.confirmed(browser, "ada")
    query = {name: values[0] for name, values in parse_qs(urlsplit(back).query).items()}
    if change == "cookie":
        name, value = next((each.name, str(each.value)) for each in browser.cookies.jar if each.name.endswith("login"))
        browser.cookies.clear()
        browser.headers["cookie"] = f"{name}={value[:-1]}{'0' if value[-1] != '0' else '1'}"
    else:
        query[change] = "https://evil.example" if change == "iss" else "x" * 43
    answer = browser.get(f"{centre.address}/login/oidc/callback", params=query)
    assert 'role="alert"' in answer.text and not is_logged_in(centre, browser)


def test_the_verifier_and_the_nonce_are_new_each_time_and_never_in_the_address(centre: Centre) -> None:
    queries = [parse_qs(urlsplit(centre.at_provider(centre.browser())).query) for _ in range(2)]
    for name in ("state", "nonce", "code_challenge"):
        assert queries[0][name] != queries[1][name]
    assert queries[0]["code_challenge_method"] == ["S256"] and "code_verifier" not in queries[0]


@pytest.mark.parametrize("after", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_nobody_is_sent_elsewhere_after_the_login(centre: Centre, after: str) -> None:
    _, answer = centre.log_in("ada", after)
    assert re.findall(r'content="0; url=([^"]*)"', answer.text) == ["/"]
    assert "evil" not in answer.text


def test_a_refusal_of_the_provider_is_told(centre: Centre) -> None:
    browser = centre.browser()
    state = parse_qs(urlsplit(centre.at_provider(browser)).query)["state"][0]
    refused = browser.get(f"{centre.address}/login/oidc/callback", params={"error": "access_denied", "state": state})
    assert "the provider refused the login" in refused.text


def test_logins_are_in_the_audit_log_without_secrets(centre: Centre) -> None:
    centre.log_in("ada")
    entries = [each.facts for each in centre.workspace.access.audit()]
    assert any(each["what"] == "log in" and each.get("provider") == centre.issuer for each in entries)
    assert CLIENT_SECRET not in str(entries) and "eyJ" not in str(entries)


def test_a_browser_logs_in_at_the_provider_and_then_a_terminal(
    centre: Centre, chromium: Browser, tmp_path: Path
) -> None:
    environ = {"FAIRMILE_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    mine = Workspace.open(environ={**environ, "SSL_CERT_FILE": str(centre.certificate.file)}, cwd=tmp_path)
    context = web_pages.new_context(chromium, ignore_https_errors=True)
    page = context.new_page()

    def confirm(code: logins.DeviceLogin) -> None:
        page.goto(code.verification_uri)
        page.get_by_role("link", name="Log in with University of Somewhere").click()
        page.get_by_role("button", name="ada").click()
        page.wait_for_url(code.verification_uri)
        page.get_by_label("Code").fill(code.user_code)
        page.get_by_role("button", name="Log in the terminal").click()
        page.get_by_text("The terminal is logged in.").wait_for()

    login = mine.access.login(centre.address, on_code=confirm)
    context.close()
    assert (login.user, login.server) == ("ada", centre.address)


class Terminal:
    """A terminal that logs in with a code of the provider, and people who enter it there."""

    def __init__(self, centre: Centre) -> None:
        self.centre, self.client = centre, centre.browser()
        answer = self.client.post(f"{centre.address}/api/login/device", json={"sso": True})
        assert answer.status_code == 200, answer.text
        self.begun = answer.json()

    def enter(self, user: str) -> None:
        httpx.post(
            self.begun["verification_uri"], data={"code": self.begun["user_code"], "user": user}, trust_env=False
        ).raise_for_status()

    def ask(self) -> httpx.Response:
        """Ask for the token until the login is over."""
        for _ in range(100):
            answer = self.client.post(
                f"{self.centre.address}/api/login/token", json={"device_code": self.begun["device_code"]}
            )
            if answer.status_code != 200 or answer.json()["status"] != "pending":
                return answer
            time.sleep(0.05)
        raise AssertionError("the login did not end")


def test_a_terminal_logs_in_with_a_code_of_the_provider(centre: Centre, tmp_path: Path) -> None:
    environ = {"FAIRMILE_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    mine = Workspace.open(environ={**environ, "SSL_CERT_FILE": str(centre.certificate.file)}, cwd=tmp_path)

    def confirm(code: logins.DeviceLogin) -> None:
        assert code.verification_uri == f"{centre.issuer}/activate"
        form = {"code": code.user_code, "user": "ada"}
        httpx.post(code.verification_uri, data=form, trust_env=False).raise_for_status()

    login = mine.access.login(centre.address, sso=True, on_code=confirm)
    assert (login.user, login.server) == ("ada", centre.address)
    account = centre.workspace.access.accounts.get("ada").to_dict()
    assert (account["groups"], account["login"]) == (["hydro"], centre.issuer)
    (token,) = (each for each in centre.workspace.access.tokens("ada") if each.id == login.token)
    assert (token.label, list(token.rights)) == ("terminal", ["browse"])


def test_a_code_of_the_provider_gives_one_token_and_the_terminal_never_the_providers_code(centre: Centre) -> None:
    terminal = Terminal(centre)
    assert set(terminal.begun) == {"device_code", "user_code", "verification_uri", "expires_in", "interval"}
    at_provider = {"grant_type": "urn:ietf:params:oauth:grant-type:device_code", "client_id": CLIENT_ID}
    taken = httpx.post(
        f"{centre.issuer}/token",
        data={**at_provider, "device_code": terminal.begun["device_code"]},
        auth=(CLIENT_ID, CLIENT_SECRET),
        trust_env=False,
    )
    assert taken.status_code == 400, "the terminal holds what the provider takes for a login"
    terminal.enter("ada")
    assert terminal.ask().json()["secret"].startswith("fairmile_")
    again = terminal.ask()
    assert again.status_code == 401 and "this login has ended" in again.text


def test_logins_of_terminals_that_the_provider_does_not_confirm_end(centre: Centre) -> None:
    for user, fault, reason in [
        ("nobody", "no", "the provider refused the login"),
        ("bob", "no", "may not use this server"),
        ("carol", "no", "account 'root' already exists"),
        ("ada", "nonce", "belongs to another login"),
        ("ada", "audience", "is not valid"),
        ("ada", "none", "proves nothing"),
        ("ada", "key", "is not valid"),
    ]:
        terminal = Terminal(centre)
        terminal.enter(user)
        spoil_next(centre.issuer, fault)
        answer = terminal.ask()
        assert answer.status_code == 401 and reason in answer.json()["error"]["message"], (user, fault, answer.text)
        spoil_next(centre.issuer, "no")
    failed = [each.facts for each in centre.workspace.access.audit() if each.facts["what"] == "log in failed"]
    assert "the provider refused the login" in {each.get("why") for each in failed}


def test_a_person_logged_in_here_cannot_confirm_a_code_that_belongs_to_the_provider(centre: Centre) -> None:
    terminal = Terminal(centre)
    browser, _ = centre.log_in("ada")
    for code in (terminal.begun["user_code"], terminal.begun["device_code"]):
        page = browser.post(f"{centre.address}/device", data={"code": code}, headers={"origin": centre.address})
        assert "no terminal shows this code" in page.text


@pytest.mark.parametrize(
    "given",
    [
        {"issuer": "https://x.example"},
        {"issuer": "http://x.example", "client_id": "a"},
        {"issuer": "https://x.example", "client_id": "a", "secret": "b"},
        {"issuer": "https://x.example", "client_id": "a", "rights": {"g": "everything"}},
        {"issuer": "https://x.example", "client_id": "a", "members": "hydro"},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        OidcSettings.parse(given)


def test_without_settings_there_is_no_provider() -> None:
    assert OidcSettings.parse({}) is None
    assert account_name("Ada@uni.edu") == "ada-uni.edu"
