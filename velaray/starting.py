"""What starting a cluster needs, with or without Ray: checks, ports, the lock and ownership of the
data.
"""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import random
import secrets
import socket
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypedDict, cast

from velaray.broker.catalog.messages import Bootstrap
from velaray.broker.coordinator.coordinators import DEFAULT_COORDINATORS, ensure_coordinators
from velaray.broker.garbage_collection.collectors import ensure_deletion_topics
from velaray.client.tls import TlsFilesError
from velaray.events.ids import ActorKey
from velaray.journal.encryption.keyring import FOLDER as KEYRING
from velaray.journal.errors import CorruptJournal, JournalError, NotStored, UnsupportedFormat
from velaray.journal.files import JOURNALS, NUMBERS
from velaray.journal.objects.ledger_store import ObjectLedgerStore
from velaray.journal.objects.probe import check_store
from velaray.journal.offload.place import OFFLOAD, OtherArchive, settle_place
from velaray.journal.private import make_private, private_opener, tighten
from velaray.journal.recovery import check_keys
from velaray.journal.replay import load_manifest
from velaray.topology.actor_system import ActorSystem
from velaray.topology.addresses import own_address
from velaray.topology.config import (
    AuditSettings,
    AuthorisationSettings,
    AuthSettings,
    ClusterConfig,
    OidcSettings,
    advertised_names,
    check_binding,
)
from velaray.topology.encryption_keys import check_encryption_keys
from velaray.topology.key_files import (
    LEAST_SECRET_BYTES,
    KeyFileError,
    check_public_key,
    read_secret,
)
from velaray.topology.ownership import OtherCluster, Superseded, data_id_of, take_ownership
from velaray.topology.ports import PortUnavailable, hold_ports
from velaray.topology.replication_keys import check_replication_keys
from velaray.topology.sent_config import SECRETS
from velaray.topology.stores import is_object_store, open_store
from velaray.topology.telemetry import TelemetryMissing, check_installed
from velaray.topology.tls import check_files
from velaray.topology.tls_settings import ClientAuth, TlsSettings
from velaray.topology.token_keys import check_token_keys

if TYPE_CHECKING:
    from velaray.settings import ClusterSettings

_LOCK_FILE = "owner.lock"


class ClusterError(RuntimeError):
    """The cluster can't be started; the text states the reason and the remedy."""


class ClusterOptions(TypedDict, total=False):
    """The arguments of a start that don't concern Ray: fields of `velaray.settings`, for type
    checkers.
    """

    name: str
    host: str
    service_port: int
    admin_port: int
    auth: AuthSettings | None
    authorisation: bool
    superusers: Sequence[str]
    proxy_roles: Sequence[str]
    viewers: Sequence[str]
    anonymous_role: str
    audit_days: int
    audit_size_mib: int
    oidc_issuer: str
    oidc_audience: str
    oidc_role_claim: str
    oidc_jwks_url: str
    tunnel: bool
    listeners: Mapping[str, str] | None
    passivate_after_s: float
    partition_sync: str
    sync_interval_ms: int
    commit_interval_ms: int
    compaction_retain_null_key: bool
    log_format: str
    log_level: str
    otlp_endpoint: str
    otlp_interval_s: float
    max_active_transactions: int
    undelete_s: float
    deletion_retry_s: float
    deleters: int
    cluster_number: int
    replication_secret: bytes | Path
    encryption_keys: str | Path
    encryption_required: bool
    port_range: tuple[int, int] | None
    advertise: str | Mapping[str, str]
    offload: str
    tls_cert: Path | None
    tls_key: Path | None
    tls_ca: Path | None
    tls_client_auth: str
    tls_min_version: str
    tls_service_port: int
    tls_admin_port: int
    tls_only: bool
    max_connections: int
    max_connections_per_address: int
    max_connections_per_role: int
    max_requests_per_role: int
    buffer_memory_mib: int
    memory_budget_mib: int


class RayOptions(ClusterOptions, total=False):
    """The arguments of a start on Ray."""

    ray_address: str | None
    ray_tls: Path | None
    placement: str
    hosts: int | None


_TLS = {key for key in ClusterOptions.__annotations__ if key.startswith("tls_")}
_AUDIT = {key for key in ClusterOptions.__annotations__ if key.startswith("audit_")}
_OIDC = {key for key in ClusterOptions.__annotations__ if key.startswith("oidc_")}
_SAME = (
    ClusterOptions.__annotations__.keys()
    - _TLS
    - _OIDC
    - _AUDIT
    - {"anonymous_role", "auth", "authorisation", "proxy_roles", "replication_secret", "superusers"}
    - {"viewers"}
)
"""The settings that actors receive as they are."""


