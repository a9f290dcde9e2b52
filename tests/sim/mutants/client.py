"""Bugs of velaray's own clients."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from tests.sim.mutants.mutant import Mutant, do_nothing
from velaray.client.acks import AckTracker
from velaray.client.partition_acks import PartitionAcks
from velaray.client.partition_consumer import PartitionConsumer
from velaray.client.partition_producer import PartitionProducer


def _wait_for_no_receipt(original: Any) -> Any:
    async def receipt(self: PartitionAcks) -> None:
        self._sending.schedule()
        await asyncio.sleep(0)

    return receipt


def _resend_in_reverse(original: Any) -> Any:
    def registered(self: PartitionProducer, connection: Any, answer: Any) -> None:
        self._pending.entries.reverse()
        original(self, connection, answer)

    return registered


def _resend_nothing(original: Any) -> Any:
    def registered(self: PartitionProducer, connection: Any, answer: Any) -> None:
        pending = self._pending
        entries, pending.entries = pending.entries, deque()
        original(self, connection, answer)
        pending.entries.extendleft(reversed(entries))

    return registered


def _send_acks_after_a_seek(original: Any) -> Any:
    def reset(self: AckTracker) -> None:
        individual = self._individual
        original(self)
        self._individual = {where: bits for where, bits in individual.items() if bits is None}

    return reset


def _accept_messages_under_way(original: Any) -> Any:
    def redeliver_all(self: PartitionConsumer) -> None:
        self._epoch = 0
        original(self)
        self._epoch = 0

    return redeliver_all


MUTANTS: dict[str, Mutant] = {
    "accept-messages-under-way": Mutant(
        "a consumer that requested redelivery accepts messages that were sent before",
        ((PartitionConsumer, "redeliver_all", _accept_messages_under_way),),
        within=100,
    ),
    "wait-for-no-receipt": Mutant(
        "a client counts an acknowledgement as confirmed when it is sent",
        ((PartitionAcks, "receipt", _wait_for_no_receipt),),
        within=100,
    ),
    "resend-in-reverse": Mutant(
        "a producer that reconnects sends the newest message first",
        ((PartitionProducer, "_registered", _resend_in_reverse),),
        within=50,
    ),
    "resend-nothing": Mutant(
        "a producer that reconnects doesn't resend messages without a receipt",
        ((PartitionProducer, "_registered", _resend_nothing),),
        within=50,
    ),
    "keep-cumulative-marks": Mutant(
        "a consumer that reconnects confirms acknowledgements without sending them",
        ((AckTracker, "subscribed_again", do_nothing),),
        within=300,
    ),
    "keep-acks-at-a-seek": Mutant(
        "waiting acknowledgements are sent after a seek",
        ((AckTracker, "reset", _send_acks_after_a_seek),),
        within=600,
    ),
}
