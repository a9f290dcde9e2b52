"""Identifiers: positions, message ids, transaction ids, topic names, actor keys.

Pulsar's text forms (``persistent://tenant/namespace/topic-partition-3``) are parsed and
printed here and nowhere else. Inside velaray an actor is named by an `ActorKey`, whose
parts are kept apart: a text such as ``<topic>-<subscription>`` is ambiguous.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import total_ordering
from typing import ClassVar, Final, NamedTuple, Self
from urllib.parse import quote, unquote

from google.protobuf.message import DecodeError

from velaray.events.ids_pb2 import MessageIdData

UINT64_MAX = (1 << 64) - 1
INT64_MAX = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1
REPLICATOR_PREFIX = "pulsar.repl."
"""The prefix of the names of replicators, of their producers and of their subscriptions."""
_PRINTED_ID = re.compile(r"(?:MessageId)?\((-?[0-9]+(?:,-?[0-9]+){3})\)", re.ASCII)
_ID_TEXT = re.compile(r"-?[0-9]{1,19}:-?[0-9]{1,19}(?::-?[0-9]{1,10}){0,2}")


class InvalidNameError(ValueError):
    """A topic, namespace, subscription or actor name that doesn't follow the rules."""


class InvalidMessageIdError(ValueError):
    """Bytes that are not a message id."""


LEDGER_INDEX_BITS: Final = 24
"""The lowest bits of a ledger id count the ledgers of a journal; the journal's number is above
them."""

NUMBER_BITS: Final = 28
"""Bits of a journal's number within its cluster; the cluster's own number is above them."""


def cluster_number_of(ledger_id: int) -> int:
    """The number of the cluster that a ledger belongs to."""
    return ledger_id >> (NUMBER_BITS + LEDGER_INDEX_BITS)


class Position(NamedTuple):
    """The place of an entry: ledger id and entry id. Ordered as the log.

    ``EARLIEST`` is before every entry and ``LATEST`` after every entry; entry id -1 is
    the place before the first entry of a ledger.
    """

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


class TransactionId(NamedTuple):
    """A transaction: the number of its coordinator, and its sequence there.

    Sequences count from 1 per coordinator and are never used again. Printed as Pulsar does.
    """

    coordinator: int
    sequence: int

    def __str__(self) -> str:
        return f"({self.coordinator},{self.sequence})"


EARLIEST = Position(-1, -1)
LATEST = Position(INT64_MAX, INT64_MAX)


def _unsigned(value: int) -> int:
    return value & UINT64_MAX


def _signed(value: int) -> int:
    return value - (1 << 64) if value > INT64_MAX else value


@total_ordering
@dataclass(frozen=True, slots=True)
class MessageId:
    """The id that clients see; the byte form and the order are Apache Pulsar's.

    ``partition`` is -1 for a topic without partitions, ``batch_index`` -1 for a message
    that is not part of a batch. Ids order by ledger, entry, partition, batch index.
    """

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1
    batch_size: int = 0
    first_chunk: MessageId | None = None

    earliest: ClassVar[MessageId]
    latest: ClassVar[MessageId]

    @property
    def position(self) -> Position:
        """The position of the entry that holds this message."""
        return Position(self.ledger_id, self.entry_id)

    def _order(self) -> tuple[int, int, int, int]:
        return (self.ledger_id, self.entry_id, self.partition, self.batch_index)

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, MessageId):
            return NotImplemented
        return self._order() < other._order()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageId) and self._order() == other._order()

    def __hash__(self) -> int:
        return hash(self._order())

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}:{self.partition}:{self.batch_index}"

    def to_proto(self) -> MessageIdData:
        """The protobuf form; negative ids wrap to unsigned as Pulsar's do.

        A partition or batch index that the message doesn't have is left out, as Pulsar does.
        """
        data = MessageIdData(ledgerId=_unsigned(self.ledger_id), entryId=_unsigned(self.entry_id))
        if self.partition >= 0:
            data.partition = self.partition
        if self.batch_index >= 0:
            data.batch_index = self.batch_index
        if self.batch_size > 0:
            data.batch_size = self.batch_size
        if self.first_chunk is not None:
            data.first_chunk_message_id.CopyFrom(self.first_chunk.to_proto())
        return data

    @classmethod
    def from_proto(cls, data: MessageIdData) -> Self:
        """The id in ``data``."""
        first = (
            cls.from_proto(data.first_chunk_message_id)
            if data.HasField("first_chunk_message_id")
            else None
        )
        return cls(
            _signed(data.ledgerId),
            _signed(data.entryId),
            data.partition,
            data.batch_index,
            data.batch_size,
            first,
        )

    def to_bytes(self) -> bytes:
        """The byte form, equal to Pulsar's ``MessageId.toByteArray()``."""
        return self.to_proto().SerializeToString()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Read the byte form.

        Raises `InvalidMessageIdError` if ``raw`` is not a message id.
        """
        try:
            data = MessageIdData.FromString(raw)
        except DecodeError as error:
            raise InvalidMessageIdError(f"not a message id: {raw[:32]!r} ({error})") from error
        if not data.IsInitialized():
            raise InvalidMessageIdError(f"not a message id: {raw[:32]!r} (no ledger or entry id)")
        return cls.from_proto(data)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``ledger:entry[:partition[:batch]]``, as the command line takes it, or
        ``(ledger,entry,partition,batch)``, as clients for Python and C++ print an id.

        Raises `InvalidMessageIdError`.
        """
        if printed := _PRINTED_ID.fullmatch(text):
            text = printed[1].replace(",", ":")
        if not _ID_TEXT.fullmatch(text):
            raise InvalidMessageIdError(
                f"not a message id: {text[:80]!r}; write ledger:entry[:partition[:batch]]"
            )
        numbers = [int(part) for part in text.split(":")]
        if not all(-1 <= number <= INT64_MAX for number in numbers[:2]):
            raise InvalidMessageIdError(f"not a message id: {text!r}: 64 bits are exceeded")
        if not all(-1 <= number <= INT32_MAX for number in numbers[2:]):
            raise InvalidMessageIdError(f"not a message id: {text!r}: 32 bits are exceeded")
        ledger_id, entry_id, *rest = numbers
        partition, batch_index = [*rest, -1, -1][:2]
        return cls(ledger_id, entry_id, partition, batch_index)


