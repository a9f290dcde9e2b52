"""Series of commits: many transactions that count together, once per number."""

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
    """Commits that are numbered and count once. Made by `velaray.aio.Client.commit_sequence`.

    For what processes a stream batch by batch, each batch by many workers, and may have to do a
    batch again: every worker publishes in a transaction of its own, made by `begin`, and sends
    the id that its ``prepare`` returns to who leads; that one has all of them committed by one
    decision of the service, under the batch's number. Numbers ascend. What is done again of a
    number that was committed is aborted; so nothing counts twice, whoever dies when. What is open
    for a number when that is committed without it is aborted, too.
    """

    def __init__(self, coordinators: Coordinators, name: str, number: int, last: int) -> None:
        """Not for callers. ``number`` is the coordinator's, ``last`` that of the last commit."""
        self._coordinators = coordinators
        self._name = name
        self._number = number
        self._last = last

    def __repr__(self) -> str:
        return f"<CommitSeries {self._name!r} at coordinator {self._number}, last {self._last}>"

    @property
    def name(self) -> str:
        """What it is called."""
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
        """Begin a transaction for this number of the series; by default for the next one.

        It is aborted when the number is committed without it, or a later one, and after
        ``timeout`` seconds. Raises `InvalidTxnStatusError` if that number was committed before,
        `InvalidConfiguration` for one below 0, and what else the service's refusal says.
        """
        wanted = self._last + 1 if number is None else number
        if wanted < 0:
            raise InvalidConfiguration(f"number={number}: the numbers of a series begin with 0")
        return await self._coordinators.begin_at(self._number, timeout, (self._name, wanted))

    async def commit(self, number: int, transactions: Iterable[TransactionId]) -> bool:
        """Commit all of these as ``number``, at least 0; everybody has the verdict on return.

        Returns False if the number, or a later one, was committed before: then these were
        aborted, unless they are what was committed. Raises `InvalidTxnStatusError` if one of them
        isn't open any more, `TransactionNotFound` if there never was such a one: then nothing
        has changed. On `Timeout` it may be committed or not: another call tells.
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
        """Abort those of these that are open: they never count. Others stay as they are."""
        for each in transactions:
            command = pb.CommandEndTxn(
                txnid_most_bits=each.coordinator,
                txnid_least_bits=each.sequence,
                txn_action=pb.ABORT,
            )
            with suppress(InvalidTxnStatusError, TransactionNotFound):
                await self._coordinators.request(each.coordinator, lambda it=command: it)  # type: ignore[misc]

    async def forget(self) -> None:
        """The series is over: the service forgets its name and numbers, and aborts what is open."""
        command = pb.CommandEndTxn(
            txnid_most_bits=self._number,
            txnid_least_bits=0,
            txn_action=pb.ABORT,
            series=self._name,
        )
        await self._coordinators.request(self._number, lambda: command)
        self._last = -1


async def find_commit_sequence(coordinators: Coordinators, name: str) -> CommitSequence:
    """The series where it is, or where a new one of that name belongs.

    Raises `InvalidConfiguration` without a name, and if the service has no coordinators.
    """
    if not name:
        raise InvalidConfiguration("a series of commits needs a name")
    homes = list(_homes(name, await coordinators.count()))
    for number in reversed(homes):
        ask = pb.CommandTcClientConnectRequest(tc_id=number, series=name)
        answer = await coordinators.request(number, lambda ask=ask: ask)  # type: ignore[misc]
        if answer.series_last >= 0:
            return CommitSequence(coordinators, name, number, answer.series_last)
    return CommitSequence(coordinators, name, homes[-1], -1)


def _homes(name: str, count: int) -> Iterator[int]:
    """Where the series belongs, for every number of coordinators up to ``count``.

    It begun when there were fewer, perhaps. The highest score has it, so few come into question.
    """
    highest = -1
    for number in range(count):
        score = murmur3_32(f"{number}/{name}".encode())
        if score > highest:
            highest = score
            yield number
