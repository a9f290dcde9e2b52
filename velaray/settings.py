"""The settings of a cluster's start, each declared once.

The options of ``velaray start``, the keys of ``velaray.toml``, the environment variables, the
arguments of `velaray.Cluster.start` and docs/reference/configuration.md follow from
`ClusterSettings`. `velaray.settings_sources` combines the sources.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Self, get_args
from urllib.parse import urlsplit

from annotated_types import Ge, Gt, Le
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    DirectoryPath,
    Field,
    FilePath,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from velaray.actors.catalog.clusters import is_service_url
from velaray.topology.config import PartitionSync, is_loopback
from velaray.topology.encryption_keys import named_keys
from velaray.topology.logs import LogFormat, LogLevel
from velaray.topology.placement import Placement
from velaray.topology.stores import is_object_store
from velaray.topology.tls_settings import ClientAuth, TlsVersion

LAST_CLUSTER_NUMBER = 2046
"""The largest cluster number; 2047 is part of the ledger id that stands for the latest message."""
_LAST_PORT = 65_535

DATA, NETWORK, SECURITY, PROCESSES, STORAGE = (
    "Data and identity",
    "Network",
    "Security",
    "Processes",
    "Durability and storage",
)
GROUPS = (DATA, NETWORK, SECURITY, PROCESSES, STORAGE)

_CONFLICT = "conflict"
_SCHEMES = "pulsar", "pulsar+ssl"


class SettingError(ValueError):
    """A setting is unknown or its value isn't allowed; the text says where it was found."""


@dataclass(frozen=True, slots=True)
class About:
    """What the command line and the reference say about a setting besides type and limits.

    ``option`` is the name of the command's option ("": the key with dashes) and ``metavar`` its
    value in the help. ``form`` completes "must be" if neither type nor limits do. ``several``: the
    option may be repeated. ``key_file``: the value is the path of a file with a key.
    ``fixed``: it can't change once there is data.
    """

    group: str
    text: str
    option: str = ""
    metavar: str = ""
    unit: str = ""
    form: str = ""
    unset: str = ""
    several: bool = False
    key_file: bool = False
    fixed: bool = False


def _listeners(given: Any) -> Any:
    """Service URLs by name, from a mapping or from texts NAME=URL."""
    named: list[tuple[Any, ...]]
    if given is None or isinstance(given, Mapping):
        named = [(str(name), url) for name, url in (given or {}).items()]
    else:
        texts = given.split() if isinstance(given, str) else given
        named = [tuple(str(text).partition("=")[::2]) for text in texts]
    found: dict[str, str] = {}
    for name, url in named:
        if not name or not isinstance(url, str) or not is_service_url(url, *_SCHEMES):
            raise ValueError(f"listener {name!r}: write NAME=pulsar://host:port, not {url!r}")
        if name in found:
            raise ValueError(f"listener {name} is given twice")
        found[name] = url
    return found


def _advertised(given: Any) -> Any:
    """One name, or names by address, from a mapping or from texts NAME or ADDRESS=NAME."""
    if isinstance(given, Mapping):
        return given
    texts = given.split() if isinstance(given, str) else list(map(str, given))
    if len(texts) < 2 and "=" not in "".join(texts):
        return "".join(texts)
    found: dict[str, str] = {}
    for text in texts:
        address, separator, name = text.partition("=")
        if not (address and separator and name):
            raise ValueError(f"{text!r}: write one NAME, or ADDRESS=NAME for each node")
        if address in found:
            raise ValueError(f"{address} has two names")
        found[address] = name
    return found


def _names(given: Any) -> Any:
    """Several names, from a list or from one text with spaces."""
    return tuple(given.split()) if isinstance(given, str) else given


def _issuer(given: str) -> str:
    """A URL whose answers nobody on the network can replace."""
    if given:
        where = urlsplit(given)
        local = where.scheme == "http" and is_loopback(where.hostname or "")
        if not (where.hostname and (where.scheme == "https" or local)):
            raise ValueError("write a URL, https:// unless it is on this machine")
    return given


def _http_url(given: str) -> str:
    """A URL of HTTP, or nothing."""
    if given:
        where = urlsplit(given)
        if where.scheme not in ("http", "https") or not where.hostname:
            raise ValueError("write http://host:port or https://host:port")
    return given


