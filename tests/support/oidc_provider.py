"""An OIDC provider in a process of its own, made of Authlib's grants: it checks client, redirect and PKCE itself.

`python oidc_provider.py` prints its address. People log in by a form with their name, in a browser or, with the code
of a terminal, at `/activate`. `PUT /fault/NAME` makes the next ID token wrong in one way.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

CLIENT_ID, CLIENT_SECRET = "fairmile", "s3cret/with:odd characters"
PEOPLE: dict[str, dict[str, Any]] = {
    "ada": {"preferred_username": "Ada", "groups": ["/hpc/hydro", "/other"]},
    "bob": {"preferred_username": "bob", "groups": []},
    "carol": {"preferred_username": "root", "groups": ["/hpc/hydro"]},  # the name of a local account
    "dan": {"preferred_username": "dan", "groups": ["/hpc/admins", "/hpc/hydro"]},
}
POLL_S = 0.1  # a terminal may ask as often
NOT_IN_TOKEN = ("dan",)  # whose claims only userinfo has


@contextmanager
def running_provider() -> Iterator[str]:
    """Run a provider, and give its address."""
    environ = {**os.environ, "AUTHLIB_INSECURE_TRANSPORT": "1"}
    argv = [sys.executable, "-W", "ignore", __file__]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def spoil_next(issuer: str, fault: str) -> None:
    """Let the next ID token of a provider be wrong in one way."""
    httpx.put(f"{issuer}/fault/{fault}", trust_env=False).raise_for_status()


def _serve() -> None:  # noqa: C901, PLR0915  one program, which nobody imports
    import flask
    from authlib.integrations.flask_oauth2 import AuthorizationServer
    from authlib.oauth2.rfc6749 import ClientMixin
    from authlib.oauth2.rfc6749.grants import AuthorizationCodeGrant
    from authlib.oauth2.rfc7636 import CodeChallenge
    from authlib.oauth2.rfc8628 import DeviceAuthorizationEndpoint, DeviceCodeGrant, DeviceCredentialDict
    from authlib.oidc.core.grants import OpenIDCode
    from joserfc import jwk, jwt
    from werkzeug.serving import make_server

    app = flask.Flask("provider")
    key, other_key = (jwk.RSAKey.generate_key(2048, {"kid": "first", "use": "sig"}) for _ in range(2))
    codes: dict[str, Code] = {}
    tokens: dict[str, str] = {}
    faults: list[str] = []
    terminals: dict[str, DeviceCredentialDict] = {}  # by their device codes
    answers: dict[str, tuple[str, bool]] = {}  # by the codes that users enter: who it was, and whether they agreed
    asked_at: dict[str, float] = {}

    class Client(ClientMixin):
        client_id = CLIENT_ID

        def get_client_id(self) -> str:
            return CLIENT_ID

        def get_default_redirect_uri(self) -> None:
            return None

        def get_allowed_scope(self, scope: str) -> str:
            return scope

        def check_redirect_uri(self, uri: str) -> bool:
            return uri.startswith("https://127.0.0.1:") and uri.endswith("/login/oidc/callback")

        def check_client_secret(self, secret: str) -> bool:
            return secret == CLIENT_SECRET

        def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
            return method == "client_secret_basic"

        def check_response_type(self, kind: str) -> bool:
            return kind == "code"

        def check_grant_type(self, kind: str) -> bool:
            return kind in ("authorization_code", DeviceCodeGrant.GRANT_TYPE)

    @dataclass
    class Code:
        code: str
        user: str
        redirect_uri: str
        nonce: str
        code_challenge: str
        code_challenge_method: str
        scope: str = "openid"
        auth_time: int = field(default_factory=lambda: int(time.time()))

        def get_redirect_uri(self) -> str:
            return self.redirect_uri

        def get_scope(self) -> str:
            return self.scope

        def get_nonce(self) -> str:
            return self.nonce

        def get_auth_time(self) -> int:
            return self.auth_time

        def get_acr(self) -> None:
            return None

        def get_amr(self) -> None:
            return None

    class Grant(AuthorizationCodeGrant):
        TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic",)

        def save_authorization_code(self, code: str, request: Any) -> None:
            asked = request.payload.data
            codes[code] = Code(
                code,
                request.user,
                request.payload.redirect_uri,
                asked.get("nonce", ""),
                asked.get("code_challenge", ""),
                asked.get("code_challenge_method", ""),
            )

        def query_authorization_code(self, code: str, client: Any) -> Code | None:
            return codes.get(code)

        def delete_authorization_code(self, code: Code) -> None:
            codes.pop(code.code, None)

        def authenticate_user(self, code: Code) -> str:
            return code.user

    class IdToken(OpenIDCode):
        def exists_nonce(self, nonce: str, request: Any) -> bool:
            return False

        def get_jwt_config(self, grant: Any, client: Any = None) -> dict[str, Any]:
            return {"key": key.as_dict(private=True), "alg": "RS256", "iss": issuer, "exp": 300}

        def generate_user_info(self, user: str, scope: str) -> Any:
            from authlib.oidc.core import UserInfo

            return UserInfo(sub=f"id-{user}", **({} if user in NOT_IN_TOKEN else PEOPLE[user]))

    class DeviceCodes(DeviceAuthorizationEndpoint):
        INTERVAL = POLL_S
        CLIENT_AUTH_METHODS = ("client_secret_basic",)

        def get_verification_uri(self) -> str:
            return f"{issuer}/activate"

        def save_device_credential(self, client_id: str, scope: str, data: dict[str, Any]) -> None:
            terminals[data["device_code"]] = DeviceCredentialDict(client_id=client_id, scope=scope, **data)

    class DeviceGrant(DeviceCodeGrant):
        TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic",)

        def query_device_credential(self, device_code: str) -> DeviceCredentialDict | None:
            return terminals.get(device_code)

        def query_user_grant(self, user_code: str) -> tuple[str, bool] | None:
            return answers.get(user_code)

        def should_slow_down(self, credential: DeviceCredentialDict) -> bool:
            before, asked_at[credential["device_code"]] = asked_at.get(credential["device_code"]), time.monotonic()
            return before is not None and time.monotonic() - before < POLL_S

        def save_token(self, token: dict[str, Any]) -> None:
            super().save_token(token)
            del terminals[self.request.credential["device_code"]]

    def spoiled(token: str, fault: str) -> str:
        claims = dict(jwt.decode(token, key).claims)
        changes = {
            "nonce": {"nonce": "another"},
            "audience": {"aud": "another"},
            "audiences": {"aud": ["another", CLIENT_ID]},
            "azp": {"azp": "another"},
            "issuer": {"iss": "https://evil.example"},
            "expired": {"exp": int(time.time()) - 3600, "iat": int(time.time()) - 7200},
        }
        claims |= changes.get(fault, {})
        if fault == "none":
            return f"{_packed({'alg': 'none', 'kid': 'first'})}.{_packed(claims)}."
        if fault == "hmac":  # the public key as a password, which everybody knows
            body = f"{_packed({'alg': 'HS256', 'kid': 'first'})}.{_packed(claims)}"
            pem = key.as_pem(private=False)
            return f"{body}.{_base64(hmac.new(pem, body.encode(), hashlib.sha256).digest())}"
        if fault == "unsigned":
            return token.rpartition(".")[0] + "."
        signer = other_key if fault in ("key", "kid") else key
        return jwt.encode({"alg": "RS256", "kid": "unknown" if fault == "kid" else "first"}, claims, signer)

    def save_token(token: dict[str, Any], request: Any) -> None:
        tokens[token["access_token"]] = request.user

    server = AuthorizationServer(
        app, query_client=lambda client: Client() if client == CLIENT_ID else None, save_token=save_token
    )
    server.register_grant(Grant, [IdToken(require_nonce=True), CodeChallenge(required=True)])
    server.register_grant(DeviceGrant, [IdToken(require_nonce=False)])
    server.register_endpoint(DeviceCodes)

    @app.get("/.well-known/openid-configuration")
    def configuration() -> Any:
        return {
            "issuer": issuer,
            "authorization_endpoint": f"{issuer}/authorize",
            "token_endpoint": f"{issuer}/token",
            "userinfo_endpoint": f"{issuer}/userinfo",
            "device_authorization_endpoint": f"{issuer}/device",
            "jwks_uri": f"{issuer}/jwks",
        }

    @app.get("/jwks")
    def keys() -> Any:
        return {"keys": [key.as_dict(private=False)]}

    @app.route("/authorize", methods=["GET", "POST"])
    def authorize() -> Any:
        if flask.request.method == "GET":
            buttons = "".join(f'<button name="user" value="{name}">{name}</button>' for name in PEOPLE)
            return f'<!doctype html><html lang="en"><title>Provider</title><form method="post">{buttons}</form></html>'
        user = flask.request.form["user"]
        return server.create_authorization_response(grant_user=user, grant=server.get_consent_grant(end_user=user))

    @app.post("/device")
    def device() -> Any:
        return server.create_endpoint_response("device_authorization")

    @app.route("/activate", methods=["GET", "POST"])
    def activate() -> Any:
        if flask.request.method == "GET":
            field = '<label>Code <input name="code"></label>'
            buttons = "".join(f'<button name="user" value="{name}">{name}</button>' for name in [*PEOPLE, "nobody"])
            form = f'<form method="post">{field}{buttons}</form>'
            return f'<!doctype html><html lang="en"><title>Provider</title>{form}</html>'
        user = flask.request.form["user"]
        answers[flask.request.form["code"]] = (user, user in PEOPLE)
        return "Done."

    @app.post("/token")
    def token() -> Any:
        response = server.create_token_response()
        if faults and response.status_code == 200:
            document = response.get_json()
            document["id_token"] = spoiled(document["id_token"], faults.pop())
            response.set_data(json.dumps(document))
        return response

    @app.get("/userinfo")
    def userinfo() -> Any:
        user = tokens[flask.request.headers["authorization"].removeprefix("Bearer ")]
        sub = f"id-{user}" if "userinfo" not in faults else "id-another"
        return {"sub": sub, **PEOPLE[user]}

    @app.put("/fault/<name>")
    def fault(name: str) -> Any:
        faults[:] = [name] if name != "no" else []
        return ""

    app.secret_key = secrets.token_bytes(16)
    listener = make_server("127.0.0.1", 0, app, threaded=True)
    issuer = f"http://127.0.0.1:{listener.port}"
    sys.stdout.write(f"{issuer}\n")
    sys.stdout.flush()
    listener.serve_forever()


def _packed(value: Any) -> str:
    return _base64(json.dumps(value).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


if __name__ == "__main__":
    _serve()