MessageId.earliest = MessageId(-1, -1)
MessageId.latest = MessageId(INT64_MAX, INT64_MAX)

_NAME = re.compile(r"[-=:.\w]+", re.ASCII)
_PARTITION = re.compile(r"-partition-(0|[1-9][0-9]{0,8})\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
MAX_NAME_BYTES = 200
"""Bytes that a name may have when it is percent-encoded: journals use it as a file name."""


def _quoted(part: str) -> str:
    dots = part in (".", "..")
    return part.replace(".", "%2E") if dots else quote(part, safe="=:-")


def check_name(kind: str, name: str) -> str:
    """Return ``name`` if it may name a tenant or namespace; else raise `InvalidNameError`.

    As in Pulsar: ASCII letters, digits and any of ``-=:._``; besides, neither ``.`` nor ``..``.
    """
    if not _NAME.fullmatch(name):
        raise InvalidNameError(
            f"invalid {kind} name {name[:80]!r}: use letters, digits and any of -=:._"
        )
    return check_local_name(kind, name)


def check_local_name(kind: str, name: str) -> str:
    """Return ``name`` if it may name a topic or subscription; else raise `InvalidNameError`.

    Any text will do that isn't empty, holds no control character, has at most 200 bytes when it
    is percent-encoded (so ASCII letters count one, others up to 12) and can't be mistaken for a
    step in a path (``.`` or ``..``).
    """
    if not name or name in (".", ".."):
        raise InvalidNameError(f"invalid {kind} name {name!r}")
    if _CONTROL.search(name):
        raise InvalidNameError(f"invalid {kind} name {name[:80]!r}: it holds control characters")
    try:
        too_long = len(name) > MAX_NAME_BYTES or len(_quoted(name)) > MAX_NAME_BYTES
    except UnicodeEncodeError as error:
        raise InvalidNameError(f"invalid {kind} name: {error}") from error
    if too_long:
        raise InvalidNameError(
            f"invalid {kind} name {name[:80]!r}...: it has more than {MAX_NAME_BYTES} bytes when "
            "it is percent-encoded; use a shorter one"
        )
    return name


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A topic, or one partition of it.

    ``local`` is the name without partition suffix; ``partition`` is -1 for a topic as a
    whole.
    """

    tenant: str
    namespace: str
    local: str
    partition: int = -1
    domain: str = "persistent"

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Read a full or short name (``topic`` means ``persistent://public/default/topic``).

        Raises `InvalidNameError`.
        """
        domain, separator, rest = text.partition("://")
        if not separator:
            domain, rest = "persistent", text
            if "/" not in rest:
                rest = f"public/default/{rest}"
        if domain not in ("persistent", "non-persistent"):
            raise InvalidNameError(
                f"invalid topic name {text[:80]!r}: the domain must be persistent or non-persistent"
            )
        parts = rest.split("/")
        if len(parts) != 3:
            raise InvalidNameError(
                f"invalid topic name {text[:80]!r}: write domain://tenant/namespace/topic"
            )
        tenant, namespace, local = parts
        check_name("tenant", tenant)
        check_name("namespace", namespace)
        check_local_name("topic", local)
        match = _PARTITION.search(local)
        if match is None:
            return cls(tenant, namespace, local, -1, domain)
        topic = local[: match.start()]
        if not topic or _PARTITION.search(topic):
            raise InvalidNameError(
                f"invalid topic name {text[:80]!r}: a topic's own name can't end in -partition-N"
            )
        return cls(tenant, namespace, topic, int(match.group(1)), domain)

    @property
    def topic(self) -> TopicName:
        """The topic without its partition."""
        return self if self.partition < 0 else replace(self, partition=-1)

    def of_partition(self, partition: int) -> TopicName:
        """The given partition of this topic (-1: the topic as a whole)."""
        return replace(self, partition=partition)

    def members(self, partitions: int) -> list[TopicName]:
        """The names of this topic's partitions, given their number; for 0 the topic itself."""
        return [self.of_partition(number) for number in range(partitions)] or [self]

    @property
    def namespace_name(self) -> str:
        """``tenant/namespace``."""
        return f"{self.tenant}/{self.namespace}"

    def __str__(self) -> str:
        suffix = f"-partition-{self.partition}" if self.partition >= 0 else ""
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}{suffix}"


class ActorKind(StrEnum):
    """The kinds of actors; each owns one journal, unless it says otherwise."""

    CATALOG = "catalog"
    PARTITION = "partition"
    SUBSCRIPTION = "subscription"
    COMPACTED = "compacted"
    """Not an actor: one generation of a partition's compacted entries, in a journal of its own."""
    COORDINATOR = "coordinator"
    SCHEMA_REGISTRY = "schema-registry"
    GARBAGE_COLLECTOR = "deleter"
    """Deletes ledgers that no manifest lists. It owns no journal: its work list is in topics."""

    INBOUND_REPLICATOR = "puller"
    """Copies what another cluster publishes to one partition. It owns no journal: its position is
    kept in that cluster."""


_PARTS = {
    ActorKind.CATALOG: 0,
    ActorKind.PARTITION: 5,
    ActorKind.SUBSCRIPTION: 7,
    ActorKind.COMPACTED: 6,
    ActorKind.COORDINATOR: 1,
    ActorKind.SCHEMA_REGISTRY: 5,
    ActorKind.GARBAGE_COLLECTOR: 1,
    ActorKind.INBOUND_REPLICATOR: 6,
}
"""The number of parts after the kind in a key's text."""
_NUMBERED = (ActorKind.COORDINATOR, ActorKind.GARBAGE_COLLECTOR)


