"""Credentials that a client presents when it connects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from velaray.client.exceptions import (
    ErrorGettingAuthenticationData,
    InvalidConfiguration,
    VelarayError,
)
from velaray.client.tls import Security, TlsOptions


class Authentication:
    """Base of the credential classes. Use `AuthenticationToken`, `AuthenticationOauth2` or
    `AuthenticationTLS`."""

    method = "none"

    def data(self) -> bytes:
        """The data to send in the connect command."""
        return b""

    async def fetch(self, former: bytes = b"") -> bytes:
        """As `data`; called for every new connection, and whenever the service asks for fresh
        credentials in place of ``former``."""
        return self.data()

    def secured(self, tls: TlsOptions) -> Security:
        """How a client with these credentials connects by TLS; ``tls`` are its options."""
        return tls


class AuthenticationTLS(Authentication):
    """A certificate of the client, for a service URL with ``pulsar+ssl``. Its common name is the
    role. The files are read again when they have changed."""

    method = "tls"

    def __init__(self, certificate_path: str, private_key_path: str) -> None:
        """Both files are in PEM form; the key isn't encrypted. Raises `InvalidConfiguration` if
        one is missing."""
        if not (certificate_path and private_key_path):
            raise InvalidConfiguration("AuthenticationTLS needs a certificate and its key")
        self._files = {
            "certificate_file_path": certificate_path,
            "private_key_file_path": private_key_path,
        }
        TlsOptions(**self._files)  # type: ignore[arg-type]  # checks that they exist

    def secured(self, tls: TlsOptions) -> Security:
        """The options with this certificate."""
        return replace(tls, **self._files)  # type: ignore[arg-type]


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
        token = self._token if isinstance(self._token, str) else _called(self._token)
        if not isinstance(token, str):
            raise ErrorGettingAuthenticationData(
                f"the token function returned {type(token).__name__} instead of str"
            )
        return token.encode()


def _called(token: Callable[[], str]) -> str:
    """Call a user's function. Raises `ErrorGettingAuthenticationData` without the text of the
    function's error, which may hold a secret."""
    try:
        return token()
    except VelarayError:
        raise
    except Exception as error:
        problem = f"the token function raised {type(error).__name__}"
        raise ErrorGettingAuthenticationData(problem) from error
