"""Commit sequences: groups of transactions that are committed together, once per number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from velaray.client.exceptions import (
    InvalidConfiguration,
    InvalidTxnStatusError,
    TransactionNotFound,
)
from velaray.client.transactions import Coordinators, Transaction
from velaray.events.ids import TransactionId
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.hashing import murmur3_32


class CommitSequence:
    """Numbered commits that take effect once. Made by `velaray.aio.Client.commit_sequence`.

    This is for programs that process a stream in batches, use many workers for a batch, and may
    have to repeat a batch. Every worker publishes in its own transaction, made by `begin`, and
    sends the id that ``prepare`` returns to the leader. The leader commits all of them with one
    decision of the service, under the batch's number. Numbers ascend. Transactions that repeat a
    committed number are aborted, so nothing counts twice after a crash. Open transactions of a
    number that is committed without them are aborted, too.
    """

    def __init__(self, coordinators: Coordinators, name: str, number: int, last: int) -> None:
        """Not for callers. ``number`` is the coordinator's, ``last`` that of the last commit."""
        self._coordinators = coordinators
        self._name = name
        self._number = number
        self._last = last

    def __repr__(self) -> str:
        return f"<CommitSequence {self._name!r} at coordinator {self._number}, last {self._last}>"

    @property
    def name(self) -> str:
        """The name of the sequence."""
        return self._name

    @property
    def coordinator(self) -> int:
        """The number of its coordinator; workers begin their transactions there."""
        return self._number

    @property
    def last(self) -> int:
        """The number of the last commit, as far as this client knows; -1 if there was none."""
        return self._last

    async def begin(self, timeout: float = 60.0, number: int | None = None) -> Transaction:
        """Begin a transaction for this number of the sequence; by default for the next number.

        It is aborted when this number or a later one is committed without it, and after ``timeout``
        seconds. Raises `InvalidTxnStatusError` if the number was committed before,
        `InvalidConfiguration` for a number below 0, and the service's other refusals.
        """
        wanted = self._last + 1 if number is None else number
        if wanted < 0:
            raise InvalidConfiguration(f"number={number} must be at least 0")
        return await self._coordinators.begin_at(self._number, timeout, (self._name, wanted))

    async def commit(self, number: int, transactions: Iterable[TransactionId]) -> bool:
        """Commit all of these as ``number``, at least 0.

        Every participant knows the result on return. Returns False if the number, or a later one,
        was committed before: then these were aborted, unless they are the committed ones. Raises
        `InvalidTxnStatusError` if one of them isn't open any more, `TransactionNotFound` if one of
        them never existed: then nothing has changed. On `Timeout` it may be committed or not:
        another call returns the result.
        """
        ids = list(transactions)
        astray = [each for each in ids if each.coordinator != self._number]
        if astray or number < 0:
            raise InvalidConfiguration(
                f"number {number} of series {self._name!r} with {astray or ids}: numbers begin "
                f"with 0, and transactions with coordinator {self._number}"
            )
        command = pb.CommandEndTxn(
            txnid_most_bits=self._number,
            txnid_least_bits=0,
            txn_action=pb.COMMIT,
            series=self._name,
            series_number=number,
            series_transactions=[each.sequence for each in ids],
        )
        answer = await self._coordinators.request(self._number, lambda: command)
        self._last = max(self._last, number)
        return not answer.series_repeated

    async def abort(self, transactions: Iterable[TransactionId]) -> None:
        """Abort the open ones of these; their messages never count. Others stay as they are."""
        for each in transactions:
            command = pb.CommandEndTxn(
                txnid_most_bits=each.coordinator,
                txnid_least_bits=each.sequence,
                txn_action=pb.ABORT,
            )
            with suppress(InvalidTxnStatusError, TransactionNotFound):
                await self._coordinators.request(each.coordinator, lambda it=command: it)  # type: ignore[misc]

    async def forget(self) -> None:
        """End the sequence: the service deletes its name and numbers, and aborts what is open."""
        command = pb.CommandEndTxn(
            txnid_most_bits=self._number,
            txnid_least_bits=0,
            txn_action=pb.ABORT,
            series=self._name,
        )
        await self._coordinators.request(self._number, lambda: command)
        self._last = -1


async def find_commit_sequence(coordinators: Coordinators, name: str) -> CommitSequence:
    """Find the sequence, or the coordinator where a new sequence of that name belongs.

    Raises `InvalidConfiguration` without a name, and if the service has no coordinators.
    """
    if not name:
        raise InvalidConfiguration("a commit sequence needs a name")
    homes = list(_homes(name, await coordinators.count()))
    for number in reversed(homes):
        ask = pb.CommandTcClientConnectRequest(tc_id=number, series=name)
        answer = await coordinators.request(number, lambda ask=ask: ask)  # type: ignore[misc]
        if answer.series_last >= 0:
            return CommitSequence(coordinators, name, number, answer.series_last)
    return CommitSequence(coordinators, name, homes[-1], -1)


def _homes(name: str, count: int) -> Iterator[int]:
    """The coordinators where the sequence may be, for every number of coordinators up to ``count``.

    The sequence may have been created with fewer coordinators. The coordinator with the highest
    score has it, so there are few candidates.
    """
    highest = -1
    for number in range(count):
        score = murmur3_32(f"{number}/{name}".encode())
        if score > highest:
            highest = score
            yield number
