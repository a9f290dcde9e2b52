"""Credentials that a client presents when it connects."""

from __future__ import annotations

from collections.abc import Callable

from velaray.client.exceptions import ErrorGettingAuthenticationData, InvalidConfiguration


class Authentication:
    """Base of the credential classes. Use `AuthenticationToken`."""

    method = "none"

    def data(self) -> bytes:
        """The data to send in the connect command; called for every new connection."""
        return b""


class AuthenticationToken(Authentication):
    """A JSON web token, or a function without arguments that returns one.

    A function is called for every connection and whenever the service asks for fresh
    credentials, so it may return short-lived tokens.
    """

    method = "token"

    def __init__(self, token: str | Callable[[], str]) -> None:
        if not (isinstance(token, str) or callable(token)):
            raise InvalidConfiguration(
                f"token must be a str or a function that returns one, not {type(token).__name__}"
            )
        self._token = token

    def data(self) -> bytes:
        """The token as bytes. Raises `ErrorGettingAuthenticationData`."""
        token = self._token if isinstance(self._token, str) else self._token()
        if not isinstance(token, str):
            raise ErrorGettingAuthenticationData(
                f"the token function returned {type(token).__name__} instead of str"
            )
        return token.encode()