def _port_range(given: Any) -> Any:
    """The two ports of FIRST-LAST."""
    if not isinstance(given, str):
        return given
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", given, re.ASCII)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _checked_port_range(given: tuple[int, int] | None) -> tuple[int, int] | None:
    if given is not None and not 1 <= given[0] <= given[1] <= _LAST_PORT:
        raise ValueError(f"write FIRST-LAST, such as 6700-6799, within 1 to {_LAST_PORT}")
    return given


class ClusterSettings(BaseModel):
    """The settings of a start. Instances are valid and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: Annotated[
        Path,
        About(
            DATA,
            "Directory of the journals; created if missing.",
            metavar="DIRECTORY",
            form="a directory",
        ),
    ] = Path("velaray-data")
    store: Annotated[
        str,
        About(
            DATA,
            "Object store of the journals, instead of a directory: s3://BUCKET/PREFIX, "
            "gs://BUCKET/PREFIX or az://CONTAINER/PREFIX. Credentials, region and endpoint come "
            "from the environment, such as AWS_ACCESS_KEY_ID.",
            metavar="URL",
            form="a URL",
        ),
    ] = ""
    name: Annotated[
        str,
        About(
            DATA,
            "The cluster's name for other clusters.",
            metavar="NAME",
            form="a name",
            fixed=True,
        ),
    ] = "standalone"
    cluster_number: Annotated[
        int,
        About(
            DATA,
            "The cluster's number; clusters that replicate to each other need different ones.",
            fixed=True,
        ),
    ] = Field(default=0, ge=0, le=LAST_CLUSTER_NUMBER)

    host: Annotated[
        str,
        About(
            NETWORK,
            "Address to listen on. For several machines a network, such as 10.1.0.0/16, or the "
            "name of an interface: each node listens on its own address there. It runs actors if "
            "its Ray has the resource velaray_data.",
            metavar="ADDRESS",
            form="an address, a network or an interface",
        ),
    ] = "127.0.0.1"
    service_port: Annotated[
        int, About(NETWORK, "Port for clients; 0 takes a free one.", metavar="PORT")
    ] = Field(default=6650, ge=0, le=_LAST_PORT)
    admin_port: Annotated[
        int, About(NETWORK, "Port for the admin interface; 0 takes a free one.", metavar="PORT")
    ] = Field(default=8080, ge=0, le=_LAST_PORT)
    advertise: Annotated[
        str | dict[str, str],
        BeforeValidator(_advertised),
        About(
            NETWORK,
            "Name or address by which clients reach --host. With a network or an interface "
            "ADDRESS=NAME, repeated for the nodes' addresses.",
            metavar="NAME",
            form="one NAME, or ADDRESS=NAME for each node",
            unset="the addresses themselves",
            several=True,
        ),
    ] = ""
    tls_service_port: Annotated[
        int,
        About(
            NETWORK, "Port for clients by TLS, with --tls-cert; 0 takes a free one.", metavar="PORT"
        ),
    ] = Field(default=6651, ge=0, le=_LAST_PORT)
    tls_admin_port: Annotated[
        int,
        About(
            NETWORK,
            "Port for the admin interface by TLS, with --tls-cert; 0 takes a free one.",
            metavar="PORT",
        ),
    ] = Field(default=8443, ge=0, le=_LAST_PORT)
    tunnel: Annotated[
        bool, About(NETWORK, "Let clients reach topics through the service port.")
    ] = False
    listeners: Annotated[
        dict[str, str],
        BeforeValidator(_listeners),
        About(
            NETWORK,
            "Like --tunnel, for clients with listener name NAME; URL (pulsar://host:port, by TLS "
            "pulsar+ssl://host:port) is the address of the service port in their network. May be "
            "repeated.",
            option="--listener",
            metavar="NAME=URL",
            form="NAME=pulsar://host:port, repeated",
            unset="none",
            several=True,
        ),
    ] = Field(default_factory=dict)
    port_range: Annotated[
        tuple[int, int] | None,
        AfterValidator(_checked_port_range),
        BeforeValidator(_port_range),
        About(
            NETWORK,
            "Ports for the processes of actors, two for each (with TLS three), such as 6700-6799.",
            metavar="FIRST-LAST",
            form=f"FIRST-LAST, within 1 to {_LAST_PORT}",
            unset="any ports",
        ),
    ] = None

    max_connections: Annotated[
        int,
        About(
            NETWORK, "Limit of the connections of clients to a process; further ones are closed."
        ),
    ] = Field(default=10_000, ge=1)
    max_connections_per_address: Annotated[
        int,
        About(NETWORK, "Limit of the connections to a process from one address."),
    ] = Field(default=5_000, ge=1)
    max_connections_per_role: Annotated[
        int,
        About(NETWORK, "Limit of the connections of one authenticated role to a process."),
    ] = Field(default=10_000, ge=1)
    max_requests_per_role: Annotated[
        int,
        About(
            NETWORK,
            "Limit of the requests of one authenticated role that a process works on at a time; "
            "further ones are refused.",
        ),
    ] = Field(default=10_000, ge=1)
    buffer_memory_mib: Annotated[
        int,
        About(
            NETWORK,
            "Bound of the memory of a process for bytes that clients have sent and that aren't "
            "handled, and again for bytes that clients don't read. Beyond it, connections are "
            "closed.",
            option="--buffer-memory",
            unit="MiB",
        ),
    ] = Field(default=512, ge=16)
    memory_budget_mib: Annotated[
        int,
        About(
            PROCESSES,
            "Resident memory of a process beyond which it refuses look-ups, new producers and new "
            "consumers. 0: no budget. In MiB.",
            option="--memory-budget",
            unit="MiB",
        ),
    ] = Field(default=0, ge=0)

    token_secret: Annotated[
        bytes | FilePath | DirectoryPath | None,
        About(
            SECURITY,
            "Accept HS256 tokens signed with the key in this file, or with one of the keys in the "
            "files of this directory. It is the same on all nodes.",
            metavar="PATH",
            form="an existing file or directory",
            unset="no tokens",
            key_file=True,
        ),
    ] = Field(default=None, repr=False)
    token_public_key: Annotated[
        str | FilePath | DirectoryPath | None,
        About(
            SECURITY,
            "Accept RS256 tokens for the PEM key in this file, or for one of the keys in the "
            "files of this directory. It is the same on all nodes.",
            metavar="PATH",
            form="an existing file or directory",
            unset="no tokens",
            key_file=True,
        ),
    ] = None
    oidc_issuer: Annotated[
        str,
        About(
            SECURITY,
            "Accept tokens of this OpenID provider.",
            metavar="URL",
            form="a URL, https:// unless it is on this machine",
            unset="none",
        ),
        AfterValidator(_issuer),
    ] = ""
    oidc_audience: Annotated[
        str,
        About(
            SECURITY,
            "Audience that tokens of the OpenID provider must have.",
            metavar="NAME",
            form="a text",
            unset="none",
        ),
    ] = ""
    oidc_role_claim: Annotated[
        str,
        About(
            SECURITY,
            "Claim of the OpenID provider's tokens that has the role.",
            metavar="NAME",
            form="a text",
        ),
    ] = "sub"
    oidc_jwks_url: Annotated[
        str,
        About(
            SECURITY,
            "URL of the OpenID provider's keys.",
            metavar="URL",
            form="a URL, https:// unless it is on this machine",
            unset="what the provider's configuration says",
        ),
        AfterValidator(_issuer),
    ] = ""
    authorisation: Annotated[
        bool,
        About(
            SECURITY,
            "Check what roles may do, if the cluster requires tokens. Without it every valid token "
            "allows everything.",
        ),
    ] = True
    superusers: Annotated[
        tuple[str, ...],
        BeforeValidator(_names),
        About(
            SECURITY,
            "Role that may do everything. May be repeated.",
            option="--superuser",
            metavar="ROLE",
            form="roles",
            several=True,
        ),
    ] = ("admin",)
    proxy_roles: Annotated[
        tuple[str, ...],
        BeforeValidator(_names),
        About(
            SECURITY,
            "Role of a proxy, such as Pulsar's: it names the role of its client, and both need the "
            "rights. May be repeated.",
            option="--proxy-role",
            metavar="ROLE",
            form="roles",
            unset="none",
            several=True,
        ),
    ] = ()
    viewers: Annotated[
        tuple[str, ...],
        BeforeValidator(_names),
        About(
            SECURITY,
            "Role that sees everything through the admin interface and the console, also messages, "
            "and can change nothing there. May be repeated.",
            option="--viewer",
            metavar="ROLE",
            form="roles",
            unset="none",
            several=True,
        ),
    ] = ()
    anonymous_role: Annotated[
        str,
        About(
            SECURITY,
            "Role of clients that present no credentials.",
            metavar="ROLE",
            form="a role",
            unset="they are refused",
        ),
    ] = ""
    audit_days: Annotated[
        int,
        About(SECURITY, "How long the records of the audit log are kept.", unit="days"),
    ] = Field(default=365, ge=1, le=36_500)
    audit_size_mib: Annotated[
        int,
        About(
            SECURITY,
            "Size of the audit log; beyond it, the oldest records are deleted.",
            option="--audit-size",
            unit="MiB",
        ),
    ] = Field(default=1024, ge=1, le=1 << 30)
    replication_secret: Annotated[
        bytes | FilePath | DirectoryPath,
        About(
            SECURITY,
            "Directory with the keys by which replicators prove their cluster: the file CLUSTER, "
            "or the files in the directory CLUSTER, for each other cluster. Or a file with one key "
            "that all clusters share. Without it, replicators of other clusters are refused.",
            metavar="PATH",
            form="an existing file or directory",
            unset="none",
            key_file=True,
        ),
    ] = Field(default=b"", repr=False)
    encryption_keys: Annotated[
        str,
        BeforeValidator(named_keys),
        About(
            SECURITY,
            "Encrypt journals, archives and the secrets of a start with the newest of the keys in "
            "the files of this directory, which is the same on all nodes; or with those of a "
            "KeyProvider, module:Class. A file has 32 bytes in base64, and the last one in the "
            "order of names has the newest key.",
            metavar="DIRECTORY",
            form="a directory or module:Class",
            unset="nothing is encrypted",
        ),
    ] = ""
    encryption_required: Annotated[
        bool,
        About(
            SECURITY,
            "Refuse journals that aren't encrypted, so adding data by writing files or objects "
            "takes the keys. It needs --encryption-keys, and data without plain ledgers, which "
            "`velaray journal keys` counts.",
        ),
    ] = False

    tls_cert: Annotated[
        FilePath | None,
        About(
            SECURITY,
            "File with the certificate (PEM) of the servers, followed by those of its intermediate "
            "authorities. With it clients connect by TLS too.",
            metavar="FILE",
            form="an existing file",
            unset="no TLS",
            key_file=True,
        ),
    ] = None
    tls_key: Annotated[
        FilePath | None,
        About(
            SECURITY,
            "File with the unencrypted key (PEM) of --tls-cert.",
            metavar="FILE",
            form="an existing file",
            unset="none",
            key_file=True,
        ),
    ] = None
    tls_ca: Annotated[
        FilePath | None,
        About(
            SECURITY,
            "File with the authorities (PEM) of clients' certificates and of the other clusters'. "
            "Without it other clusters need a certificate that the system trusts.",
            metavar="FILE",
            form="an existing file",
            unset="none",
            key_file=True,
        ),
    ] = None
    tls_client_auth: Annotated[
        ClientAuth,
        About(
            SECURITY,
            "Whether clients present a certificate of --tls-ca. Its common name is their role.",
        ),
    ] = ClientAuth.NONE
    tls_min_version: Annotated[TlsVersion, About(SECURITY, "Oldest accepted version of TLS.")] = (
        TlsVersion.TLS_1_2
    )
    tls_only: Annotated[bool, About(SECURITY, "Listen on no port without TLS.")] = False

    ray_address: Annotated[
        str | None,
        About(
            PROCESSES,
            "Use this Ray cluster instead of starting Ray here.",
            metavar="ADDRESS",
            form="an address",
            unset="start Ray",
        ),
    ] = None
    ray_tls: Annotated[
        Path | None,
        About(
            SECURITY,
            "Connect to Ray by TLS, with tls.crt, tls.key and ca.crt (PEM) in this directory. "
            "An authority and certificates are made there if it has none.",
            metavar="DIRECTORY",
            form="a directory",
            unset="no TLS between Ray's processes, unless RAY_USE_TLS is set",
        ),
    ] = None
    placement: Annotated[
        Placement,
        About(
            PROCESSES,
            "auto runs the actors in a few processes and gives busy topics processes of their own; "
            "shared runs them in a few processes only; dedicated gives each actor a process.",
        ),
    ] = Placement.AUTO
    hosts: Annotated[
        int | None,
        About(
            PROCESSES,
            "Number of processes that actors share with --placement shared or auto.",
            unset="one for each core",
        ),
    ] = Field(default=None, ge=1)
    local: Annotated[bool, About(PROCESSES, "Run all actors in this process, without Ray.")] = False
    passivate_after_s: Annotated[
        float,
        About(
            PROCESSES,
            "Time after which an unused actor is stopped to free its memory.",
            option="--passivate-after",
            unit="seconds",
        ),
    ] = Field(default=300.0, gt=0, allow_inf_nan=False)
    log_format: Annotated[
        LogFormat,
        About(
            PROCESSES,
            "Form of the log lines on standard error: console for people, json for programs.",
        ),
    ] = LogFormat.CONSOLE
    log_level: Annotated[
        LogLevel,
        About(PROCESSES, "Least level of the log lines that are written."),
    ] = LogLevel.INFO
    otlp_endpoint: Annotated[
        str,
        AfterValidator(_http_url),
        About(
            PROCESSES,
            "URL of a collector of OpenTelemetry, without a path: it gets traces and metrics by "
            "OTLP over HTTP. Needs velaray[otel] on all nodes.",
            metavar="URL",
            form="the URL of a collector, http://host:port or https://host:port",
            unset="no traces, and metrics in /metrics only",
        ),
    ] = ""
    otlp_interval_s: Annotated[
        float,
        About(
            PROCESSES,
            "Time between two exports of metrics to --otlp-endpoint.",
            option="--otlp-interval",
            unit="seconds",
        ),
    ] = Field(default=60.0, gt=0, allow_inf_nan=False)
    max_active_transactions: Annotated[
        int,
        About(
            PROCESSES,
            "Limit of open transactions per coordinator; further clients wait. 0: no limit.",
        ),
    ] = Field(default=0, ge=0)

    partition_sync: Annotated[
        PartitionSync,
        About(
            STORAGE,
            "When to sync published messages to disk: before every receipt, or on a timer. With a "
            "timer, a power loss loses messages published since the last sync; a process crash "
            "loses none.",
        ),
    ] = PartitionSync.ALWAYS
    sync_interval_ms: Annotated[
        int,
        About(STORAGE, "Time between syncs with --partition-sync interval.", unit="milliseconds"),
    ] = Field(default=1000, ge=1)
    commit_interval_ms: Annotated[
        int,
        About(
            STORAGE,
            "Least time between two objects of a process, with --store: a receipt waits for it.",
            unit="milliseconds",
        ),
    ] = Field(default=100, ge=10, le=1000)
    offload: Annotated[
        str,
        About(
            STORAGE,
            "Archive for the ledgers of topics: an object store (s3://bucket/prefix, gs://..., "
            "az://...) or a directory (file:///path). Policies of namespaces say which ledgers "
            "move there. The data directory notes it, so later starts need not give it.",
            metavar="URL",
            form="the URL of an object store or a directory",
            unset="the archive that the data directory names, if any",
        ),
    ] = ""
    compaction_retain_null_key: Annotated[
        bool,
        About(STORAGE, "Keep messages without a key in compaction; by default it drops them."),
    ] = False
    undelete_s: Annotated[
        float,
        About(
            STORAGE,
            "Time for which a deleted topic can be undeleted; its storage is freed afterwards.",
            option="--undelete-window",
            unit="seconds",
        ),
    ] = Field(default=0.0, ge=0, allow_inf_nan=False)
    deletion_retry_s: Annotated[
        float,
        About(
            STORAGE,
            "Time until a failed deletion of a ledger is retried.",
            option="--deletion-retry",
            unit="seconds",
        ),
    ] = Field(default=600.0, gt=0, allow_inf_nan=False)
    deleters: Annotated[
        int,
        About(STORAGE, "Number of actors that delete ledgers; each deletes about 250 a second."),
    ] = Field(default=1, ge=1)

    @field_validator(
        "cluster_number",
        "service_port",
        "admin_port",
        "tls_service_port",
        "tls_admin_port",
        "max_connections",
        "max_connections_per_address",
        "max_connections_per_role",
        "max_requests_per_role",
        "buffer_memory_mib",
        "memory_budget_mib",
        "hosts",
        "passivate_after_s",
        "max_active_transactions",
        "sync_interval_ms",
        "commit_interval_ms",
        "undelete_s",
        "deletion_retry_s",
        "deleters",
        mode="before",
    )
    @classmethod
    def _no_number(cls, given: Any) -> Any:
        """Refuse true and false, which are numbers for Python and pydantic."""
        if isinstance(given, bool):
            raise ValueError("must be a number")
        return given

    @field_validator("data", mode="before")
    @classmethod
    def _directory(cls, given: Any) -> Any:
        """Refuse a URL, which would be taken for the name of a directory."""
        if isinstance(given, str) and is_object_store(given):
            raise ValueError("is the URL of an object store: give it as store")
        return given

    @model_validator(mode="after")
    def _combination(self) -> Self:
        if self.store and "data" in self.model_fields_set:
            raise _conflict("store", "excludes data: give one of them")
        if self.store and self.partition_sync is PartitionSync.INTERVAL:
            raise _conflict("store", "excludes partition_sync interval: every commit is stored")
        if self.store and self.offload:
            raise _conflict("offload", "excludes store: everything is in the object store")
        if not self.store and "commit_interval_ms" in self.model_fields_set:
            raise _conflict("commit_interval_ms", "needs store")
        if self.token_secret is not None and self.token_public_key is not None:
            raise _conflict("token_secret", "excludes token_public_key: give one of them")
        self._check_tls()
        if bool(self.oidc_issuer) != bool(self.oidc_audience):
            given = "oidc_issuer" if self.oidc_issuer else "oidc_audience"
            raise _conflict(given, "needs oidc_issuer and oidc_audience")
        special = *self.superusers, *self.proxy_roles
        if self.anonymous_role and self.anonymous_role in (*special, *self.viewers):
            raise _conflict("anonymous_role", "is the role of everybody: give it no other rights")
        if not set(special).isdisjoint(self.viewers):
            raise _conflict("viewers", "can change nothing: name no superuser and no proxy role")
        for key in ("ray_address", "ray_tls", "placement", "hosts"):
            if self.local and key in self.model_fields_set and getattr(self, key) is not None:
                raise _conflict(key, "is about Ray, which --local doesn't use")
        if self.hosts is not None and self.placement is Placement.DEDICATED:
            raise _conflict("hosts", "needs placement shared or auto")
        return self

    def _check_tls(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            raise _conflict(given, f"needs {missing}")
        if self.tls_cert is None:
            for key in ("tls_ca", "tls_client_auth", "tls_min_version", "tls_only"):
                if key in self.model_fields_set and getattr(self, key) != SETTINGS[key].default:
                    raise _conflict(key, "needs tls_cert")
        if self.tls_client_auth is not ClientAuth.NONE and self.tls_ca is None:
            raise _conflict("tls_client_auth", "needs tls_ca")

    @property
    def location(self) -> str:
        """Where the journals are: the URL of an object store, or the path of a directory."""
        return self.store or str(self.data.resolve())


def place_of(location: str | Path) -> dict[str, Any]:
    """The setting for the place of the journals that a Python program gives."""
    if is_object_store(str(location)):
        return {"store": location}
    return {"data": location}


def _conflict(key: str, text: str) -> PydanticCustomError:
    return PydanticCustomError(_CONFLICT, "{key} {text}", {"key": key, "text": text})


SETTINGS: Mapping[str, FieldInfo] = ClusterSettings.model_fields
"""The fields of `ClusterSettings` by key."""


def about(key: str) -> About:
    """The declaration of a setting besides its type and limits."""
    return next(each for each in SETTINGS[key].metadata if isinstance(each, About))


def option_of(key: str) -> str:
    """The option of ``velaray start`` for a setting."""
    return about(key).option or f"--{key.replace('_', '-')}"


def type_of(key: str) -> type:
    """The type of a setting's values other than None; `object` if there are several types."""
    annotation: Any = SETTINGS[key].annotation
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 and isinstance(kinds[0], type) else object


