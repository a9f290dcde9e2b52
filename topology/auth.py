"""Token authentication: JSON web tokens signed with HS256 or RS256. And how the cluster's own
actors prove themselves where they come as clients, whether or not tokens are in use."""

from __future__ import annotations

import hmac

from velaray.topology.config import AuthSettings

SYSTEM_METHOD = "velaray-system"
"""The method of authentication that only actors of the cluster can use."""


class AuthenticationFailed(PermissionError):
    """The token is missing, malformed, expired or signed with another key."""


def authenticate(settings: AuthSettings | None, token: str) -> str:
    """The role (``sub`` claim) that ``token`` proves; "" where authentication is off.

    Raises `AuthenticationFailed` with a text that may be shown to the client.
    """
    if settings is None:
        return ""
    import jwt  # brings a large library along: only where tokens are in use

    if not token:
        raise AuthenticationFailed("this cluster requires a token: none was given")
    key: str | bytes
    if settings.secret is not None:
        key, algorithm = settings.secret, "HS256"
    else:
        assert settings.public_key is not None
        key, algorithm = settings.public_key, "RS256"
    try:
        claims = jwt.decode(token, key, algorithms=[algorithm], options={"require": ["sub"]})
    except jwt.InvalidTokenError as error:
        raise AuthenticationFailed(f"invalid token: {error}") from error
    return str(claims["sub"])


def system_proof(link_key: bytes) -> str:
    """What an actor of the cluster sends with `SYSTEM_METHOD`; the key can't be had from it."""
    return hmac.digest(link_key, b"velaray: a client that is an actor", "sha256").hex()


def check_system_proof(link_key: bytes, proof: str) -> None:
    """Raise `AuthenticationFailed` unless an actor of the cluster made ``proof``."""
    if not hmac.compare_digest(system_proof(link_key).encode(), proof.encode()):
        raise AuthenticationFailed("only actors of this cluster are the system")
