"""The service of a Spark query, and the client that the tasks of a Python process share."""

from __future__ import annotations

import atexit
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from velaray import AuthenticationToken, Client, Producer, service_url
from velaray.client.exceptions import ErrorGettingAuthenticationData, InvalidConfiguration
from velaray.pipelines.spark_options import Options

CONNECTION = frozenset({"service_url", "cluster", "token", "token_file"})
"""The options that contain the service's address and the credentials."""
PRODUCERS = 64
"""Number of topics for which a process keeps producers."""


@dataclass(frozen=True)
class Service:
    """The address of a query's service, and the credentials. The token is never printed."""

    url: str
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None

    @staticmethod
    def of(options: Options) -> Service:
        """Read and validate the options. Raises `InvalidConfiguration`.

        A ``cluster`` is looked up by this call, in this process: users of the result need no Ray.
        """
        url, cluster = options.one_of("service_url", "cluster")
        token, token_file = options.text("token"), options.text("token_file")
        if token is not None and token_file is not None:
            raise InvalidConfiguration("give option token or token_file, not both")
        return Service(url or _url_of(cluster or ""), token, token_file)

    def client(self) -> Client:
        """Make a client. A token file is read for each connection, since it may be replaced."""
        if self.token_file is not None:
            return Client(self.url, authentication=AuthenticationToken(self._read_token))
        proof = AuthenticationToken(self.token) if self.token is not None else None
        return Client(self.url, authentication=proof)

    def _read_token(self) -> str:
        try:
            return Path(self.token_file or "").read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            problem = error.strerror if isinstance(error, OSError) else "it isn't text"
            raise ErrorGettingAuthenticationData(
                f"token_file {self.token_file}: {problem}"
            ) from error


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
        self._producers: OrderedDict[str, Producer] = OrderedDict()

    def producer(self, topic: str) -> Producer:
        """Return the producer for ``topic``; a new one replaces the least recently used one."""
        made = self._producers.get(topic)
        if made is None:
            if len(self._producers) == PRODUCERS:
                self._producers.popitem(last=False)[1].close()
            made = self._producers[topic] = self.client.create_producer(
                topic, block_if_queue_full=True, batching_enabled=True
            )
        self._producers.move_to_end(topic)
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
