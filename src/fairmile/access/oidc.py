"""Logging in at an OIDC provider, and accounts from the claims of its ID token.

A browser logs in by authorization code with PKCE, a terminal by the provider's device codes (RFC 8628).

Between the way there and the way back, the browser keeps what belongs together (state, nonce, PKCE verifier, the page
to return to) in a sealed cookie; the server keeps nothing. An ID token counts when issuer, audience, nonce, expiry and
the signature by a key of the provider are right, and the algorithm is an asymmetric one.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from fairmile.access.attempts import NotLoggedIn
from fairmile.access.links import Links
from fairmile.access.rules import rights_of
from fairmile.base.errors import SystemFailure, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.registry import Plugin, Registry
from fairmile.transfer.http import Client
from fairmile.transfer.remote import Context

LOGIN_S = 600.0
_SKEW_S = 60.0
_DISCOVERY_S = 3_600.0
_KEYS_AGAIN_S = 60.0  # a token signed with an unknown key makes us ask again, but not more often
_SLOWER_S = 5.0  # RFC 8628: after `slow_down`
_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_MOST_SHOWN = 200  # letters of a code or an address that a user is to read
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_JWT: Registry[Any] = Registry("check of tokens", {"jwt": Plugin("jwt", extra="web")})


@dataclass(frozen=True)
class OidcSettings:
    """The setting `access.oidc`: a provider, and how its claims become accounts."""

    issuer: str
    client_id: str
    client_secret_file: str = ""  # a client without a secret proves itself by PKCE alone
    label: str = "single sign-on"
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    name_claim: str = "preferred_username"
    groups_claim: str = "groups"
    groups: Mapping[str, str] | None = None  # value of the claim: our group; without it, values are our groups
    rights: Mapping[str, str] | None = None  # our group: the right of its members
    members: tuple[str, ...] = ()  # only people with one of these groups may log in

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> OidcSettings | None:
        """Return the settings of a provider, or None where there are none."""
        if not given:
            return None
        texts = ("issuer", "client_id", "client_secret_file", "label", "name_claim", "groups_claim")
        many, tables = ("scopes", "members"), ("groups", "rights")
        for name, value in given.items():
            is_text = name in texts and isinstance(value, str)
            is_list = name in many and isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)
            is_table = name in tables and isinstance(value, Mapping)
            if not (is_text or is_list or is_table):
                expected = ", ".join((*texts, *many, *tables))
                raise UsageError(f"access.oidc: {name}: {value!r} cannot be read", hint=f"expected {expected}")
        for name in ("issuer", "client_id"):
            if not given.get(name):
                raise UsageError(f"access.oidc: {name} is missing", hint="issuer: https://…, client_id: …")
        values: dict[str, Any] = {name: tuple(value) if name in many else value for name, value in given.items()}
        settings = cls(**values)
        rights_of((settings.rights or {}).values())
        _check_address(settings.issuer)
        return settings


@dataclass(frozen=True)
class Person:
    """Somebody whom a provider vouches for; `rights` and `groups` are None where the provider does not decide them."""

    subject: str  # issuer#sub: the only part that never changes
    name: str
    groups: tuple[str, ...] | None
    rights: tuple[str, ...] | None


@dataclass(frozen=True)
class Begun:
    """A login that begins: where the browser goes, and what it keeps meanwhile."""

    address: str
    sealed: str


@dataclass
class ProviderCode:
    """A login of a terminal that begins: the user enters `user_code` at the provider, which knows `device_code`."""

    device_code: str
    user_code: str
    verification_uri: str
    interval_s: float
    life_s: float


class OidcProvider:
    """One provider, as the settings name it."""

    def __init__(
        self,
        settings: OidcSettings,
        context: Context,
        links: Links,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self._context = context
        self._links = links
        self._clock = clock
        self._lock = threading.Lock()
        self._discovery: tuple[float, Mapping[str, Any]] | None = None
        self._keys: tuple[float, Mapping[str, Any]] = (0.0, {})

    def begin(self, redirect_uri: str, after: str) -> Begun:
        """Return where to send a browser that logs in, and goes on to `after`."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = base64.urlsafe_b64encode(sha256(verifier.encode()).digest()).decode().rstrip("=")
        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self.settings.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        kept = {"state": state, "nonce": nonce, "verifier": verifier, "redirect": redirect_uri, "after": after}
        there = self._discovered()["authorization_endpoint"]
        return Begun(
            f"{there}{'&' if '?' in there else '?'}{urlencode(asked)}",
            self._links.seal(json.dumps(kept), self._clock() + LOGIN_S),
        )

    def finish(self, answer: Mapping[str, str], sealed: str) -> tuple[Person, str]:
        """Return who has logged in, and the page to go on to; `answer` is what the provider's redirect says."""
        text = self._links.unseal(sealed, self._clock())
        kept = json.loads(text) if text else {}
        state = answer.get("state", "")
        if not kept or not hmac.compare_digest(kept["state"].encode(), state.encode("utf-8", "replace")):
            raise NotLoggedIn("this login was not begun in this browser, or took too long", hint="begin again")
        if answer.get("iss", self.settings.issuer) != self.settings.issuer:
            raise NotLoggedIn("another provider answered", hint="begin again")
        if "code" not in answer:
            raise NotLoggedIn("the provider refused the login", hint="begin again")
        tokens = self._exchange(answer["code"], kept["verifier"], kept["redirect"])
        claims = self._claims(str(tokens.get("id_token", "")), kept["nonce"])
        return self._person(self._with_groups(claims, tokens)), str(kept["after"])

    def begin_device(self) -> ProviderCode:
        """Return a code of the provider that logs in a terminal."""
        address = self._discovered().get("device_authorization_endpoint")
        if not isinstance(address, str):
            raise UsageError(
                "this server's login provider has no login for terminals", hint="log in without --sso, with a browser"
            )
        _check_address(address)
        status, facts = self._submit(address, {"scope": " ".join(self.settings.scopes)})
        texts = [facts.get(name) for name in ("device_code", "user_code", "verification_uri")]
        if status != 200 or not all(isinstance(each, str) and each for each in texts):
            raise SystemFailure("the login provider gave no code for this terminal", hint="log in without --sso")
        device_code, user_code, there = map(str, texts)
        _check_address(there)
        if not (user_code.isprintable() and there.isprintable() and max(len(user_code), len(there)) <= _MOST_SHOWN):
            raise SystemFailure("the login provider gave no code that can be read", hint="log in without --sso")
        return ProviderCode(
            device_code, user_code, there, _number(facts, "interval", _SLOWER_S), _number(facts, "expires_in", LOGIN_S)
        )

    def finish_device(self, code: ProviderCode) -> Person | None:
        """Return who has entered a code; None as long as nobody has."""
        form = {"grant_type": _DEVICE_GRANT, "device_code": code.device_code}
        status, tokens = self._submit(self._discovered()["token_endpoint"], form)
        if status == 200 and "id_token" in tokens:
            claims = self._claims(str(tokens["id_token"]), "")
            return self._person(self._with_groups(claims, tokens))
        error = tokens.get("error")
        if error == "slow_down":
            code.interval_s += _SLOWER_S
        if error not in ("authorization_pending", "slow_down"):
            why = {"access_denied": "the provider refused the login", "expired_token": "this login has ended"}
            raise NotLoggedIn(why.get(str(error), "the provider did not confirm the login"), hint="begin again")
        return None

    # The provider

    def _discovered(self) -> Mapping[str, Any]:
        now = self._clock()
        with self._lock:
            if self._discovery is None or now - self._discovery[0] > _DISCOVERY_S:
                facts = self._get(f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration")
                if facts.get("issuer") != self.settings.issuer:
                    raise SystemFailure(
                        f"{self.settings.issuer} calls itself {facts.get('issuer')!r}",
                        hint="write issuer in access.oidc exactly as the provider does",
                    )
                for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                    _check_address(str(facts.get(name, "")))
                self._discovery = (now, facts)
            return self._discovery[1]

    def _exchange(self, code: str, verifier: str, redirect_uri: str) -> Mapping[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        status, tokens = self._submit(self._discovered()["token_endpoint"], form)
        if status != 200 or "id_token" not in tokens:
            raise NotLoggedIn("the provider did not confirm the login", hint="begin again")
        return tokens

    def _submit(self, address: str, form: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        """Send a form as this client of the provider; return the status of the answer and what it says."""
        form = {**form, "client_id": self.settings.client_id}
        headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
        if secret := self._secret():
            methods = self._discovered().get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
            if "client_secret_basic" in methods:
                pair = f"{quote(self.settings.client_id, safe='')}:{quote(secret, safe='')}"
                headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
            else:
                form["client_secret"] = secret
        with closing(Client(self._context)) as client:
            head, data = client.submit("POST", address, urlencode(form).encode(), headers)
        return head.status, _mapping(data)

    def _secret(self) -> str:
        if not self.settings.client_secret_file:
            return ""
        path = Path(self.settings.client_secret_file).expanduser()
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SystemFailure(f"cannot read {path}", hint="access.oidc: client_secret_file names it") from error

    def _get(self, url: str, headers: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        with closing(Client(self._context)) as client:
            facts = client.get_json(url, headers or {})
        if not isinstance(facts, Mapping):
            raise SystemFailure(f"{url} does not answer as an OIDC provider does")
        return facts

    # Its tokens

    def _claims(self, token: str, nonce: str) -> Mapping[str, Any]:
        """Return the claims of an ID token that was made for us, for this login, by this provider, just now.

        The login of a terminal has no nonce.
        """
        jwt = _JWT["jwt"]
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in _ALGORITHMS:
                raise NotLoggedIn(f"the provider signs with {str(header.get('alg'))[:20]!r}, which proves nothing")
            claims: Mapping[str, Any] = jwt.decode(
                token,
                self._key(str(header.get("kid", ""))),
                algorithms=[header["alg"]],
                audience=self.settings.client_id,
                issuer=self.settings.issuer,
                leeway=_SKEW_S,
                options={"require": ["iss", "sub", "aud", "exp", "iat"]},
            )
        except (jwt.PyJWTError, TypeError, ValueError) as error:  # a key of another kind than the algorithm wants
            raise NotLoggedIn("the provider's token is not valid", hint=f"begin again ({error})") from error
        audiences = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        if claims.get("azp", self.settings.client_id) != self.settings.client_id or (
            len(audiences) > 1 and "azp" not in claims
        ):
            raise NotLoggedIn("the provider's token is for another program", hint="begin again")
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise NotLoggedIn("the provider's token belongs to another login", hint="begin again")
        return claims

    def _key(self, kid: str) -> Any:
        """Return the provider's key of that name; an unknown one may have been added since we asked."""
        jwt, now = _JWT["jwt"], self._clock()
        with self._lock:
            asked, keys = self._keys
        if kid not in keys and now - asked > _KEYS_AGAIN_S:
            listed = self._get(self._discovered()["jwks_uri"]).get("keys")
            described = [each for each in listed or [] if isinstance(each, Mapping) and each.get("use") != "enc"]
            keys = {str(each.get("kid", "")): each for each in described}
            with self._lock:
                self._keys = (now, keys)
        if kid not in keys and not (kid == "" and len(keys) == 1):
            raise NotLoggedIn("the provider's token is signed with an unknown key", hint="begin again")
        chosen = keys[kid] if kid in keys else next(iter(keys.values()))
        return jwt.PyJWK(dict(chosen)).key

    # People

    def _with_groups(self, claims: Mapping[str, Any], tokens: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the claims, with those of the provider's userinfo where groups or name are not in the token."""
        wanted = {self.settings.groups_claim, self.settings.name_claim} - {""}
        address, access = self._discovered().get("userinfo_endpoint"), tokens.get("access_token")
        if wanted <= claims.keys() or not isinstance(address, str) or not isinstance(access, str):
            return claims
        _check_address(address)
        more = self._get(address, {"Authorization": f"Bearer {access}"})
        if more.get("sub") != claims["sub"]:
            raise NotLoggedIn("the provider describes somebody else", hint="begin again")
        return {**more, **claims}

    def _person(self, claims: Mapping[str, Any]) -> Person:
        settings = self.settings
        values = claims.get(settings.groups_claim) if settings.groups_claim else None
        stated = [values] if isinstance(values, str) else values if isinstance(values, list) else []
        stated = [each for each in stated if isinstance(each, str)]
        groups = _groups(stated, settings.groups)
        if settings.members and not {*stated, *groups} & set(settings.members):
            raise NotLoggedIn("your account there may not use this server", hint="ask the owner of this server")
        rights = settings.rights
        return Person(
            f"{settings.issuer}#{claims['sub']}",
            account_name(str(claims.get(settings.name_claim) or claims["sub"])),
            tuple(groups) if settings.groups_claim else None,
            tuple(rights[each] for each in groups if each in rights) if rights is not None else None,
        )


def account_name(text: str) -> str:
    """Return the name of an account for a name elsewhere: `Ada@uni.edu` is `ada-uni.edu`."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:64]


def _groups(stated: Iterable[str], table: Mapping[str, str] | None) -> list[str]:
    if table is not None:
        return sorted({table[each] for each in stated if each in table})
    return sorted({name for each in stated if (name := account_name(each)) == each.lower()})


def _check_address(address: str) -> None:
    """Refuse an address that others could read along, unless it is on this machine."""
    parts = urlsplit(address)
    is_local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
    if not parts.hostname or not (parts.scheme == "https" or is_local):
        raise UsageError(f"access.oidc: {address!r} is not an https:// address")


def _number(facts: Mapping[str, Any], name: str, default: float) -> float:
    value = facts.get(name)
    return float(value) if isinstance(value, (int, float)) and 0 < value <= LOGIN_S else default


def _mapping(data: bytes) -> Mapping[str, Any]:
    try:
        facts = json.loads(data)
    except ValueError:
        return {}
    return facts if isinstance(facts, Mapping) else {}
