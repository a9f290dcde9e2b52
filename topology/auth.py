"""Token authentication: JSON web tokens signed with HS256 or RS256."""

from __future__ import annotations

from velaray.topology.config import AuthSettings


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
