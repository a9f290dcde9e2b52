"""Tokens of an OpenID provider (OAuth 2): their keys, and their verification.

The provider publishes its keys at a URL (a JSON web key set). A process reads them when a client
presents a token of an unknown key, at most once in `AGAIN_S` seconds, and again when they are
older than `LIFE_S` seconds. If the provider doesn't answer, known keys stay valid.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from velaray.topology.config import OidcSettings

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
"""The algorithms that are accepted: only those with public keys."""
AGAIN_S = 30.0
LIFE_S = 3600.0
TIMEOUT_S = 10.0
_MOST_BYTES = 1 << 20
_DISCOVERY = "/.well-known/openid-configuration"


def read_json(url: str) -> Any:
    """The JSON at a URL. Raises `OSError`, and `ValueError` for something else."""
    import urllib.request  # loads libraries that no other part of an actor needs

    if not url.startswith(("https://", "http://")):
        raise ValueError(f"{url} is no URL of a web server")
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return json.loads(answer.read(_MOST_BYTES))


class KeySet:
    """The keys of one provider."""

    def __init__(
        self,
        settings: OidcSettings,
        read: Callable[[str], Any] = read_json,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._read = read
        self._clock_s = clock_s
        self._keys: dict[str | None, Any] = {}
        self._asked_s: float | None = None
        self._fetching: asyncio.Task[None] | None = None

    def should_fetch(self, token: str) -> bool:
        """Whether the keys must be read before this token can be judged."""
        if self._asked_s is None:
            return True
        age_s = self._clock_s() - self._asked_s
        return age_s > LIFE_S or (age_s > AGAIN_S and self._key_of(token) is None)

    async def fetch(self) -> None:
        """Read the keys; callers at the same time share the attempt. A failure changes nothing."""
        if self._fetching is None or self._fetching.done():
            self._asked_s = self._clock_s()
            self._fetching = asyncio.ensure_future(self._fetch())
        await asyncio.shield(self._fetching)

    async def _fetch(self) -> None:
        try:
            found = await asyncio.to_thread(self._published)
        except (OSError, ValueError):
            return
        self._keys = found

    def _published(self) -> dict[str | None, Any]:
        import jwt

        url = self._settings.jwks_url
        if not url:
            found = self._read(self._settings.issuer.rstrip("/") + _DISCOVERY)
            url = found["jwks_uri"] if isinstance(found, dict) else ""
        try:
            keys = jwt.PyJWKSet.from_dict(self._read(url)).keys
        except (jwt.PyJWTError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{url} publishes no keys: {error}") from error
        return {
            key.key_id: key
            for key in keys
            if key.algorithm_name in ALGORITHMS and key.public_key_use in (None, "sig")
        }

    def _key_of(self, token: str) -> Any | None:
        import jwt

        try:
            name = jwt.get_unverified_header(token).get("kid")
        except jwt.InvalidTokenError:
            return None
        if name is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(name)

    def claims(self, token: str) -> dict[str, Any]:
        """The claims of a valid token. Raises `jwt.InvalidTokenError`."""
        import jwt

        key, settings = self._key_of(token), self._settings
        if key is None:
            raise jwt.InvalidTokenError(f"{settings.issuer} publishes no such key")
        found: dict[str, Any] = jwt.decode(
            token,
            key.key,
            algorithms=[key.algorithm_name],
            audience=settings.audience,
            issuer=settings.issuer,
            options={"require": ["exp", "iss", "aud", settings.role_claim]},
        )
        return found


@cache
def key_set(settings: OidcSettings) -> KeySet:
    """The keys of a provider, which the clients of a process share."""
    return KeySet(settings)


def is_issued_by(settings: OidcSettings, token: str) -> bool:
    """Whether a token says that it is the provider's, which proves nothing."""
    import jwt

    try:
        said = jwt.decode(token, options={"verify_signature": False})
    except jwt.InvalidTokenError:
        return False
    return bool(said.get("iss") == settings.issuer)
