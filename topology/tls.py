"""TLS of a cluster's listeners. Their certificates follow the files without a restart."""

from __future__ import annotations

import logging
import ssl
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from velaray.client.tls import TlsFilesError, TlsOptions, load_authorities, load_pair, stamps
from velaray.topology.config import ClusterConfig
from velaray.topology.tls_settings import ACTORS_NAME, ClientAuth, TlsSettings, TlsVersion

if TYPE_CHECKING:
    from velaray.topology.actor_tls import ActorTls

logger = logging.getLogger("velaray")


_VERIFY = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}
_VERSIONS = {
    TlsVersion.TLS_1_2: ssl.TLSVersion.TLSv1_2,
    TlsVersion.TLS_1_3: ssl.TLSVersion.TLSv1_3,
}


def load(settings: TlsSettings) -> ssl.SSLContext:
    """The context of a server. Raises `TlsFilesError` for files that can't be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.min_version]
    # Resumed sessions would keep the role of a certificate that may have expired meanwhile.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    load_pair(context, settings.cert, settings.key)
    if settings.ca:
        load_authorities(context, settings.ca)
    context.verify_mode = _VERIFY[settings.client_auth]
    return context


def expiry_of(path: str) -> float:
    """When the first certificate in a file expires, in seconds since 1970. Raises
    `TlsFilesError`."""
    from cryptography import x509  # loads a large library: imported only where TLS is in use

    try:
        found = x509.load_pem_x509_certificate(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise TlsFilesError(f"{path} holds no certificate in PEM form: {error}") from error
    return found.not_valid_after_utc.timestamp()


def check_files(settings: TlsSettings) -> None:
    """Raise `TlsFilesError` for files that can't be used."""
    expiry_of(settings.cert)
    load(settings)


class ServerTls:
    """The TLS of the listeners of a process.

    The files are looked at in each handshake. If they have changed, the new ones serve this
    handshake and the later ones; open connections stay. New files that can't be used change
    nothing: `problem` says why, until they change again.
    """

    def __init__(self, settings: TlsSettings, actors: ActorTls) -> None:
        """Raises `TlsFilesError` for files that can't be used."""
        self._settings = settings
        self._actors = actors
        self._read = stamps(settings.files())
        self._current = load(settings)
        self.expires_s = expiry_of(settings.cert)
        """When the certificate in use expires, in seconds since 1970."""
        self.problem = ""
        """The reason why the files aren't in use; "": they are."""
        self.context = load(settings)
        """The context for listeners."""
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        """Choose the certificate of a handshake: that of actors, or the one in the files."""
        if name == ACTORS_NAME:
            connection.context = self._actors.server
            return
        self.refresh()
        connection.context = self._current

    def refresh(self) -> None:
        """Use the files if they have changed. A failure is logged and kept in `problem`."""
        found = stamps(self._settings.files())
        if found == self._read:
            return
        self._read = found
        try:
            expires_s, current = expiry_of(self._settings.cert), load(self._settings)
        except TlsFilesError as error:
            self.problem = str(error)
            logger.error("TLS: the former certificate stays in use: %s", error)
            return
        self.expires_s, self._current, self.problem = expires_s, current, ""
        logger.info("TLS: %s is in use", self._settings.cert)


@lru_cache(maxsize=16)
def actor_tls(rpc_key: bytes) -> ActorTls:
    """How the actors of the cluster with this key connect by TLS; it is made once in a process."""
    from velaray.topology.actor_tls import ActorTls  # loads a large library

    return ActorTls(rpc_key)


@lru_cache(maxsize=16)
def _server_tls(settings: TlsSettings, rpc_key: bytes) -> ServerTls:
    return ServerTls(settings, actor_tls(rpc_key))


def actors_tls(config: ClusterConfig) -> ActorTls | None:
    """How the actors of this cluster connect to each other; None: without TLS."""
    return None if config.tls is None else actor_tls(config.rpc_key)


def server_tls(config: ClusterConfig) -> ServerTls | None:
    """The TLS that the listeners of this process share; None without settings.

    Raises `TlsFilesError` for files that can't be used.
    """
    return None if config.tls is None else _server_tls(config.tls, config.rpc_key)


def outgoing_tls(config: ClusterConfig) -> TlsOptions:
    """How the actors of a cluster connect to other clusters.

    With authorities of its own the cluster trusts these alone, and presents its certificate.
    """
    settings = config.tls
    if settings is None or not settings.ca:
        return TlsOptions()
    return TlsOptions(
        settings.ca, certificate_file_path=settings.cert, private_key_file_path=settings.key
    )
