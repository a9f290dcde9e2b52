"""The cluster that a client uses: a fixed one, or the one that is chosen at the moment."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from dataclasses import replace

from velaray.client.cluster_choice import ClusterChoice
from velaray.client.core import Core
from velaray.client.exceptions import InvalidConfiguration, VelarayError
from velaray.client.options import ClientOptions
from velaray.client.pool import ConnectionPool
from velaray.client.retry import TRANSIENT
from velaray.client.service_info import (
    AutoClusterFailover,
    ServiceInfo,
    ServiceInfoProvider,
    parse_service_url,
)

logger = logging.getLogger("velaray")


class ClusterInUse:
    """Holds the current connection parameters, and switches the client to another cluster.

    The constructor asks a provider for its first cluster and starts it.
    """

    def __init__(self, options: ClientOptions) -> None:
        """Raises `InvalidUrl`, and `InvalidConfiguration` if a provider gives no `ServiceInfo`."""
        given = options.service_url
        self._options = options
        self._failover = given if isinstance(given, AutoClusterFailover) else None
        self._provider = given if isinstance(given, ServiceInfoProvider) else None
        self._core: Core | None = None
        self._closed = False
        self._lock = threading.Lock()
        if isinstance(given, AutoClusterFailover):
            self._info = given.primary
        elif isinstance(given, ServiceInfoProvider):
            self._info = _checked(given.initial_service_info())
            given.initialize(self.use)
        else:
            self._info = ServiceInfo(
                given, options.authentication, options.tls_trust_certs_file_path
            )

    @property
    def info(self) -> ServiceInfo:
        """The current connection parameters; on any thread."""
        return self._info

    def core(self) -> Core:
        """The state that the client's producers and consumers share; made by the first call."""
        with self._lock:
            if self._core is None:
                self._core = Core(_options_of(self._options, self._info))
                if self._failover is not None:
                    self._core.spawn(self._watch(self._failover))
        return self._core

    def use(self, info: ServiceInfo) -> None:
        """Switch to this cluster; on any thread.

        Does nothing if the cluster is in use already, or after `close`.
        """
        _checked(info)
        with self._lock:
            if self._closed or _same(info, self._info):
                return
            logger.info("switching from %s to %s", self._info.service_url, info.service_url)
            self._info = info
            if self._core is not None:
                with suppress(RuntimeError):  # its loop is closed, and so is the client
                    self._core.loop.call_soon_threadsafe(
                        self._core.switch, _options_of(self._options, info)
                    )

    async def _watch(self, failover: AutoClusterFailover) -> None:
        """Probe the clusters until cancelled, and switch to those that answer."""
        infos = [failover.primary, *failover.secondary]
        choice = ClusterChoice(
            len(infos), failover.failover_threshold, failover.switch_back_threshold
        )
        while True:
            await asyncio.sleep(failover.check_interval_ms / 1000)
            probes = choice.round()
            answered = None
            with suppress(StopIteration):
                while True:
                    number = probes.send(answered)  # type: ignore[arg-type]  # None begins it
                    answered = await answers(_options_of(self._options, infos[number]))
            self.use(infos[choice.current])

    async def close(self) -> None:
        """Stop switching clusters; returns when the provider has stopped."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._provider is not None:
            closing = asyncio.to_thread(self._provider.close)
            (failure,) = await asyncio.gather(closing, return_exceptions=True)
            if failure is not None:
                logger.error("closing %r failed", self._provider, exc_info=failure)


async def answers(options: ClientOptions) -> bool:
    """Whether a server of this cluster answers.

    Each address is tried for the connection timeout. A refusal, for example of the credentials, is
    an answer.
    """
    pool = ConnectionPool(options)
    try:
        for address in parse_service_url(options.service_url):
            try:
                await pool.get(address)
            except TRANSIENT as error:
                logger.debug("%s doesn't answer: %s", address, error)
            except VelarayError:
                return True
            else:
                return True
        return False
    finally:
        await pool.close()


def _options_of(options: ClientOptions, info: ServiceInfo) -> ClientOptions:
    trusted = info.tls_trust_certs_file_path or options.tls_trust_certs_file_path
    return replace(
        options,
        service_url=info.service_url,
        authentication=info.authentication,
        tls_trust_certs_file_path=trusted,
    )


def _checked(info: object) -> ServiceInfo:
    if not isinstance(info, ServiceInfo):
        raise InvalidConfiguration(f"a provider must return ServiceInfo objects, not {info!r}")
    return info


def _same(one: ServiceInfo, other: ServiceInfo) -> bool:
    same = one.service_url == other.service_url
    same = same and one.tls_trust_certs_file_path == other.tls_trust_certs_file_path
    return same and one.authentication is other.authentication