def limits(key: str) -> str:
    """The limits of a number as text, such as "0 to 65535"; "" if there are none."""
    metadata = SETTINGS[key].metadata
    least = next((each.ge for each in metadata if isinstance(each, Ge)), None)
    above = next((each.gt for each in metadata if isinstance(each, Gt)), None)
    most = next((each.le for each in metadata if isinstance(each, Le)), None)
    if most is not None:
        return f"{least} to {most}"
    if least is not None:
        return f"at least {least}"
    return "" if above is None else f"above {above}"


def allowed(key: str) -> str:
    """What a setting accepts, as text that completes "must be"."""
    kind = type_of(key)
    if issubclass(kind, Enum):
        return " or ".join(str(each.value) for each in kind)
    if issubclass(kind, bool):
        return "true or false"
    if about(key).form:
        return about(key).form
    number = "an integer" if issubclass(kind, int) else "a number"
    return f"{number}, {limits(key)}"


def nearest(given: str, known: list[str]) -> str:
    """The suggestion for an unknown name, as the end of a sentence."""
    found = get_close_matches(given, known, 1, 0.5)
    return f"; did you mean {found[0]}?" if found else "; `velaray config show` lists the settings"


def validated(values: Mapping[str, Any], labels: Mapping[str, str]) -> ClusterSettings:
    """The settings with these values, whose keys are known.

    Raises `SettingError`, which names the first wrong value by its label.
    """
    try:
        return ClusterSettings.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    raise SettingError(_text(first, labels))


