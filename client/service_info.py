"""The cluster of a client: a fixed one, several with a primary one, or one from a provider."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from velaray.client.auth import Authentication
from velaray.client.exceptions import InvalidConfiguration, InvalidUrl

_TLS = "pulsar+ssl"
_DEFAULT_PORTS = {"pulsar": 6650, _TLS: 6651}


def uses_tls(url: str) -> bool:
    """Whether the scheme of a service URL is ``pulsar+ssl``."""
    return url.startswith(f"{_TLS}://")


def urls_by_scheme(url: str) -> tuple[str, str]:
    """A service URL as where clients connect without TLS, and by TLS; "": they can't."""
    return ("", url) if uses_tls(url) else (url, "")


def parse_service_url(url: object) -> list[str]:
    """Return the addresses in ``pulsar://host:port[,host:port…]``, as ``host:port``. The scheme of
    TLS is ``pulsar+ssl``.

    Raises `InvalidUrl`.
    """
    if not isinstance(url, str):
        raise InvalidUrl(f"service_url must be a str, not {type(url).__name__}")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _DEFAULT_PORTS:
        raise InvalidUrl(
            f"service URL {url!r}: write pulsar://host:port or pulsar+ssl://host:port; look-up over"
            " http is not supported"
        )
    addresses = []
    for part in rest.rstrip("/").split(","):
        try:
            split = urlsplit(f"//{part}")
            port = split.port or _DEFAULT_PORTS[scheme]
        except ValueError as error:
            raise InvalidUrl(f"service URL {url!r}: {error}") from error
        if not split.hostname or split.path or split.query or split.username:
            raise InvalidUrl(f"service URL {url!r}: {part!r} is not host:port")
        host = f"[{split.hostname}]" if ":" in split.hostname else split.hostname
        addresses.append(f"{host}:{port}")
    return addresses


class ServiceInfo:
    """How to connect to one cluster."""

    def __init__(
        self,
        service_url: str,
        authentication: Authentication | None = None,
        tls_trust_certs_file_path: str | None = None,
    ) -> None:
        """``authentication`` is the credentials for this cluster. ``tls_trust_certs_file_path`` are
        its authorities; None: those of the client.

        Raises `InvalidUrl`, and `InvalidConfiguration` for an object that isn't credentials.
        """
        parse_service_url(service_url)
        if not isinstance(authentication, Authentication | None):
            raise InvalidConfiguration(
                f"authentication must be an Authentication: {authentication!r}"
            )
        self._service_url = service_url
        self._authentication = authentication
        self._tls_trust_certs_file_path = tls_trust_certs_file_path

    @property
    def service_url(self) -> str:
        """The cluster's service URL."""
        return self._service_url

    @property
    def authentication(self) -> Authentication | None:
        """The credentials for this cluster."""
        return self._authentication

    @property
    def use_tls(self) -> bool:
        """Whether the URL is one of TLS."""
        return uses_tls(self._service_url)

    @property
    def tls_trust_certs_file_path(self) -> str | None:
        """The file with the authorities of this cluster; None: those of the client."""
        return self._tls_trust_certs_file_path

    def __repr__(self) -> str:
        return (
            f"ServiceInfo(service_url={self.service_url!r}, use_tls={self.use_tls!r}, "
            f"tls_trust_certs_file_path={self.tls_trust_certs_file_path!r})"
        )


class ServiceInfoProvider:
    """Base of classes that choose a client's cluster, and switch it at run time.

    A client calls `initial_service_info` and `initialize` once each, when it is created, and
    `close` when it is closed. Make a provider for each client.
    """

    def initial_service_info(self) -> ServiceInfo:
        """Return the first cluster."""
        raise NotImplementedError

    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None:
        """Start, and keep ``on_service_info_update``.

        Any thread may call this function at any time to switch the client to another cluster. It
        returns at once, and does nothing after `close`.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Stop the background work."""


class AutoClusterFailover:
    """Uses the primary cluster, or while it doesn't answer the first secondary one that does.

    Pass it to a `Client` as its ``service_url``. The cluster in use is probed every
    ``check_interval_ms``. After ``failover_threshold`` consecutive failed probes the client
    switches to the first cluster that answers. After ``switch_back_threshold`` consecutive answers
    of the primary cluster it switches back. Producers, consumers and readers continue there
    automatically.
    """

    def __init__(
        self,
        primary: ServiceInfo,
        secondary: list[ServiceInfo],
        check_interval_ms: int = 5000,
        failover_threshold: int = 1,
        switch_back_threshold: int = 1,
    ) -> None:
        """``secondary`` are tried in this order.

        Raises `InvalidConfiguration` if there are none, and for arguments of the wrong type or
        numbers that aren't positive.
        """
        if not isinstance(primary, ServiceInfo):
            raise InvalidConfiguration(f"primary must be a ServiceInfo: {primary!r}")
        if not isinstance(secondary, list) or not secondary:
            raise InvalidConfiguration(
                f"secondary must be a list with at least one ServiceInfo: {secondary!r}"
            )
        for index, info in enumerate(secondary):
            if not isinstance(info, ServiceInfo):
                raise InvalidConfiguration(f"secondary[{index}] must be a ServiceInfo: {info!r}")
        for name, number in (
            ("check_interval_ms", check_interval_ms),
            ("failover_threshold", failover_threshold),
            ("switch_back_threshold", switch_back_threshold),
        ):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise InvalidConfiguration(f"{name} must be an int of at least 1: {number!r}")
        self.primary = primary
        self.secondary = list(secondary)
        self.check_interval_ms = check_interval_ms
        self.failover_threshold = failover_threshold
        self.switch_back_threshold = switch_back_threshold

    def __repr__(self) -> str:
        return (
            f"AutoClusterFailover(primary={self.primary!r}, secondary={self.secondary!r}, "
            f"check_interval_ms={self.check_interval_ms!r}, "
            f"failover_threshold={self.failover_threshold!r}, "
            f"switch_back_threshold={self.switch_back_threshold!r})"
        )
