"""Credentials that a client fetches from an OAuth 2 provider: the flow of client credentials."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlencode, urlsplit

from velaray.client.auth import Authentication
from velaray.client.exceptions import (
    ConnectError,
    ErrorGettingAuthenticationData,
    InvalidConfiguration,
)

if TYPE_CHECKING:
    from urllib3 import PoolManager

TIMEOUT_S = 10.0
"""The time limit of each of the two requests to the provider."""
MARGIN_S = 30.0
"""A token is used until so long before its end, or until a tenth of its life before, if that is
less."""
_FLOW = "client_credentials"
_DISCOVERY = "/.well-known/openid-configuration"
_FORM = "application/x-www-form-urlencoded"
_DATA = "data:application/json;base64,"
_OTHERS = ("type", "issuer_url", "private_key", "client_id", "client_secret", "audience", "scope")
_MOST_BYTES = 1 << 20
_MOST_TEXT = 200
_TRY_AGAIN = 429


class _Credentials(NamedTuple):
    client_id: str
    client_secret: str


class _Token(NamedTuple):
    data: bytes
    fresh_until_s: float


@dataclass(frozen=True)
class _Parameters:
    """What the constructor of `AuthenticationOauth2` is given."""

    issuer_url: str
    private_key: str | None
    credentials: _Credentials | None = field(repr=False)
    extra: Mapping[str, str]
    """``audience`` and ``scope``, if they are given."""

    @staticmethod
    def of(text: str) -> _Parameters:
        """Raises `InvalidConfiguration`."""
        given = _object(text, InvalidConfiguration, "auth_params_string")
        strange = sorted(given.keys() - set(_OTHERS))
        if strange:
            known = ", ".join(_OTHERS)
            raise InvalidConfiguration(
                f"auth_params_string has {', '.join(strange)}: known {known}"
            )
        for name, value in given.items():
            if not isinstance(value, str):
                raise InvalidConfiguration(f"auth_params_string: {name} must be a text")
        if given.get("type", _FLOW) != _FLOW:
            raise InvalidConfiguration(f"auth_params_string: type can only be {_FLOW}")
        issuer = given.get("issuer_url", "")
        if not _is_web(issuer):
            raise InvalidConfiguration("auth_params_string needs issuer_url, with https://")
        private_key, both = (
            given.get("private_key"),
            ("client_id" in given, "client_secret" in given),
        )
        if (private_key is None, *both) not in ((False, False, False), (True, True, True)):
            raise InvalidConfiguration(
                "auth_params_string needs either private_key or both client_id and client_secret"
            )
        extra = {name: given[name] for name in ("audience", "scope") if given.get(name)}
        own = _Credentials(given["client_id"], given["client_secret"]) if all(both) else None
        made = _Parameters(issuer.rstrip("/"), private_key, own, extra)
        made.read_credentials(InvalidConfiguration)
        return made

    def read_credentials(self, problem: type[Exception]) -> _Credentials:
        """The client's id and secret. Raises ``problem`` if there are none in `private_key`."""
        if self.credentials is not None:
            return self.credentials
        assert self.private_key is not None
        found = _object(_content(self.private_key, problem), problem, "the file of private_key")
        client_id, secret = found.get("client_id"), found.get("client_secret")
        if not (isinstance(client_id, str) and isinstance(secret, str) and client_id and secret):
            raise problem("the file of private_key needs the texts client_id and client_secret")
        return _Credentials(client_id, secret)


class AuthenticationOauth2(Authentication):
    """A token that is fetched from an OAuth 2 provider, such as Keycloak or Auth0, with the id and
    the secret of this client.

    The provider's ``.well-known/openid-configuration`` names the URL of tokens. A token is kept
    until shortly before its end (``expires_in``), and replaced when the service asks for a fresh
    one. Connections of the same object share it. The authorities of the system are trusted;
    ``SSL_CERT_FILE`` names another file.
    """

    method = "token"

    def __init__(self, auth_params_string: str) -> None:
        """``auth_params_string`` is JSON with these texts:

        - ``issuer_url``: the URL of the provider.
        - ``private_key``: a file of JSON with ``client_id`` and ``client_secret``, as
          ``/path/to/file``, ``file:///path/to/file`` or ``data:application/json;base64,…``. A file
          is read for each token, so it may be replaced. Instead of it: ``client_id`` and
          ``client_secret``.
        - ``audience`` and ``scope``: sent to the provider if they are given.
        - ``type``: ``client_credentials``, the default.

        Raises `InvalidConfiguration`.
        """
        if not isinstance(auth_params_string, str):
            kind = type(auth_params_string).__name__
            raise InvalidConfiguration(f"auth_params_string must be a str of JSON, not {kind}")
        self._given = auth_params_string
        self._parameters = _Parameters.of(auth_params_string)
        self._fetching = threading.Lock()
        self._known = _Token(b"", -math.inf)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._given,)

    def data(self) -> bytes:
        """The token; blocks while it is fetched.

        Raises `ErrorGettingAuthenticationData` if the provider refuses, and `ConnectError` if it
        doesn't answer.
        """
        return self._fetched(b"")

    async def fetch(self, former: bytes = b"") -> bytes:
        """As `data`, without blocking the event loop."""
        known = self._fresh(former)
        return await asyncio.to_thread(self._fetched, former) if known is None else known

    def _fresh(self, former: bytes) -> bytes | None:
        data, until_s = self._known
        return data if data != former and time.monotonic() < until_s else None

    def _fetched(self, former: bytes) -> bytes:
        with self._fetching:
            known = self._fresh(former)  # another thread may have fetched it meanwhile
            if known is None:
                self._known = _request_token(self._parameters)
                known = self._known.data
            return known


