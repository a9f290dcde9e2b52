"""An OpenID provider on loopback: it publishes keys and issues tokens."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

RSA, OTHER = rsa.generate_private_key(65537, 2048), rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())


def published(**keys: Any) -> dict[str, Any]:
    """A key set with these keys by id."""
    found = []
    for name, key in keys.items():
        rsa_key = isinstance(key, rsa.RSAPrivateKey)
        kind = jwt.algorithms.RSAAlgorithm if rsa_key else jwt.algorithms.ECAlgorithm
        found.append({**kind.to_jwk(key.public_key(), as_dict=True), "kid": name, "use": "sig"})
    return {"keys": found}


class Provider:
    """A web server that publishes keys, and issues tokens to the client `ID` with `SECRET`."""

    ID, SECRET = "alice", "the secret & of = alice"

    def __init__(self) -> None:
        self.keys = published(one=RSA, two=EC)
        self.reads = 0
        """How often the keys were read."""
        self.life_s = 600.0
        """The life of the tokens that are issued."""
        self.forms: list[dict[str, str]] = []
        """What clients asked for tokens with."""
        self.answers: list[tuple[int, Any]] = []
        """What the next requests of tokens are answered instead: the status, and JSON."""
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/keys":
                    provider.reads += 1
                    self._answer(200, provider.keys)
                else:
                    self._answer(200, provider.configuration)

            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                form = dict(parse_qsl(self.rfile.read(size).decode(), strict_parsing=True))
                self._answer(*provider.issue(form))

            def _answer(self, status: int, body: Any) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *arguments: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.configuration = {
            "jwks_uri": f"{self.issuer}/keys",
            "token_endpoint": f"{self.issuer}/token",
        }

    def token(self, key: Any = RSA, kid: str = "one", algorithm: str = "RS256", **more: Any) -> str:
        """A token of alice."""
        claims = {
            "iss": self.issuer,
            "aud": "velaray",
            "sub": "alice",
            "exp": time.time() + 600,
            **more,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": kid})

    def issue(self, form: dict[str, str]) -> tuple[int, Any]:
        """The answer to a request of a token, by the flow of client credentials."""
        self.forms.append(form)
        if self.answers:
            return self.answers.pop(0)
        if (form.get("client_id"), form.get("client_secret")) != (self.ID, self.SECRET):
            return 401, {"error": "invalid_client", "error_description": "unknown, or wrong secret"}
        number = len(self.forms)
        token = self.token(exp=time.time() + self.life_s, aud=form["audience"], jti=str(number))
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": self.life_s}


@contextmanager
def running() -> Iterator[Provider]:
    """A provider that answers."""
    made = Provider()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()
