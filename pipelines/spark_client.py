"""The service of a Spark query, and the client that the tasks of a Python process share."""

from __future__ import annotations

import atexit
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from velaray import (
    Authentication,
    AuthenticationTLS,
    AuthenticationToken,
    Client,
    Producer,
    service_url,
)
from velaray.client.exceptions import ErrorGettingAuthenticationData, InvalidConfiguration
from velaray.client.service_info import uses_tls
from velaray.client.tls import TlsOptions
from velaray.pipelines.public_keys import PublicKeys
from velaray.pipelines.spark_options import Options

_TLS = frozenset(
    {
        "tls_trust_certs_file_path",
        "tls_validate_hostname",
        "tls_certificate_file_path",
        "tls_private_key_file_path",
    }
)
CONNECTION = _TLS | {"service_url", "cluster", "token", "token_file"}
"""The options that contain the service's address, the credentials and what is trusted."""
PRODUCERS = 64
"""Number of topics for which a process keeps producers."""


@dataclass(frozen=True)
class Service:
    """The address of a query's service, the credentials, and how to connect by TLS. The token is
    never printed."""

    url: str
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    tls: TlsOptions | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidConfiguration` for two tokens, and for options of TLS without TLS."""
        if self.token is not None and self.token_file is not None:
            raise InvalidConfiguration("give option token or token_file, not both")
        if self.tls is not None and not uses_tls(self.url):
            raise InvalidConfiguration(
                f"there are options of TLS, but {self.url} isn't a URL of TLS: give the service's"
                " URL with pulsar+ssl://"
            )

    @staticmethod
    def of(options: Options) -> Service:
        """Read and validate the options. Raises `InvalidConfiguration`.

        A ``cluster`` is looked up by this call, in this process: users of the result need no Ray.
        """
        url, cluster = options.one_of("service_url", "cluster")
        token, token_file = options.text("token"), options.text("token_file")
        return Service(url or _url_of(cluster or ""), token, token_file, _tls_of(options))

    def client(self) -> Client:
        """Make a client. A token file is read for each connection, since it may be replaced."""
        tls = {} if self.tls is None else self.tls.arguments()
        return Client(self.url, authentication=self._credentials(), **tls)

    def _credentials(self) -> Authentication | None:
        """The token, or else the certificate."""
        if self.token_file is not None:
            return AuthenticationToken(self._read_token)
        if self.token is not None:
            return AuthenticationToken(self.token)
        certificate = self.tls.certificate_file_path if self.tls is not None else None
        key = self.tls.private_key_file_path if self.tls is not None else None
        return AuthenticationTLS(certificate, key) if certificate and key else None

    def _read_token(self) -> str:
        try:
            return Path(self.token_file or "").read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            problem = error.strerror if isinstance(error, OSError) else "it isn't text"
            raise ErrorGettingAuthenticationData(
                f"token_file {self.token_file}: {problem}"
            ) from error


def _tls_of(options: Options) -> TlsOptions | None:
    """Return what the options say about TLS; None if they say nothing."""
    if all(options.text(name) is None for name in _TLS):
        return None
    return TlsOptions(
        trust_certs_file_path=options.text("tls_trust_certs_file_path"),
        validate_hostname=options.flag("tls_validate_hostname", True),
        certificate_file_path=options.text("tls_certificate_file_path"),
        private_key_file_path=options.text("tls_private_key_file_path"),
    )


def _url_of(cluster: str) -> str:
    """Return the service URL of a cluster: ``address`` of Ray, or ``address#name`` if named.

    Raises `InvalidConfiguration` if there is no such cluster, or no Ray.
    """
    try:
        import ray

        from velaray.ray_access import connect_ray
    except ImportError as error:
        raise InvalidConfiguration(
            "option cluster needs Ray where the driver runs; give service_url instead"
        ) from error
    address, _, name = cluster.partition("#")
    begun = not ray.is_initialized()
    try:
        if begun:
            connect_ray(address)
        return service_url(name) if name else service_url()
    except (ConnectionError, ValueError, RuntimeError, LookupError) as error:
        raise InvalidConfiguration(f"cluster={cluster!r}: {error}") from error
    finally:
        if begun:
            ray.shutdown()


class RpcConnection:
    """A client and its producers; for one thread."""

    def __init__(self, service: Service) -> None:
        self.client = service.client()
        self._producers: OrderedDict[tuple[str, PublicKeys | None], Producer] = OrderedDict()

    def producer(self, topic: str, keys: PublicKeys | None) -> Producer:
        """Return the producer for ``topic`` that encrypts for ``keys``; a new one replaces the
        least recently used one."""
        wanted = topic, keys
        made = self._producers.get(wanted)
        if made is None:
            if len(self._producers) == PRODUCERS:
                self._producers.popitem(last=False)[1].close()
            made = self._producers[wanted] = self.client.create_producer(
                topic,
                block_if_queue_full=True,
                batching_enabled=True,
                encryption_keys=None if keys is None else keys.names,
                crypto_key_reader=keys,
            )
        self._producers.move_to_end(wanted)
        return made


_links: dict[Service, RpcConnection] = {}


@contextmanager
def link_to(service: Service | str) -> Iterator[RpcConnection]:
    """Lend this process's connection to the service; it is kept for the next caller.

    After an error the next caller gets a new connection.
    """
    service = Service(service) if isinstance(service, str) else service
    link = _links.pop(service, None) or RpcConnection(service)
    well = False
    try:
        yield link
        well = True
    finally:
        if not well:
            link.client.shutdown()
        elif service in _links:  # another thread's, created meanwhile
            link.client.close()
        else:
            _links[service] = link


@atexit.register
def _close_all() -> None:
    for link in _links.values():
        link.client.shutdown()
    _links.clear()