def _text(error: ErrorDetails, labels: Mapping[str, str]) -> str:
    if error["type"] == _CONFLICT:
        found = error["ctx"]
        return f"{labels[found['key']]} {found['text']}"
    key = str(error["loc"][0])
    if error["type"] == "value_error" and about(key).form:
        return f"{labels[key]}: {error['ctx']['error']}"
    if error["type"] in ("greater_than", "greater_than_equal", "less_than_equal"):
        return f"{labels[key]} must be {limits(key)}"
    return f"{labels[key]} must be {allowed(key)}"


_PLACES = {"data", "store", "local"}
"""Settings that the first argument of a start says."""


def _path(given: str) -> Path | None:
    return Path(given) if given else None


def settings_of(options: Mapping[str, Any], **more: Any) -> ClusterSettings:
    """The settings for arguments of `velaray.Cluster.start`, and ``more`` values by key.

    Raises `TypeError` for an unknown argument and `SettingError` for a value that isn't allowed.
    """
    values = dict(options)
    auth = values.pop("auth", None)
    for name in values:
        if name not in SETTINGS or name in (*_PLACES, "token_secret", "token_public_key"):
            known = [*(SETTINGS.keys() - _PLACES), "auth"]
            raise TypeError(f"unknown argument {name!r}{nearest(name, known)}")
    if auth is not None:
        if auth.key is None:
            raise SettingError("auth has neither a secret nor a public key")
        values["token_secret"] = auth.secret or _path(auth.secret_path)
        values["token_public_key"] = auth.public_key or _path(auth.public_key_path)
    values |= more
    return validated(
        values,
        {key: key if about(key).key_file else f"{key}={values.get(key)!r}" for key in SETTINGS},
    )


def as_text(value: Any) -> str:
    """A value of ``model_dump(mode="json")`` as an option or a variable has it; "-" for none."""
    if value is None or value in ("", {}, []):
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        numbers = all(isinstance(each, int) for each in value)
        return ("-" if numbers else " ").join(map(str, value))
    if isinstance(value, dict):
        return " ".join(f"{name}={each}" for name, each in value.items())
    return str(value)


def default_text(key: str) -> str:
    """The default of a setting as text."""
    default = ClusterSettings().model_dump(mode="json", include={key})[key]
    return about(key).unset or as_text(default)