def configured(
    data_dir: str, settings: ClusterSettings, given: tuple[tuple[str, str, str], ...] = ()
) -> ClusterConfig:
    """The settings of a start for its actors, before it has an incarnation and its nodes are known.

    Port 0 becomes a free port, and key files are read. ``given`` are the settings as
    `velaray.settings_sources.described` shows them.

    Raises `KeyFileError` for a file without a usable key, `ValueError` for a weak secret of
    replication, `UnsafeBindingError` if the address isn't loopback and no token is configured,
    `UnreachableAddressError` if clients would be sent to 0.0.0.0, `NoAddressError` if this node has
    no address in the network, `ClusterError` if there is no free port, or if OpenTelemetry's
    packages are missing.
    """
    if settings.otlp_endpoint:
        try:
            check_installed()
        except TelemetryMissing as error:
            raise ClusterError(str(error)) from error
    values: dict[str, Any] = {key: getattr(settings, key) for key in _SAME}
    values["auth"] = auth = _auth(settings)
    values |= _replication_keys(settings.replication_secret)
    if settings.encryption_keys:
        check_encryption_keys(settings.encryption_keys)
    elif settings.encryption_required:
        raise KeyFileError("encryption_required needs keys: give their directory, encryption_keys")
    host = own_address(settings.host)
    values["tls"] = tls = _tls(settings, host)
    check_binding(host, auth, tls)
    names_clients = tls is not None and tls.client_auth is ClientAuth.REQUIRED
    if settings.authorisation and (auth is not None or names_clients):
        values["roles"] = AuthorisationSettings(
            superusers=frozenset(settings.superusers),
            proxy_roles=frozenset(settings.proxy_roles),
            viewers=frozenset(settings.viewers),
        )
    values["audit"] = AuditSettings(settings.audit_days, settings.audit_size_mib)
    values["advertise"] = advertised_names(settings.host, settings.advertise)
    for name in ("service_port", "admin_port"):
        values[name] = values[name] or free_port(host)
    values["given"] = given
    key = secrets.token_bytes(16)
    return ClusterConfig(data_dir=data_dir, incarnation=0, rpc_key=key, **values)


def _tls(settings: ClusterSettings, host: str) -> TlsSettings | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    tls = TlsSettings(
        cert=str(settings.tls_cert.absolute()),
        key=str(settings.tls_key.absolute()),
        ca=str(settings.tls_ca.absolute()) if settings.tls_ca else "",
        client_auth=settings.tls_client_auth,
        min_version=settings.tls_min_version,
        service_port=settings.tls_service_port or free_port(host),
        admin_port=settings.tls_admin_port or free_port(host),
        only=settings.tls_only,
    )
    try:
        check_files(tls)
    except TlsFilesError as error:
        raise KeyFileError(str(error)) from error
    return tls


def _auth(settings: ClusterSettings) -> AuthSettings | None:
    found = _keys(settings)
    provider = None
    if settings.oidc_issuer:
        provider = OidcSettings(
            settings.oidc_issuer,
            settings.oidc_audience,
            settings.oidc_role_claim,
            settings.oidc_jwks_url,
        )
    if found is None and provider is None:
        return None
    found = found or AuthSettings()
    return replace(found, anonymous_role=settings.anonymous_role, oidc=provider)


def _keys(settings: ClusterSettings) -> AuthSettings | None:
    secret, public_key = settings.token_secret, settings.token_public_key
    if isinstance(secret, Path):
        found = AuthSettings(secret_path=str(secret.absolute()))
    elif secret is not None:
        found = AuthSettings(secret=secret)
    elif isinstance(public_key, Path):
        found = AuthSettings(public_key_path=str(public_key.absolute()))
    elif public_key is None:
        return None
    else:
        try:
            check_public_key(public_key)
        except ValueError as error:
            raise KeyFileError(f"auth.public_key isn't an RSA public key: {error}") from error
        found = AuthSettings(public_key=public_key)
    check_token_keys(found)
    return found


def _replication_keys(given: bytes | Path) -> dict[str, Any]:
    if isinstance(given, Path) and given.is_dir():
        check_replication_keys(given)
        return {"replication_keys": str(given.absolute())}
    if isinstance(given, Path):
        return {"replication_secret": read_secret(given)}
    if given and len(given) < LEAST_SECRET_BYTES:
        raise ValueError(f"a replication secret needs at least {LEAST_SECRET_BYTES} bytes")
    return {"replication_secret": given}


