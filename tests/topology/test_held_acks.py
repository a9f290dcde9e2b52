"""Acknowledgements of entries that a loss of power could undo wait for the log's sync."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.topology.test_subscription_channel import Setting, run
from velaray.broker.partition.channel.link import HELD_NOTICES
from velaray.broker.subscription.messages import AckEntries, AddPermits, GetMark, Redeliver
from velaray.topology.messages import Request
from velaray.topology.rpc import RpcConnectionClosed


def _ack(setting: Setting, first: int, end: int, request_id: int = 0) -> tuple[str, list[Any]]:
    ack = AckEntries(setting.consumer.number, request_id, setting.end_offset, [first, end], [])
    setting.channel.acknowledge(ack, end)
    return ack


def _relaxed(setting: Setting, synced: int, published: int) -> None:
    setting.publish(published)
    setting.synced = synced
    setting.take()


def test_an_ack_of_a_synced_entry_is_sent_at_once() -> None:
    async def scenario(setting: Setting) -> None:
        _relaxed(setting, 3, 5)
        ack = _ack(setting, 0, 3)
        assert setting.take() == [ack]

    run(scenario)


def test_acks_wait_for_the_sync_in_order_without_requesting_one() -> None:
    async def scenario(setting: Setting) -> None:
        _relaxed(setting, 2, 5)
        acks = [_ack(setting, 3, 4), _ack(setting, 0, 1), _ack(setting, 4, 5)]
        assert (setting.take(), setting.syncs_asked) == ([], 0)
        setting.synced = 4
        setting.channel.link.log_synced()
        assert setting.take() == acks[:2]
        setting.channel.link.log_synced()
        assert setting.take() == []
        setting.synced = 5
        setting.channel.link.log_synced()
        assert setting.take() == acks[2:]
        assert setting.syncs_asked == 0

    run(scenario)


def test_waiting_for_a_receipt_syncs_the_log() -> None:
    async def scenario(setting: Setting) -> None:
        _relaxed(setting, 0, 5)
        _ack(setting, 0, 1, request_id=9)
        assert (setting.take(), setting.syncs_asked) == ([], 1)

    run(scenario)


def test_many_acks_request_a_sync() -> None:
    async def scenario(setting: Setting) -> None:
        _relaxed(setting, 0, 5)
        for _ in range(HELD_NOTICES - 1):
            _ack(setting, 0, 1)
        assert setting.syncs_asked == 0
        _ack(setting, 0, 1)
        assert setting.syncs_asked == 1

    run(scenario)


def test_requests_that_must_not_overtake_an_ack_wait_and_request_the_sync() -> None:
    async def scenario(setting: Setting) -> None:
        _relaxed(setting, 0, 5)
        ack = _ack(setting, 0, 1)
        setting.consumer.flow(3)
        assert setting.take() == [AddPermits(1, 3)]
        setting.channel.tell(Redeliver(1, None, None))
        setting.consumer.flow(4)
        assert (setting.take(), setting.syncs_asked) == ([], 1)
        setting.synced = 5
        setting.channel.link.log_synced()
        assert setting.take() == [ack, Redeliver(1, None, None), AddPermits(1, 4)]
        setting.consumer.flow(5)
        assert setting.take() == [AddPermits(1, 5)]

    run(scenario)


def test_a_sync_that_ran_too_early_is_requested_again() -> None:
    async def scenario(setting: Setting) -> None:
        _relaxed(setting, 0, 5)
        _ack(setting, 0, 5)
        setting.channel.remove(setting.consumer)
        setting.synced = 4
        setting.channel.link.log_synced()
        assert (setting.take(), setting.syncs_asked) == ([], 2)

    run(scenario)


def test_a_request_follows_earlier_acks() -> None:
    async def scenario(setting: Setting) -> None:
        async def ask(request: Request[Any]) -> Any:
            setting.tell(request)
            return "answer"

        setting.ask = ask  # type: ignore[attr-defined]
        _relaxed(setting, 0, 5)
        ack = _ack(setting, 0, 5)
        asking = asyncio.ensure_future(setting.channel.ask(GetMark()))
        await asyncio.sleep(0)
        assert (setting.take(), setting.syncs_asked) == ([], 1)
        setting.synced = 5
        setting.channel.link.log_synced()
        assert await asking == "answer"
        assert setting.take() == [ack, GetMark()]

    run(scenario)


def test_a_closing_channel_drops_held_acks() -> None:
    async def scenario(setting: Setting) -> None:
        _relaxed(setting, 0, 5)
        _ack(setting, 0, 5)
        asking = asyncio.ensure_future(setting.channel.ask(GetMark()))
        await asyncio.sleep(0)
        setting.channel.close()
        with pytest.raises(RpcConnectionClosed):
            await asking
        setting.synced = 5
        setting.channel.link.log_synced()
        assert setting.take() == []

    run(scenario)


def test_acks_of_a_reader_are_sent_at_once() -> None:
    async def scenario(setting: Setting) -> None:
        _relaxed(setting, 0, 5)
        setting.channel.durable = False
        ack = _ack(setting, 0, 5)
        assert setting.take() == [ack]

    run(scenario)
