"""TLS of a client's connections: what it trusts, and the certificate that it presents."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from velaray.client.exceptions import InvalidConfiguration

Stamp = tuple[int, int, int] | None
"""What changes when a file changes; None: there is no file."""

_NO_PASSWORD = ""
"""Without it OpenSSL asks for the password of an encrypted key on the terminal."""


def stamps(paths: Sequence[str]) -> tuple[Stamp, ...]:
    """The stamps of files. They differ if a file has been replaced or written to."""
    return tuple(map(_stamp, paths))


def _stamp(path: str) -> Stamp:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class TlsFilesError(OSError):
    """Files of certificates or keys can't be used; the text names them."""


class Security(Protocol):
    """How a client connects by TLS."""

    def context(self) -> ssl.SSLContext:
        """The context of a new connection. Raises `TlsFilesError` if a file can't be used."""
        ...

    def server_name(self, host: str) -> str:
        """The name that the certificate of a server on ``host`` must have."""
        ...


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """What a client trusts, and the certificate that it presents. Files are read again when they
    have changed.

    trust_certs_file_path: the certificates (PEM) of the authorities that sign servers'
        certificates; None: those of the system.
    allow_insecure_connection: accept any certificate of the server. Then anyone on the way can read
        and change what is sent.
    validate_hostname: whether the certificate must be for the host of the URL.
    certificate_file_path, private_key_file_path: the client's certificate and key (PEM), for a
        server that asks for one.
    """

    trust_certs_file_path: str | None = None
    allow_insecure_connection: bool = False
    validate_hostname: bool = True
    certificate_file_path: str | None = None
    private_key_file_path: str | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidConfiguration` for a key without a certificate and for missing files."""
        if bool(self.certificate_file_path) != bool(self.private_key_file_path):
            raise InvalidConfiguration(
                "give both tls_certificate_file_path and tls_private_key_file_path, or neither"
            )
        for path in self._files():
            if not Path(path).is_file():
                raise InvalidConfiguration(f"TLS: {path} is no file")

    def arguments(self) -> dict[str, Any]:
        """The options as arguments of a client, whose names begin with ``tls_``."""
        return {f"tls_{each.name}": getattr(self, each.name) for each in fields(self)}

    def _files(self) -> list[str]:
        paths = self.trust_certs_file_path, self.certificate_file_path, self.private_key_file_path
        return [path for path in paths if path]

    def context(self) -> ssl.SSLContext:
        """The context of a new connection. Raises `TlsFilesError` if a file can't be used."""
        return _context(self, stamps(self._files()))

    def server_name(self, host: str) -> str:
        """The host itself."""
        return host


def tls_arguments(security: Security | None, host: str) -> dict[str, Any]:
    """The arguments of asyncio's ``create_connection`` to ``host``; None: without TLS.

    Raises `TlsFilesError` if a file can't be used.
    """
    if security is None:
        return {}
    return {"ssl": security.context(), "server_hostname": security.server_name(host)}


def http_arguments(security: Security | None, url: str) -> dict[str, Any]:
    """The arguments of aiohttp's requests to ``url``; None: as aiohttp connects by TLS.

    Raises `TlsFilesError` if a file can't be used.
    """
    if security is None or not url.startswith("https:"):
        return {}
    return tls_arguments(security, urlsplit(url).hostname or "")


@lru_cache(maxsize=64)
def _context(options: TlsOptions, files: tuple[Stamp, ...]) -> ssl.SSLContext:
    """A context is made once for the same options and the same ``files``: it takes milliseconds."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = options.validate_hostname and not options.allow_insecure_connection
    if options.allow_insecure_connection:
        context.verify_mode = ssl.CERT_NONE
    elif options.trust_certs_file_path:
        load_authorities(context, options.trust_certs_file_path)
    else:
        context.load_default_certs()
    if options.certificate_file_path and options.private_key_file_path:
        load_pair(context, options.certificate_file_path, options.private_key_file_path)
    return context


def load_authorities(context: ssl.SSLContext, path: str) -> None:
    """Trust the certificates in a file. Raises `TlsFilesError`."""
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise TlsFilesError(f"{path} holds no usable certificates in PEM form: {error}") from error


def load_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Present the certificate with its key. Raises `TlsFilesError`."""
    try:
        context.load_cert_chain(certificate, key, _NO_PASSWORD)
    except OSError as error:
        raise TlsFilesError(
            f"{certificate} and {key} are no certificate and its unencrypted key in PEM form: "
            f"{error}"
        ) from error