async def bootstrap(actor_system: ActorSystem) -> None:
    """Create what a cluster needs before it serves. Idempotent. Raises what calls raise."""
    config = actor_system.config
    urls = config.plain_service_url, config.plain_admin_url
    by_tls = config.tls_service_url, config.tls_admin_url
    itself = Bootstrap(config.name, *urls, *by_tls)
    await actor_system.request(ActorKey.catalog(), itself, timeout=60.0)
    await ensure_coordinators(actor_system, DEFAULT_COORDINATORS)
    await ensure_deletion_topics(actor_system)


def run_to_end(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to completion, also when the caller runs an event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def free_port(host: str) -> int:
    """A free port outside the range of outgoing connections.

    The system assigns ports from 32768 on to outgoing connections, and such a port could be in use
    when a proxy restarts.
    """
    for port in random.sample(range(20_000, 32_000), 200):
        with socket.socket() as probe:
            if probe.connect_ex((host, port)) != 0:
                return port
    raise ClusterError(f"no free port on {host}; name one with --service-port and --admin-port")


def hold_cluster_ports(config: ClusterConfig) -> ExitStack:
    """Bind the ports. Raises `ClusterError` if one is in use."""
    options: dict[str, int] = {}
    if config.speaks_plain:
        options |= {"--service-port": config.service_port, "--admin-port": config.admin_port}
    if config.tls is not None:
        options["--tls-service-port"] = config.tls.service_port
        options["--tls-admin-port"] = config.tls.admin_port
    try:
        return hold_ports(config.listen_host, options)
    except PortUnavailable as error:
        raise ClusterError(str(error)) from error


def own_data(config: ClusterConfig) -> tuple[int, str]:
    """The incarnation and the id of the data, after taking ownership and settling the archive.
    Raises `ClusterError`."""
    try:
        run_to_end(_check_keys(config))
    except JournalError as error:
        raise ClusterError(f"{config.data_dir} can't be read: {error}") from error
    try:
        if config.offload:
            run_to_end(settle_place(Path(config.data_dir), config.offload))
    except (JournalError, OtherArchive, OSError) as error:
        raise ClusterError(f"ledgers can't be offloaded to {config.offload}: {error}") from error
    try:
        return cast(tuple[int, str], run_to_end(_own_data(config)))
    except (JournalError, Superseded, OtherCluster) as error:
        raise ClusterError(f"{config.data_dir} can't be taken over: {error}") from error


async def _check_keys(config: ClusterConfig) -> None:
    """Raise `MissingKey` if the catalog is encrypted with a key that isn't here, `PlainLedger` if
    it isn't encrypted and must be."""
    keys = config.encryption_keys, config.encryption_required
    store, catalog = open_store(config.data_dir, *keys), ActorKey.catalog().text()
    try:
        # A new cluster has none, and opening the catalog reports a damaged one.
        with suppress(NotStored, CorruptJournal, UnsupportedFormat):
            await check_keys(store, catalog, (await load_manifest(store, catalog)).ledgers)
    finally:
        await store.close()


async def _own_data(config: ClusterConfig) -> tuple[int, str]:
    store = open_store(config.data_dir, config.encryption_keys)
    try:
        if isinstance(store, ObjectLedgerStore):
            await check_store(store.objects.objects, os.urandom, random)
        incarnation = await take_ownership(store, config.name, config.cluster_number)
        return incarnation, await data_id_of(store)
    finally:
        await store.close()


def lock_data(location: str) -> IO[str]:
    """Lock the directory until the file is closed; create it if it is missing. An object store has
    no lock: its record of ownership is enough.

    Raises `ClusterError` if another cluster runs on it, or if it can't be used.
    """
    if is_object_store(location):
        return io.StringIO()
    data_dir = Path(location)
    try:
        make_private(data_dir)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        lock = os.fdopen(private_opener(str(data_dir / _LOCK_FILE), flags), "a+")
    except OSError as error:
        raise ClusterError(f"{data_dir} can't be used for data: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        owner = lock.read().strip() or "unknown"
        lock.close()
        raise ClusterError(
            f"another cluster is running on {data_dir} (process {owner}): stop it first, or "
            "use another directory"
        ) from error
    try:
        tighten(data_dir, (JOURNALS, NUMBERS, OFFLOAD, SECRETS, KEYRING, _LOCK_FILE))
    except OSError as error:
        lock.close()
        raise ClusterError(
            f"{data_dir} can be read by other users, and this one can't change that "
            f"({error.strerror}): have its owner run 'chmod -R go= {data_dir}', or use a "
            "directory of your own"
        ) from error
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock
