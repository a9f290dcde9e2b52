"""Topics read from the service: the plan and its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from velaray import Client, ConsumerCryptoFailureAction, MessageId, Reader
from velaray.client.exceptions import Timeout
from velaray.client.read_bounds import SpanLimits
from velaray.pipelines.ledgers import BATCH_BYTES, PART_BYTES
from velaray.pipelines.private_keys import check_decrypted, key_reader
from velaray.pipelines.rows import record_batch
from velaray.pipelines.spark_client import Service, link_to
from velaray.pipelines.spark_offsets import Progress
from velaray.pipelines.spark_positions import Place, Start, number_of

if TYPE_CHECKING:
    import pyarrow as pa

    from velaray.client.blocks import Segment
    from velaray.pipelines.typed_values import TypedValue

ROWS = 50_000
"""Maximum rows of a record batch."""
QUEUE = 10_000
"""Maximum messages that wait in a reader; with messages of a kilobyte more isn't faster."""
WAIT_MS = 60_000
"""Milliseconds that a reader waits for messages that exist."""
AT_ONCE = 16
"""Number of partitions that are scanned at the same time."""
QUIET_MS = 20
"""Milliseconds without a delivery before a reader asks whether there are more messages."""


@dataclass(frozen=True, slots=True)
class ServicePart:
    """The messages of a topic partition after ``start`` and up to ``end``.

    The position of a chunked message is that of its last chunk; its other chunks are behind
    ``chunks``.
    """

    service: Service
    partition: str
    start: Place
    end: Place
    chunks: Place | None = None

    def read(
        self,
        columns: Sequence[str],
        typed: TypedValue | None = None,
        private_key_file: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages that consumers get, in order, as rows.

        Raises `Timeout` if the service doesn't deliver existing messages, `UndecodableMessage` for
        a message that doesn't have the type of ``typed``, and `CryptoError` for one that the key
        doesn't decrypt.
        """
        begin = (self.chunks or self.start).message_id(number_of(self.partition))
        with (
            link_to(self.service) as link,
            link.client.create_reader(
                self.partition,
                begin,
                receiver_queue_size=QUEUE,
                max_pending_chunked_message=0,
                schema=typed,
                crypto_key_reader=key_reader(private_key_file),
                crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
            ) as reader,
        ):
            over = False
            while not over and (found := _next(reader)):
                segments, over = self._within(found)
                check_decrypted(segments)
                for part in _in_parts(segments):
                    yield record_batch(part, columns, typed)

    def _within(self, segments: list[Segment]) -> tuple[list[Segment], bool]:
        """Return the ``segments`` in this part, and whether the part ends with them."""
        found: list[Segment] = []
        for segment in segments:
            at = Place(*segment.block.info.where)
            if at > self.end:
                return found, True
            if at > self.start:
                found.append(segment)
            if at == self.end and segment.end == len(segment.block):
                return found, True
        return found, False


def _next(reader: Reader[Any]) -> list[Segment]:
    """Return the next messages; none at the end, also if the last ones are hidden or trimmed.

    Raises `Timeout` if the service doesn't deliver existing messages.
    """
    try:
        return reader.read_many(ROWS, QUIET_MS).segments
    except Timeout:
        return reader.read_many(ROWS, WAIT_MS).segments if reader.has_message_available() else []


def _in_parts(segments: list[Segment]) -> Iterator[list[Segment]]:
    """Divide the messages into parts of about `BATCH_BYTES`, which fit into CPU caches."""
    part, size = [], 0
    for segment in segments:
        part.append(segment)
        size += segment.nbytes
        if size >= BATCH_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def plan(
    service: Service,
    partitions: Callable[[Client], Sequence[str]],
    start: Start,
    end: Start,
    size: int = PART_BYTES,
) -> list[ServicePart]:
    """Return the messages between two positions, in parts of about ``size`` bytes.

    Messages of open transactions, and all messages behind the first of these, are excluded. The
    service scans the whole range to divide it. Raises `InvalidConfiguration` if a position is
    missing, and the service's errors.
    """
    with service.client() as client:
        names = list(partitions(client))
        start.check(names)
        end.check(names)
        with ThreadPoolExecutor(AT_ONCE, "velaray-plan") as pool:
            found = pool.map(lambda name: _cuts(client, name, start, end, size), names)
            return [
                ServicePart(service, name, *cut)
                for name, cuts in zip(names, found, strict=True)
                for cut in cuts
            ]


def _cuts(
    client: Client, partition: str, start: Start, end: Start, size: int
) -> list[tuple[Place, Place, Place | None]]:
    with client.create_reader(partition, MessageId.latest, receiver_queue_size=0) as reader:

        def sought(time: int) -> Place:
            reader.seek(time)
            return Place.of(reader.get_positions()[partition][1])

        last = Place.of(reader.get_positions()[partition][0])
        begin, until = (each.place(partition, last, sought) for each in (start, end))
        at, cuts = Progress(begin), []
        limits = SpanLimits(bytes=size, some=True, until=MessageId(-1, *until))
        while at.after < until:
            step = reader.get_spans({partition: (at.spot(partition), limits)})[partition]
            to = Progress.at_end_of(step)
            if step.torn is not None:  # a message too long to divide: read all at once
                return [(begin, until, None)]
            if to.after <= at.after:
                break
            cuts.append((at.after, to.after, at.chunks))
            at = to
        return cuts
