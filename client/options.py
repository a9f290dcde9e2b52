"""The keyword arguments of the client's methods: names, order and defaults are Pulsar's.

Each class lists the parameters of one method in the order of Pulsar's Python client; velaray's own
parameters come last. Parameters that velaray doesn't support are listed as well, with the reason in
`unsupported`. Their defaults are accepted; any other value raises `OperationNotSupported` and is
never ignored.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar

from velaray.client.auth import Authentication
from velaray.client.encryption_keys import EncryptionKeyReader
from velaray.client.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProducerCryptoFailureAction,
    RegexSubscriptionMode,
)
from velaray.client.exceptions import InvalidConfiguration, OperationNotSupported
from velaray.client.interceptors import ConsumerInterceptor, ProducerInterceptor
from velaray.client.message_id import MessageId
from velaray.client.policies import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    RedeliveryBackoff,
)
from velaray.client.schema.auto import AutoConsumeSchema
from velaray.client.schema.base import Schema, T, typed
from velaray.client.service_info import AutoClusterFailover, ServiceInfoProvider, uses_tls
from velaray.client.tls import Security, TlsOptions

Topics = str | Sequence[str] | re.Pattern[str]
MIN_ACK_TIMEOUT_MS = 10_000

_CHUNK_EVICTION = "incomplete chunked messages are always redelivered, never silently acked"


@dataclass(frozen=True, kw_only=False)
class Options:
    """Base class: refuses unsupported parameters, then checks the values."""

    unsupported: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        for field in fields(self):
            reason = self.unsupported.get(field.name)
            if reason is None:
                continue
            value = getattr(self, field.name)
            if value is not field.default and value != field.default:
                raise OperationNotSupported(f"{field.name}={value!r}: {reason}")
        self.validate()

    def validate(self) -> None:
        """Raise `InvalidConfiguration` for values that can't work."""

    def _at_least(self, minimum: int, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                raise InvalidConfiguration(
                    f"{name} must be an int of at least {minimum}: {value!r}"
                )

    def _check_kinds(self, name: str, values: Sequence[object] | None, kind: type) -> None:
        if not all(isinstance(value, kind) for value in values or ()):
            raise InvalidConfiguration(f"{name} must be {kind.__name__} objects: {values!r}")

    def _check_crypto(self, reader: object, action: object, actions: type) -> None:
        if not isinstance(action, actions):
            raise InvalidConfiguration(
                f"crypto_failure_action must be a {actions.__name__}: {action!r}"
            )
        if reader is not None and not isinstance(reader, EncryptionKeyReader):
            raise InvalidConfiguration(
                f"crypto_key_reader must be a CryptoKeyReader, or have its methods: {reader!r}"
            )

    def _check_callable(self, name: str) -> None:
        value = getattr(self, name)
        if value is not None and not callable(value):
            raise InvalidConfiguration(f"{name} must be a function: {value!r}")

    def _check_properties(self, properties: Mapping[str, str] | None) -> None:
        for key, value in (properties or {}).items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise InvalidConfiguration(f"properties must map str to str: {key!r}: {value!r}")


@dataclass(frozen=True)
class ClientOptions(Options):
    """Parameters of `velaray.Client`.

    service_url: ``pulsar://host:port``, or by TLS ``pulsar+ssl://host:port``; several addresses of
        one cluster separated by commas; or an `AutoClusterFailover` or `ServiceInfoProvider`, which
        provide the addresses.
    authentication: credentials, e.g. ``AuthenticationToken("…")``.
    use_tls: use TLS even if the scheme of the URL is ``pulsar``.
    tls_trust_certs_file_path: the certificates (PEM) of the authorities that sign servers'
        certificates; by default those of the system.
    tls_allow_insecure_connection: accept any certificate of the server.
    tls_validate_hostname: whether the certificate must be for the host of the URL.
    tls_certificate_file_path, tls_private_key_file_path: the client's certificate and key (PEM),
        for a server that asks for one; `AuthenticationTLS` replaces them.
    operation_timeout_seconds: limit for creating producers, subscribing, seeking and the
        like, retries included.
    connection_timeout_ms: limit for one connection attempt, handshake included.
    listener_name: the advertised listener to request in lookups.
    message_listener_threads: how many threads call the listeners of consumers and readers; one
        thread passes all messages of a consumer, in order.
    keep_alive_interval_seconds: a connection that is silent for two intervals is closed.
    """

    unsupported = {  # noqa: RUF012
        "io_threads": "a client runs one event loop; make several clients to use several threads",
        "concurrent_lookup_requests": "look-ups are not limited",
        "log_conf_file_path": "configure the standard logger named velaray",
        "stats_interval_in_seconds": "clients print no statistics; ask the service's admin API",
        "logger": "configure the standard logger named velaray",
    }

    service_url: str | AutoClusterFailover | ServiceInfoProvider
    authentication: Authentication | None = None
    operation_timeout_seconds: float = 30
    io_threads: int = 1
    message_listener_threads: int = 1
    concurrent_lookup_requests: int = 50000
    log_conf_file_path: str | None = None
    stats_interval_in_seconds: int = 600
    use_tls: bool = False
    tls_trust_certs_file_path: str | None = None
    tls_allow_insecure_connection: bool = False
    tls_validate_hostname: bool = True
    logger: object = None
    connection_timeout_ms: int = 10000
    listener_name: str | None = None
    tls_private_key_file_path: str | None = None
    tls_certificate_file_path: str | None = None
    keep_alive_interval_seconds: float = 30

    def validate(self) -> None:
        """Check types and ranges."""
        if not isinstance(self.authentication, Authentication | None):
            raise InvalidConfiguration(
                f"authentication must be an Authentication: {self.authentication!r}"
            )
        chosen = isinstance(self.service_url, AutoClusterFailover | ServiceInfoProvider)
        if chosen and self.authentication is not None:
            raise InvalidConfiguration(
                f"authentication with {type(self.service_url).__name__}: give each ServiceInfo its"
                " own"
            )
        self._tls()
        self._at_least(1, "connection_timeout_ms", "message_listener_threads")
        for name in ("operation_timeout_seconds", "keep_alive_interval_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidConfiguration(f"{name} must be positive: {getattr(self, name)!r}")

    def _tls(self) -> TlsOptions:
        """The options of TLS. Raises `InvalidConfiguration`."""
        return TlsOptions(
            trust_certs_file_path=self.tls_trust_certs_file_path,
            allow_insecure_connection=self.tls_allow_insecure_connection,
            validate_hostname=self.tls_validate_hostname,
            certificate_file_path=self.tls_certificate_file_path,
            private_key_file_path=self.tls_private_key_file_path,
        )

    def security(self) -> Security | None:
        """How the client connects by TLS; None: without TLS."""
        if not (self.use_tls or uses_tls(str(self.service_url))):
            return None
        tls = self._tls()
        return tls if self.authentication is None else self.authentication.secured(tls)


@dataclass(frozen=True)
class ProducerOptions(Options, Generic[T]):
    """Parameters of ``create_producer``.

    schema: how values become payloads, one of `velaray.schema`'s; by default they are bytes.
    producer_name: unique per topic; needed for de-duplication across restarts.
    initial_sequence_id: the first message gets this plus one; by default the service returns the
        last sequence id of this producer name.
    send_timeout_millis: a message without a receipt after this time fails with `Timeout`; 0 waits
        for ever.
    max_pending_messages: limit of messages without a receipt, per partition;
        ``max_pending_messages_across_partitions`` is the limit for all partitions. This bounds
        memory.
    block_if_queue_full: wait for a free place instead of failing with `ProducerQueueIsFull`.
    batching_enabled, batching_max_messages, batching_max_allowed_size_in_bytes,
        batching_max_publish_delay_ms: batch messages until one limit is reached.
    chunking_enabled: divide messages above the service's limit into chunks.
    message_routing_mode, message_router: the partition of messages without a key;
        ``message_router(message, partition_count)`` decides for every message.
    encryption_key, encryption_keys: the names of the public keys that `crypto_key_reader` reads;
        every entry is encrypted for the owners of all of them.
    access_mode: see `ProducerAccessMode`.
    crypto_failure_action: see `ProducerCryptoFailureAction`.
    interceptors: `ProducerInterceptor` objects, called in this order.
    """

    topic: str
    producer_name: str | None = None
    schema: Schema[T] | None = None
    initial_sequence_id: int | None = None
    send_timeout_millis: int = 30000
    compression_type: CompressionType = CompressionType.NONE
    max_pending_messages: int = 1000
    max_pending_messages_across_partitions: int = 50000
    block_if_queue_full: bool = False
    batching_enabled: bool = False
    batching_max_messages: int = 1000
    batching_max_allowed_size_in_bytes: int = 131072
    batching_max_publish_delay_ms: int = 10
    chunking_enabled: bool = False
    message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution
    lazy_start_partitioned_producers: bool = False
    properties: Mapping[str, str] | None = None
    batching_type: BatchingType = BatchingType.Default
    encryption_key: str | None = None
    crypto_key_reader: EncryptionKeyReader | None = None
    access_mode: ProducerAccessMode = ProducerAccessMode.Shared
    message_router: Callable[[Any, int], int] | None = None
    interceptors: Sequence[ProducerInterceptor] | None = None
    encryption_keys: Sequence[str] | None = None
    crypto_failure_action: ProducerCryptoFailureAction = ProducerCryptoFailureAction.FAIL

    def validate(self) -> None:
        """Check types, ranges and combinations."""
        typed(self.schema)
        if isinstance(self.schema, AutoConsumeSchema):
            raise InvalidConfiguration("AutoConsumeSchema is for consumers and readers")
        self._check_kinds("interceptors", self.interceptors, ProducerInterceptor)
        self._at_least(0, "send_timeout_millis", "batching_max_publish_delay_ms")
        self._at_least(
            1,
            "max_pending_messages",
            "max_pending_messages_across_partitions",
            "batching_max_messages",
            "batching_max_allowed_size_in_bytes",
        )
        self._check_properties(self.properties)
        if self.chunking_enabled and self.batching_enabled:
            raise InvalidConfiguration("chunking_enabled needs batching_enabled=False")
        custom = self.message_routing_mode == PartitionsRoutingMode.CustomPartition
        if custom and self.message_router is None:
            raise InvalidConfiguration("CustomPartition needs a message_router")
        self._check_encryption()

    @property
    def key_names(self) -> Sequence[str]:
        """The names of all public keys; none without encryption."""
        first = [self.encryption_key] if self.encryption_key is not None else []
        return [*first, *(self.encryption_keys or ())]

    def _check_encryption(self) -> None:
        self._check_crypto(
            self.crypto_key_reader, self.crypto_failure_action, ProducerCryptoFailureAction
        )
        if isinstance(self.encryption_keys, str):
            raise InvalidConfiguration(
                f"encryption_keys must be several names: {self.encryption_keys!r}"
            )
        names = self.key_names
        if not all(isinstance(name, str) and name for name in names):
            raise InvalidConfiguration(
                f"encryption_key and encryption_keys must be non-empty str: {names!r}"
            )
        if names and self.crypto_key_reader is None:
            raise InvalidConfiguration("encryption_key needs a crypto_key_reader")
        if self.crypto_key_reader is not None and not names:
            raise InvalidConfiguration("crypto_key_reader needs an encryption_key")


@dataclass(frozen=True)
class AioProducerOptions(ProducerOptions[T]):
    """`ProducerOptions` with batching on, the default of Pulsar's asyncio client."""

    batching_enabled: bool = True


@dataclass(frozen=True)
class ConsumerOptions(Options, Generic[T]):
    """Parameters of ``subscribe``.

    topic: a name, a list of names, or a compiled pattern for names of one namespace.
    schema: how payloads become values, one of `velaray.schema`'s; by default they are bytes.
    receiver_queue_size: limit of messages that wait in the client, per partition. The limit for all
        partitions is ``max_total_receiver_queue_size_across_partitions``. This bounds memory. 0
        fetches one message per ``receive``, for a single topic partition.
    unacked_messages_timeout_ms: redeliver messages that aren't acknowledged in this time (at least
        10000; off by default).
    negative_ack_redelivery_delay_ms: wait this long before asking for redelivery.
    start_message_id_inclusive: after ``seek(id)`` the message ``id`` itself comes first.
    batch_index_ack_enabled: acknowledge single messages of a batch; otherwise a batch is
        acknowledged when all its messages are.
    pattern_auto_discovery_period: seconds between checks for new topics of a pattern.
    replicate_subscription_state_enabled: replicate the subscription's position to the clusters that
        its topics are replicated to.
    max_pending_chunked_message: limit of incomplete chunked messages; 0 is no limit.
    ack_group_time_ms: acknowledgements are sent as a group after this time (or when 1000 wait); 0
        sends each at once.
    ack_receipt_enabled: ``acknowledge`` waits until the acknowledgement is durable.
    crypto_key_reader: reads the private keys of encrypted messages.
    crypto_failure_action: see `ConsumerCryptoFailureAction`.
    dead_letter_policy: the target of messages that were delivered too often.
    enable_retry: subscribe to the retry topic as well, for ``reconsume_later``.
    negative_ack_redelivery_backoff: a delay for each message instead of
        ``negative_ack_redelivery_delay_ms``, e.g. `MultiplierRedeliveryBackoff`.
    ack_timeout_redelivery_backoff: a delay on top of ``unacked_messages_timeout_ms``.
    message_listener: called with (consumer, message) for every message, on one of the client's
        ``message_listener_threads``, in order; ``receive`` is refused then. Exceptions of the
        listener are logged, and the message stays unacknowledged. The asyncio client calls it on
        the event loop and awaits its result if that is awaitable.
    interceptors: `ConsumerInterceptor` objects, called in this order.
    subscription_properties: properties of the subscription, if it is created.
    """

    unsupported = {  # noqa: RUF012
        "broker_consumer_stats_cache_time_ms": "consumers keep no statistics of the service",
        "auto_ack_oldest_chunked_message_on_queue_full": _CHUNK_EVICTION,
    }

    topic: Topics
    subscription_name: str
    consumer_type: ConsumerType = ConsumerType.Exclusive
    schema: Schema[T] | None = None
    message_listener: Callable[[Any, Any], Any] | None = None
    receiver_queue_size: int = 1000
    max_total_receiver_queue_size_across_partitions: int = 50000
    consumer_name: str | None = None
    unacked_messages_timeout_ms: int | None = None
    broker_consumer_stats_cache_time_ms: int = 30000
    negative_ack_redelivery_delay_ms: int = 60000
    is_read_compacted: bool = False
    properties: Mapping[str, str] | None = None
    pattern_auto_discovery_period: float = 60
    initial_position: InitialPosition = InitialPosition.Latest
    crypto_key_reader: EncryptionKeyReader | None = None
    replicate_subscription_state_enabled: bool = False
    max_pending_chunked_message: int = 10
    auto_ack_oldest_chunked_message_on_queue_full: bool = False
    start_message_id_inclusive: bool = False
    batch_receive_policy: ConsumerBatchReceivePolicy | None = None
    key_shared_policy: ConsumerKeySharedPolicy | None = None
    batch_index_ack_enabled: bool = False
    regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly
    dead_letter_policy: ConsumerDeadLetterPolicy | None = None
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    ack_group_time_ms: int = 100
    ack_receipt_enabled: bool = False
    enable_retry: bool = False
    negative_ack_redelivery_backoff: RedeliveryBackoff | None = None
    ack_timeout_redelivery_backoff: RedeliveryBackoff | None = None
    interceptors: Sequence[ConsumerInterceptor] | None = None
    subscription_properties: Mapping[str, str] | None = None

    def validate(self) -> None:
        """Check types, ranges and combinations."""
        if not isinstance(self.subscription_name, str) or not self.subscription_name:
            raise InvalidConfiguration("subscription_name must be a non-empty str")
        typed(self.schema)
        self._at_least(
            0,
            "receiver_queue_size",
            "max_pending_chunked_message",
            "negative_ack_redelivery_delay_ms",
            "ack_group_time_ms",
        )
        self._at_least(1, "max_total_receiver_queue_size_across_partitions")
        if self.unacked_messages_timeout_ms:
            self._at_least(MIN_ACK_TIMEOUT_MS, "unacked_messages_timeout_ms")
        self._check_properties(self.properties)
        self._check_properties(self.subscription_properties)
        if not self.pattern_auto_discovery_period > 0:
            raise InvalidConfiguration("pattern_auto_discovery_period must be positive")
        if self.key_shared_policy and self.consumer_type != ConsumerType.KeyShared:
            raise InvalidConfiguration("key_shared_policy needs ConsumerType.KeyShared")
        self._check_kinds("interceptors", self.interceptors, ConsumerInterceptor)
        self._check_callable("message_listener")
        self._check_crypto(
            self.crypto_key_reader, self.crypto_failure_action, ConsumerCryptoFailureAction
        )
        policy = self.dead_letter_policy
        if not isinstance(policy, ConsumerDeadLetterPolicy | None):
            raise InvalidConfiguration(
                f"dead_letter_policy must be a ConsumerDeadLetterPolicy: {policy!r}"
            )


@dataclass(frozen=True)
class AioConsumerOptions(ConsumerOptions[T]):
    """`ConsumerOptions` where ``is_pattern_topic=True`` makes a str ``topic`` a pattern."""

    is_pattern_topic: bool = False


@dataclass(frozen=True)
class ReaderOptions(Options, Generic[T]):
    """Parameters of ``create_reader``.

    start_message_id: the first message read is the one after it, or it itself with
        ``start_message_id_inclusive``.
    schema: how payloads become values; by default they are bytes.
    receiver_queue_size: limit of messages that wait in the client. This bounds memory.
    subscription_role_prefix: prefix of the generated subscription name.
    reader_listener: called with (reader, message); as a consumer's ``message_listener``.
    crypto_key_reader, crypto_failure_action: as a consumer's.
    max_pending_chunked_message: limit of incomplete chunked messages; 0 is no limit.
    """

    topic: str
    start_message_id: MessageId
    schema: Schema[T] | None = None
    reader_listener: Callable[[Any, Any], Any] | None = None
    receiver_queue_size: int = 1000
    reader_name: str | None = None
    subscription_role_prefix: str | None = None
    is_read_compacted: bool = False
    crypto_key_reader: EncryptionKeyReader | None = None
    start_message_id_inclusive: bool = False
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    max_pending_chunked_message: int = 10

    def validate(self) -> None:
        """Check types and ranges."""
        if not isinstance(self.start_message_id, MessageId):
            raise InvalidConfiguration(
                f"start_message_id must be a MessageId: {self.start_message_id!r}"
            )
        typed(self.schema)
        self._check_callable("reader_listener")
        self._check_crypto(
            self.crypto_key_reader, self.crypto_failure_action, ConsumerCryptoFailureAction
        )
        self._at_least(0, "receiver_queue_size", "max_pending_chunked_message")


@dataclass(frozen=True)
class TableViewOptions(Options, Generic[T]):
    """Parameters of ``create_table_view``.

    schema: how payloads become values; by default they are bytes.
    """

    topic: str
    subscription_name: str | None = None
    schema: Schema[T] | None = None

    def validate(self) -> None:
        """Check the schema."""
        typed(self.schema)


P = ParamSpec("P")
S = TypeVar("S")
O = TypeVar("O", bound=Options)  # noqa: E741
R = TypeVar("R")


def takes(
    options: Callable[P, O],
) -> Callable[[Callable[[S, O], R]], Callable[Concatenate[S, P], R]]:
    """Give ``method(self, options)`` the fields of ``options`` as its parameters.

    Callers, type checkers and ``help()`` see ``method(self, topic, field=default, …)``.
    """

    def decorate(method: Callable[[S, O], R]) -> Callable[Concatenate[S, P], R]:
        @wraps(method)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            return method(self, options(*args, **kwargs))

        own = inspect.signature(method)
        receiver = next(iter(own.parameters.values()))
        shown = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=field.type,
            )
            for field in fields(options)  # type: ignore[arg-type]
        ]
        call.__signature__ = own.replace(parameters=[receiver, *shown])  # type: ignore[attr-defined]
        return call

    return decorate