def _request_token(parameters: _Parameters) -> _Token:
    """Request a token. Raises `ErrorGettingAuthenticationData` and `ConnectError`."""
    from urllib3 import PoolManager  # loaded by few programs

    client_id, secret = parameters.read_credentials(ErrorGettingAuthenticationData)
    form = {
        "grant_type": _FLOW,
        "client_id": client_id,
        "client_secret": secret,
        **parameters.extra,
    }
    with PoolManager(timeout=TIMEOUT_S, retries=False) as pool:
        url = _token_url(pool, parameters.issuer_url)
        began_s = time.monotonic()
        found = _ask(pool, "POST", url, urlencode(form))
    token, life_s = found.get("access_token"), found.get("expires_in")
    if not isinstance(token, str) or not token:
        raise ErrorGettingAuthenticationData(f"{url} answered without an access_token")
    if isinstance(life_s, bool) or not isinstance(life_s, int | float):
        life_s = 0  # unknown: every connection fetches a token
    return _Token(token.encode(), began_s + life_s - min(MARGIN_S, life_s / 10))


def _token_url(pool: PoolManager, issuer: str) -> str:
    """Where the provider issues tokens, by its configuration."""
    where = issuer + _DISCOVERY
    url = _ask(pool, "GET", where).get("token_endpoint")
    if not isinstance(url, str) or not _is_web(url):
        raise ErrorGettingAuthenticationData(f"{where} names no token_endpoint")
    if urlsplit(issuer).scheme == "https" != urlsplit(url).scheme:
        raise ErrorGettingAuthenticationData(
            f"{where} names the token_endpoint {url}: the secret isn't sent without TLS"
        )
    return url


def _ask(pool: PoolManager, method: str, url: str, form: str | None = None) -> dict[str, Any]:
    """The JSON object that is answered. Redirects aren't followed."""
    from urllib3.exceptions import HTTPError

    headers = {"Accept": "application/json"} | ({"Content-Type": _FORM} if form else {})
    try:
        answer = pool.request(
            method, url, body=form, headers=headers, redirect=False, preload_content=False
        )
        content, status = answer.read(_MOST_BYTES), answer.status
    except (HTTPError, OSError) as error:
        raise ConnectError(f"no answer from the OAuth 2 provider at {url}: {error}") from error
    if status >= 500 or status == _TRY_AGAIN:
        raise ConnectError(f"the OAuth 2 provider at {url} answered with status {status}")
    if status != 200:
        raise ErrorGettingAuthenticationData(
            f"the OAuth 2 provider at {url} answered with status {status}: {_reason(content)}"
        )
    return _object(content, ErrorGettingAuthenticationData, f"the answer of {url}")


def _reason(content: bytes) -> str:
    """What an answer says about an error, in the form of RFC 6749 or another one."""
    try:
        found = json.loads(content)
        texts = [found[name] for name in ("error", "error_description") if name in found]
    except (ValueError, TypeError):
        texts = []
    text = ": ".join(map(str, texts)) or content.decode("utf-8", "replace")
    return text[:_MOST_TEXT]


def _object(text: str | bytes, problem: type[Exception], what: str) -> dict[str, Any]:
    """The JSON object in ``text``. Raises ``problem``, which doesn't show the text: it may hold a
    secret."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise problem(f"{what} is no JSON object")
    return found


def _content(private_key: str, problem: type[Exception]) -> bytes:
    """The content that ``private_key`` names or holds."""
    if private_key.startswith(_DATA):
        try:
            return base64.b64decode(private_key.removeprefix(_DATA), validate=True)
        except binascii.Error:
            raise problem("private_key holds no base64 after data:application/json") from None
    parts = urlsplit(private_key)
    if parts.scheme not in ("", "file") or parts.netloc:
        raise problem(f"private_key must be the path of a file, file:///path or {_DATA}…")
    path = unquote(parts.path) if parts.scheme else private_key
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise problem(f"private_key: {path}: {error.strerror}") from error


def _is_web(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("https", "http") and bool(parts.hostname)
