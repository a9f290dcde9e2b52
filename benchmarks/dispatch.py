"""Dispatch to 1, 10 and 100 consumers of one subscription: how much per CPU second, how fairly.

A subscription's dispatcher and the messages that it exchanges with its partition, without
sockets and journal. Every consumer acknowledges what it got and asks for as much again.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from random import Random

from benchmarks.model import Result, Samples, Verdict
from benchmarks.options import Options
from velaray.actors.dispatch.consumers import SubscriptionType
from velaray.actors.dispatch.lease import LeasedDelivery
from velaray.actors.runtime import Runtime
from velaray.actors.subscription.machine import SubscriptionMachine
from velaray.broker.subscription import messages as m
from velaray.broker.subscription.dispatcher import SubscriptionDispatcher
from velaray.topology.messages import Message

CONSUMERS = (1, 10, 100)
ENTRIES = 100_000
KEYS = 10_000
QUEUE = 1000
FAIR = {SubscriptionType.SHARED: 0.99, SubscriptionType.KEY_SHARED: 0.95}
_AUTO_SPLIT = (0, (), False)
_FEED = 4096


def run(options: Options) -> Result:
    """The same entries and keys in every round."""
    samples = Samples()
    for _ in range(options.rounds):
        for consumers in CONSUMERS:
            for kind in FAIR:
                rate, fairness = asyncio.run(measure(kind, consumers))
                case, subject = f"{consumers} consumers", kind.name.capitalize()
                samples.add(case, subject, "messages per CPU second", "/s", rate)
                samples.add(case, subject, "fairness (Jain)", "", fairness)
    result = Result(
        name="dispatch",
        settings={
            "what": "a subscription's dispatcher in this process; no sockets, no journal",
            "entries": f"{ENTRIES:,} of one message",
            "keys": f"{KEYS:,}, drawn evenly",
            "consumers": f"receiver queues of {QUEUE}; all equally fast",
            "fairness": "(sum x)^2 / (n sum x^2) of messages per consumer: 1 is even",
        },
        baseline="Shared",
        rows=samples.rows(),
    )
    result.verdicts = [
        Verdict(f"{row.subject}, {row.case}: fairness", row.median, FAIR[kind], at_least=True)
        for row in result.rows
        for kind in FAIR
        if row.unit == "" and row.subject == kind.name.capitalize()
    ]
    return result


async def measure(kind: SubscriptionType, consumers: int) -> tuple[float, float]:
    """Messages per second of CPU time, and Jain's index of what the consumers got."""
    partition = FakePartition(kind, consumers)
    await partition.open()
    before = time.process_time()
    await partition.drain()
    seconds = time.process_time() - before
    shares = list(partition.got.values())
    return ENTRIES / seconds, sum(shares) ** 2 / (consumers * sum(share**2 for share in shares))


class FakePartition:
    """What a partition does for one subscription whose consumers are never slow."""

    def __init__(
        self, kind: SubscriptionType, consumers: int, entries: int = ENTRIES, messages: int = 1
    ) -> None:
        """``messages`` are those of each entry: more than one if it is a batch."""
        self._entries, self._messages = entries, messages
        rng = Random(7)
        hashes = [rng.randint(1, 65535) for _ in range(KEYS)]
        self._hashes = [rng.choice(hashes) for _ in range(entries)]
        self._kind = kind
        self._consumers = range(1, consumers + 1)
        self._sent: list[Message] = []
        self._fed = self._wanted = self._lease_ends = 0
        self._hashing = False
        self._leased: tuple[int, LeasedDelivery] | None = None
        self._dispatcher: SubscriptionDispatcher
        self.got: dict[int, int] = defaultdict(int)

    async def open(self) -> None:
        """Open the dispatcher and attach all consumers."""
        runtime = await Runtime.volatile(SubscriptionMachine(), "s", lambda: 0, _fail)
        self._dispatcher = SubscriptionDispatcher(runtime, -1, self._sent.append)
        await self._dispatcher.on_request(m.OpenDispatcher(0, None, self._entries))
        for number in self._consumers:
            self._tell(m.Attach(number, f"c{number}", int(self._kind), 0, _AUTO_SPLIT, ""))
        for number in self._consumers:
            self._tell(m.AddPermits(number, QUEUE))

    def _tell(self, notice: Message) -> None:
        if self._leased is not None:
            report = self._leased[1].report()
            if report is not None:
                self._dispatcher.on_notice(m.LeaseReport(*report))
        self._lease_ends += type(notice) in m.ENDS_LEASE
        self._dispatcher.on_notice(notice)

    async def drain(self) -> None:
        """Returns when every entry is acknowledged."""
        while sum(self.got.values()) < self._entries:
            await asyncio.sleep(0)
            taken = self._take()
            self._feed()
            for number, ranges in taken.items():
                count = sum(ranges[1::2]) - sum(ranges[::2])
                self.got[number] += count
                self._tell(m.AckEntries(number, 0, self._entries, ranges, ()))
                self._tell(m.AddPermits(number, count * self._messages))
                if self._leased is not None:
                    self._leased[1].permits += count * self._messages

    def _take(self) -> dict[int, list[int]]:
        """The ranges that each consumer got."""
        taken: dict[int, list[int]] = defaultdict(list)
        for notice in self._sent:
            match notice:
                case m.Deliver(grants):
                    for grant in grants:
                        taken[grant.number] += (grant.first, grant.first + grant.count)
                case m.WantEntries(wanted):
                    self._wanted = wanted
                case m.FeedFrom(offset, wanted, hashing):
                    self._fed, self._wanted, self._hashing = offset, wanted, hashing
                case m.GrantLease(number, first, debited, room, lease_ends):
                    if lease_ends == self._lease_ends:
                        permits = QUEUE + self.got[number] * self._messages - debited
                        self._leased = (number, LeasedDelivery(first, permits, room))
        self._sent.clear()
        if self._leased is not None:
            number, leased = self._leased
            first = leased.next_offset
            end = min(first + -(-leased.allowance // self._messages), self._entries)
            if first < end:
                sizes = [self._messages] * (end - first)
                leased.delivered(sizes, {}, self._hashes[first:end])
                taken[number] += (first, end)
        return taken

    def _feed(self) -> None:
        if self._leased is None:
            limit = min(self._wanted, self._entries)
            while self._fed < limit:
                end = min(limit, self._fed + _FEED)
                hashes = self._hashes[self._fed : end] if self._hashing else None
                sizes = [self._messages] * (end - self._fed)
                self._tell(m.FeedEntries(self._fed, sizes, {}, hashes, ()))
                self._fed = end


def _fail(error: BaseException) -> None:
    raise error