@dataclass(frozen=True, slots=True, order=True)
class ActorKey:
    """The identity of an actor. Its journal, its Ray name and its RPC connections follow from it.

    The incarnations distinguish a topic (or subscription) from an earlier one of the same name, so
    that no data of the deleted one is mistaken for that of the new one.
    """

    kind: ActorKind
    tenant: str = ""
    namespace: str = ""
    topic: str = ""
    partition: int = -1
    topic_incarnation: int = 0
    subscription: str = ""
    subscription_incarnation: int = 0
    generation: int = 0
    cluster: str = ""

    @classmethod
    def catalog(cls) -> ActorKey:
        """The cluster's one catalog."""
        return cls(ActorKind.CATALOG)

    @classmethod
    def of_coordinator(cls, number: int) -> ActorKey:
        """A transaction coordinator; its number is the first part of its transactions' ids."""
        return cls(ActorKind.COORDINATOR, partition=number)

    @classmethod
    def of_garbage_collector(cls, number: int) -> ActorKey:
        """One of the actors that delete ledgers."""
        return cls(ActorKind.GARBAGE_COLLECTOR, partition=number)

    @classmethod
    def of_partition(cls, topic: TopicName, incarnation: int) -> ActorKey:
        """A topic partition (or a topic without partitions: partition -1)."""
        return cls(
            ActorKind.PARTITION,
            topic.tenant,
            topic.namespace,
            topic.local,
            topic.partition,
            incarnation,
        )

    @classmethod
    def of_partitions(cls, topic: TopicName, incarnation: int, partitions: int) -> list[ActorKey]:
        """All partitions of a topic with this number of partitions; see `TopicName.members`."""
        return [cls.of_partition(name, incarnation) for name in topic.members(partitions)]

    @classmethod
    def of_schema_registry(cls, topic: TopicName, incarnation: int) -> ActorKey:
        """The schema registry of a topic, the same for all of its partitions."""
        return replace(cls.of_partition(topic.topic, incarnation), kind=ActorKind.SCHEMA_REGISTRY)

    def of_subscription(self, subscription: str, incarnation: int) -> ActorKey:
        """A durable subscription of this partition. Raises `InvalidNameError`."""
        return replace(
            self,
            kind=ActorKind.SUBSCRIPTION,
            subscription=check_local_name("subscription", subscription),
            subscription_incarnation=incarnation,
        )

    def of_inbound_replicator(self, cluster: str) -> ActorKey:
        """The actor that copies messages of ``cluster`` to this partition. Raises
        `InvalidNameError`."""
        return replace(
            self, kind=ActorKind.INBOUND_REPLICATOR, cluster=check_name("cluster", cluster)
        )

    def of_compacted(self, generation: int) -> ActorKey:
        """A generation of this partition's compacted entries."""
        return replace(self, kind=ActorKind.COMPACTED, generation=generation)

    @property
    def topic_name(self) -> TopicName:
        """The topic partition that this key belongs to."""
        return TopicName(self.tenant, self.namespace, self.topic, self.partition)

    def text(self) -> str:
        """A printable, unambiguous, reversible form: parts are percent-encoded, joined by ``/``.

        No part is empty, ``.`` or ``..``, so the text may stand as a path below a folder.
        """
        if self.kind is ActorKind.CATALOG:
            return self.kind.value
        if self.kind in _NUMBERED:
            return f"{self.kind.value}/{self.partition}"
        parts = [
            self.kind.value,
            self.tenant,
            self.namespace,
            self.topic,
            str(self.partition),
            str(self.topic_incarnation),
        ]
        if self.kind is ActorKind.SUBSCRIPTION:
            parts += [self.subscription, str(self.subscription_incarnation)]
        if self.kind is ActorKind.COMPACTED:
            parts.append(str(self.generation))
        if self.kind is ActorKind.INBOUND_REPLICATOR:
            parts.append(self.cluster)
        return "/".join(_quoted(part) for part in parts)

    @classmethod
    def parse(cls, text: str) -> ActorKey:
        """Read what `text` printed. Raises `InvalidNameError`."""
        parts = [unquote(part) for part in text.split("/")]
        try:
            key = cls._of_parts(ActorKind(parts[0]), parts[1:])
            if key.text() != text:
                raise InvalidNameError("it isn't spelled as keys are printed")
        except ValueError as error:
            raise InvalidNameError(f"not an actor key: {text[:200]!r} ({error})") from error
        return key

    @classmethod
    def _of_parts(cls, kind: ActorKind, parts: list[str]) -> ActorKey:
        if len(parts) != _PARTS[kind]:
            raise InvalidNameError(f"{len(parts)} parts after {kind}")
        if kind is ActorKind.CATALOG:
            return cls(kind)
        if kind in _NUMBERED:
            if int(parts[0]) < 0:
                raise InvalidNameError("a number is negative")
            return cls(kind, partition=int(parts[0]))
        tenant, namespace, topic, partition, incarnation, *rest = parts
        name = TopicName(
            check_name("tenant", tenant),
            check_name("namespace", namespace),
            check_local_name("topic", topic),
            int(partition),
        )
        if name.partition < -1 or int(incarnation) < 0:
            raise InvalidNameError("a number is negative")
        key = cls.of_partition(name, int(incarnation))
        if kind is ActorKind.PARTITION:
            return key
        if kind is ActorKind.SCHEMA_REGISTRY:
            if name.partition != -1:
                raise InvalidNameError("a schema registry is a whole topic's")
            return cls.of_schema_registry(name, key.topic_incarnation)
        if kind is ActorKind.COMPACTED:
            if int(rest[0]) < 0:
                raise InvalidNameError("a number is negative")
            return key.of_compacted(int(rest[0]))
        if kind is ActorKind.INBOUND_REPLICATOR:
            return key.of_inbound_replicator(rest[0])
        return key.of_subscription(rest[0], int(rest[1]))

    def __str__(self) -> str:
        return self.text()
