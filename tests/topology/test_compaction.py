"""Compaction from end to end: what readers of the compacted view get, and after which crash."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.by_name import call_by_name
from velaray.aio import Client, Consumer
from velaray.broker.partition.compacted_entries import contents
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.broker.proxy.proxy import Proxy
from velaray.client.enums import CompressionType, ConsumerType, InitialPosition
from velaray.client.exceptions import NotAllowedError
from velaray.client.message_id import MessageId
from velaray.events.ids import ActorKey, ActorKind
from velaray.geo.actor_kinds import make_actor
from velaray.journal.errors import StorageFull
from velaray.journal.memory import MemoryDisk, MemoryStore, Step
from velaray.topology.config import ClusterConfig
from velaray.topology.in_process import InProcessActorSystem
from velaray.topology.rpc import RemoteError

Found = dict[str, tuple[str, bytes]]


class Setting:
    """A cluster in memory, a client of it, and what was published: key -> newest id and value."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.store = MemoryStore(self.disk)
        self.actor_system = InProcessActorSystem(
            ClusterConfig("nowhere", 1, b"key", deleters=0), self.store, make_actor
        )
        self.proxy = Proxy(self.actor_system)
        self.client: Client
        self.newest: Found = {}
        self._producer: Any = None

    async def start(self) -> None:
        names = {"cluster": "c", "service_url": "pulsar://h:1", "admin_url": "http://h:2"}
        await call_by_name(self.actor_system, ActorKey.catalog(), "bootstrap", names)
        await self.proxy.start(0)
        self.client = Client(f"pulsar://127.0.0.1:{self.proxy.port}")

    async def stop(self) -> None:
        await self.client.close()
        await self.proxy.stop()
        await self.actor_system.stop()

    async def publish(self, keys: str, *, compression: CompressionType | None = None) -> list[Any]:
        """A message per letter; in brackets a batch. A capital letter is a tombstone of its
        small one, ``-`` a message without key. Returns the ids."""
        if self._producer is None:
            self._producer = await self.client.create_producer(
                "t",
                batching_enabled=True,
                batching_max_publish_delay_ms=60_000,
                compression_type=compression or CompressionType.NONE,
            )
        ids, waiting = [], []
        inside = False
        for letter in keys:
            if letter in "[]":
                inside = letter == "["
            else:
                waiting.append((letter, asyncio.ensure_future(self._send(letter))))
                await asyncio.sleep(0)
            if not inside:
                await self._producer.flush()
                for known, task in waiting:
                    ids.append(await task)
                    self._note(known, ids[-1])
                waiting = []
        return ids

    async def _send(self, letter: str) -> Any:
        key = None if letter == "-" else letter.lower()
        value = None if letter.isupper() else b"value"
        return await self._producer.send(value, partition_key=key)

    def _note(self, letter: str, message_id: Any) -> None:
        self.newest.pop(letter.lower(), None)
        if letter.islower():
            self.newest[letter] = (str(message_id), b"value")

    @property
    def key(self) -> ActorKey:
        return next(key for key in self.actor_system.actors if key.kind is ActorKind.PARTITION)

    @property
    def partition(self) -> PartitionActor:
        actor = self.actor_system.actors[self.key]
        assert isinstance(actor, PartitionActor)
        return actor

    async def compact(self) -> str:
        """Compact, and say how it went."""
        compactor = self.partition.compactor
        compactor.trigger()
        await compactor.finished()
        return compactor.status.status

    async def read(self, start: Any = MessageId.earliest, **options: Any) -> list[tuple[str, Any]]:
        """All that a reader of the compacted view gets: ids and keys."""
        options = {"is_read_compacted": True, **options}
        reader = await self.client.create_reader("t", start, **options)
        found = []
        while await reader.has_message_available():
            message = await reader.read_next(5000)
            found.append((str(message.message_id()), message.partition_key()))
        await reader.close()
        return found

    async def restart(self) -> None:
        """End the partition as SIGKILL would, and activate it again."""
        key = self.key
        self.actor_system.kill(key)
        await self.actor_system.address(key)

    async def journals(self, kind: str = "compacted") -> list[str]:
        return [name for name in await self.store.list_journals() if name.startswith(kind)]

    def expected(self) -> list[tuple[str, Any]]:
        """The newest message of every key, in the order of the log."""
        return [(message_id, key) for key, (message_id, _) in self.newest.items()]


def run(scenario: Callable[[Setting], Awaitable[None]]) -> None:
    async def main() -> None:
        setting = Setting()
        await setting.start()
        await scenario(setting)
        await setting.stop()
        assert not setting.actor_system.failures

    asyncio.run(main())


# -- what readers get ------------------------------------------------------------------


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.LZ4])
def test_readers_get_the_newest_message_of_every_key_at_its_published_position(codec) -> None:
    async def scenario(setting: Setting) -> None:
        await setting.publish("abc[abcd][aab]-[bB-c]dD[eef]", compression=codec)
        assert await setting.compact() == "SUCCESS"
        assert await setting.read() == setting.expected()
        everything = await setting.read(is_read_compacted=False)
        assert len(everything) == 20
        await setting.restart()
        assert await setting.read() == setting.expected()

    run(scenario)


def test_a_batch_keeps_its_indexes_and_marks_compacted_messages() -> None:
    async def scenario(setting: Setting) -> None:
        ids = await setting.publish("[abcab]c")
        await setting.compact()
        view = setting.partition.compactor.view
        assert view is not None
        found = contents((await view.entry(0)).data).items
        assert found is not None
        assert [item.gone for item in found] == [True, True, True, False, False]
        kept = [(str(ids[at]), key) for at, key in ((3, "a"), (4, "b"), (5, "c"))]
        assert await setting.read() == kept

    run(scenario)


def test_readers_get_the_log_behind_the_horizon() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.publish("aabb")
        await setting.compact()
        ids = await setting.publish("abA")
        found = await setting.read()
        assert [key for _, key in found] == ["a", "b", "a", "b", "a"]
        assert [where for where, _ in found[2:]] == [str(each) for each in ids]

    run(scenario)


def test_another_compaction_continues_from_the_former_view() -> None:
    async def scenario(setting: Setting) -> None:
        for round_keys in ("[abc]d", "a[bB]c", "-", "[xyz]A", "xy"):
            await setting.publish(round_keys)
            assert await setting.compact() == "SUCCESS"
            assert await setting.read() == setting.expected()
            assert len(await setting.journals()) == 1

    run(scenario)


def test_messages_without_a_key_are_kept_if_they_are_retained() -> None:
    async def scenario(setting: Setting) -> None:
        setting.actor_system.config = replace(
            setting.actor_system.config, compaction_retain_null_key=True
        )
        await setting.publish("a[-a-]a-")
        await setting.compact()
        assert [key for _, key in await setting.read()] == ["", "", "a", ""]

    run(scenario)


def test_a_start_at_a_compacted_message_moves_to_the_next_kept_one() -> None:
    async def scenario(setting: Setting) -> None:
        ids = await setting.publish("abcabc" + "x" * 200 + "d")
        await setting.compact()
        kept = await setting.read()
        assert kept == setting.expected()
        assert await setting.read(ids[0]) == kept
        assert await setting.read(ids[4]) == kept[2:]
        assert await setting.read(ids[4], start_message_id_inclusive=True) == kept[1:]
        assert await setting.read(ids[50]) == kept[3:]
        assert await setting.read(ids[-1]) == []

    run(scenario)


def test_seeks_by_id_and_by_time_find_kept_messages() -> None:
    async def scenario(setting: Setting) -> None:
        ids = await setting.publish("ab" + "x" * 100 + "cd")
        await setting.compact()
        reader = await setting.client.create_reader("t", MessageId.earliest, is_read_compacted=True)
        for where in (ids[50], 0, ids[101], 2**61):
            await reader.seek(where)
            found = []
            while await reader.has_message_available():
                found.append((await reader.read_next(5000)).partition_key())
            wanted = {ids[50]: "xcd", 0: "abxcd", ids[101]: "cd", 2**61: ""}
            assert "".join(found) == wanted[where]

    run(scenario)


def test_has_message_available_is_right_if_the_end_was_compacted_away() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.publish("ab[cC-]")
        await setting.publish("-----")
        await setting.compact()
        assert [key for _, key in await setting.read()] == ["a", "b"]
        assert await setting.read(MessageId.latest) == []
        await setting.publish("AB")
        await setting.compact()
        assert await setting.read() == []
        await setting.publish("a")
        assert [key for _, key in await setting.read()] == ["a"]

    run(scenario)


def test_a_table_view_reads_the_compacted_view() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.publish("abc[abD]dC")
        await setting.compact()
        await setting.publish("eA")
        view = await setting.client.create_table_view("t")
        assert dict(view.items()) == {key: value for key, (_, value) in setting.newest.items()}
        assert set(setting.newest) == {"b", "d", "e"}

    run(scenario)


def test_chunks_of_a_large_message_are_kept_together() -> None:
    async def scenario(setting: Setting) -> None:
        producer = await setting.client.create_producer(
            "t", chunking_enabled=True, batching_enabled=False
        )
        large = bytes(range(256)) * 48_000  # three chunks
        await producer.send(large, partition_key="old")
        await producer.send(b"new", partition_key="old")
        await producer.send(large, partition_key="large")
        await setting.compact()
        assert setting.partition.runtime.state.compactions.current.entries == 4
        reader = await setting.client.create_reader("t", MessageId.earliest, is_read_compacted=True)
        assert (await reader.read_next(5000)).data() == b"new"
        assert (await reader.read_next(5000)).data() == large
        assert not await reader.has_message_available()

    run(scenario)


# -- subscriptions ---------------------------------------------------------------------


async def receive(consumer: Consumer, count: int) -> str:
    keys = ""
    for _ in range(count):
        message = await consumer.receive(5000)
        keys += message.partition_key()
        await consumer.acknowledge(message)
    return keys


async def stats(setting: Setting) -> dict[str, Any]:
    found = await setting.partition.call("stats", {})
    return dict(found["subscriptions"]["s"])


async def drained(setting: Setting) -> None:
    """Return when the subscription has no backlog."""
    async with asyncio.timeout(5):
        while (await stats(setting))["backlog"]:
            await asyncio.sleep(0.005)


def test_compacted_messages_are_no_backlog_of_a_durable_subscription() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.publish("abc[abcd]" + "x" * 200 + "[aab]-[bB-c]" + "y" * 70)
        await setting.compact()
        expected = "".join(key for _, key in setting.expected())
        options = {"is_read_compacted": True, "initial_position": InitialPosition.Earliest}
        consumer = await setting.client.subscribe("t", "s", **options)
        assert await receive(consumer, len(expected)) == expected
        await drained(setting)
        await setting.publish("zz")
        assert await receive(consumer, 2) == "zz"
        await drained(setting)

    run(scenario)


@pytest.mark.parametrize("queue", [1, 2, 1000])
def test_permits_stay_correct_over_many_compactions(queue: int) -> None:
    async def scenario(setting: Setting) -> None:
        options = {"is_read_compacted": True, "initial_position": InitialPosition.Earliest}
        consumer = await setting.client.subscribe("t", "s", receiver_queue_size=queue, **options)
        for _ in range(6):
            await setting.publish("[abcabc][abd]aabb--")
            await setting.compact()
            await setting.publish("e")
            async with asyncio.timeout(5):
                while await receive(consumer, 1) != "e":
                    pass
        await drained(setting)

    run(scenario)


def test_a_reader_switches_to_a_new_view_at_its_position() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.publish("abcdefgh")
        await setting.compact()
        options = {"is_read_compacted": True, "receiver_queue_size": 1}
        reader = await setting.client.create_reader("t", MessageId.earliest, **options)
        seen: Found = {}
        while await reader.has_message_available():
            message = await reader.read_next(5000)
            seen[message.partition_key()] = (str(message.message_id()), message.data())
            if len(seen) == 3:
                await setting.publish("[abh]x")
                await setting.compact()
        assert seen == setting.newest
        assert len(await setting.journals()) == 1

    run(scenario)


def test_a_connected_reader_gets_tombstones_during_compaction() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.publish("abc")
        await setting.compact()
        options = {"is_read_compacted": True, "receiver_queue_size": 1}
        reader = await setting.client.create_reader("t", MessageId.earliest, **options)
        assert (await reader.read_next(5000)).partition_key() == "a"
        for keys in ("dA-", "eB"):
            await setting.publish(keys)
            await setting.compact()
        found = []
        while await reader.has_message_available():
            message = await reader.read_next(5000)
            found.append((message.partition_key(), message.has_null_value()))
        assert ("a", True) in found and found[-1] == ("b", True)
        await setting.client.close()

    run(scenario)


def test_a_consumer_continues_after_the_partition_and_the_dispatcher_are_killed() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.publish("[abcabc]" + "x" * 80 + "def")
        await setting.compact()
        options = {"is_read_compacted": True, "initial_position": InitialPosition.Earliest}
        consumer = await setting.client.subscribe("t", "s", receiver_queue_size=1, **options)
        got = set(await receive(consumer, 2))
        for kind in (ActorKind.SUBSCRIPTION, ActorKind.PARTITION):
            for key in [key for key in setting.actor_system.actors if key.kind is kind]:
                setting.actor_system.kill(key)
            got |= set(await receive(consumer, 1))
        async with asyncio.timeout(10):
            while got != set("abcxdef"):
                got |= set(await receive(consumer, 1))
        await drained(setting)

    run(scenario)


def test_only_one_active_consumer_may_read_compacted() -> None:
    async def scenario(setting: Setting) -> None:
        with pytest.raises(NotAllowedError, match="failover or exclusive"):
            await setting.client.subscribe(
                "t", "s", consumer_type=ConsumerType.Shared, is_read_compacted=True
            )
        options = {"consumer_type": ConsumerType.Failover, "is_read_compacted": True}
        await setting.client.subscribe("t", "s", **options)
        await setting.client.subscribe("t", "s", **options)
        with pytest.raises(NotAllowedError, match="all read compacted"):
            await setting.client.subscribe("t", "s", consumer_type=ConsumerType.Failover)

    run(scenario)


def test_a_subscription_without_consumers_may_change_to_compacted_reads() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.publish("aab")
        await setting.compact()
        options = {"initial_position": InitialPosition.Earliest}
        first = await setting.client.subscribe("t", "s", is_read_compacted=True, **options)
        assert await receive(first, 1) == "a"
        await first.close()
        second = await setting.client.subscribe("t", "s", **options)
        assert await receive(second, 1) == "b"

    run(scenario)


def test_kept_messages_can_be_read_after_the_log_below_the_horizon_is_trimmed() -> None:
    async def scenario(setting: Setting) -> None:
        ids = await setting.publish("abc[abd]")
        await setting.restart()
        ids += await setting.publish("aef")
        await setting.compact()
        await setting.restart()
        table = setting.partition.runtime.state.table
        table.trim(ledger_id for ledger_id, _ in table.ledgers())
        assert setting.partition.runtime.state.first_offset == setting.partition.log.end_offset
        assert await setting.read() == setting.expected()
        assert await setting.read(ids[4]) == setting.expected()[2:]
        options = {"is_read_compacted": True, "initial_position": InitialPosition.Earliest}
        consumer = await setting.client.subscribe("t", "s", **options)
        assert await receive(consumer, 6) == "cbdaef"
        await drained(setting)
        await setting.publish("g")
        assert await receive(consumer, 1) == "g"

    run(scenario)


# -- the work ---------------------------------------------------------------------------


def test_publishing_and_reading_continue_during_compaction() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.publish("[" + "abcdefgh" * 100 + "]")
        for _ in range(20):
            await setting.publish("[" + "abcdefgh" * 50 + "]")
        setting.partition.compactor.trigger()
        with pytest.raises(RemoteError, match="already in progress"):
            setting.partition.compactor.trigger()
        await setting.publish("z")
        assert setting.partition.compactor.status.status == "RUNNING"
        assert not setting.partition.idle()
        await setting.partition.compactor.finished()
        assert (await setting.read())[-1][1] == "z"

    run(scenario)


def test_a_full_disk_ends_a_compaction_and_changes_nothing() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.publish("aabb")
        await setting.compact()
        await setting.publish("ab")
        former = setting.partition.compactor.view

        async def full(step: Step, journal: str) -> None:
            if journal.startswith("compacted") and step is Step.WRITE:
                raise StorageFull(journal, "all used")

        setting.store.hook = full
        assert await setting.compact() == "ERROR"
        assert "all used" in setting.partition.compactor.described()["lastError"]
        assert setting.partition.compactor.view is former
        assert len(await setting.journals()) == 1
        setting.store.hook = None
        assert await setting.compact() == "SUCCESS"
        assert await setting.read() == setting.expected()

    run(scenario)


def test_a_topic_is_compacted_when_it_has_grown_by_the_threshold(monkeypatch) -> None:
    monkeypatch.setattr("velaray.broker.partition.compactor.CHECK_S", 0.01)

    async def scenario(setting: Setting) -> None:
        await setting.publish("a" * 10)

        async def threshold(size: int) -> None:
            value = {"namespace": "public/default", "value": b"%d" % size}
            arguments = {**value, "name": "compactionThreshold"}
            await call_by_name(setting.actor_system, ActorKey.catalog(), "set_policy", arguments)
            async with asyncio.timeout(5):
                while setting.partition.policies.raw["compactionThreshold"] != size:
                    await asyncio.sleep(0.005)

        await threshold(1 << 20)
        assert setting.partition.compactor.status.status == "NOT_RUN"
        assert 0 < setting.partition.compactor.uncompacted_bytes() < 1 << 20
        await threshold(100)
        async with asyncio.timeout(5):
            while setting.partition.compactor.status.status != "SUCCESS":
                await asyncio.sleep(0.005)
        assert setting.partition.compactor.uncompacted_bytes() == 0

    run(scenario)


def test_deleting_a_topic_deletes_its_compacted_view() -> None:
    async def scenario(setting: Setting) -> None:
        from velaray.broker.garbage_collection.topic_deletion import delete_topic
        from velaray.events.ids import TopicName

        await setting.publish("aab")
        await setting.compact()
        assert await setting.journals()
        await setting.client.close()
        await delete_topic(setting.actor_system, TopicName.parse("t"), force=True)
        assert not await setting.journals()

    run(scenario)


# -- crashes ----------------------------------------------------------------------------


class Crash:
    """Kills the partition before the ``after``-th step of its compaction, or lets it end."""

    def __init__(self, setting: Setting, after: int) -> None:
        self.happened = False
        self._setting = setting
        self._left = after
        self._key = setting.key

    async def __call__(self, step: Step, journal: str) -> None:
        if self.happened or not journal.startswith(("compacted", "partition")):
            return
        if self._left == 0:
            self.happened = True
            self._setting.actor_system.kill(self._key)
            raise asyncio.CancelledError
        self._left -= 1


@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_a_crash_at_any_step_leaves_the_old_or_the_new_view(power: bool) -> None:
    outcomes = set()

    async def scenario(setting: Setting) -> None:
        await setting.publish("abc[abcd]")
        await setting.compact()
        before = None
        for after in range(10_000):
            current = setting.partition.runtime.state.compactions.current
            if current != before:
                await setting.publish("[aB]be")
            before = current
            crash = setting.store.hook = Crash(setting, after)
            key = setting.key
            setting.partition.compactor.trigger()
            await setting.partition.compactor.finished()
            setting.store.hook = None
            if power:
                setting.actor_system.kill(key)
                setting.disk.power_loss()
            await setting.actor_system.address(key)
            async with asyncio.timeout(5):
                while setting.partition.runtime.state.compactions.leftovers():
                    await asyncio.sleep(0.001)
            current = setting.partition.runtime.state.compactions.current
            assert await setting.journals() == [key.of_compacted(current.number).text()]
            outcomes.add(current == before)
            found = await setting.read()
            assert dict(map(reversed, found)) == {  # type: ignore[arg-type]
                key: where for key, (where, _) in setting.newest.items()
            }
            if current != before:
                assert found == setting.expected()
            if not crash.happened:
                return

    run(scenario)
    assert outcomes == {True, False}


def test_a_superseded_activation_leaves_no_generation() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.publish("aab")
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def hold(step: Step, journal: str) -> None:
            if journal.startswith("compacted") and step is Step.READ_MANIFEST:
                setting.store.hook = None
                reached.set()
                await go_on.wait()

        setting.store.hook = hold
        key, former = setting.key, setting.partition
        setting.actor_system.fatal = lambda key, error: former.abort()  # type: ignore[method-assign]
        former.compactor.trigger()
        await reached.wait()
        # Another process takes the partition over; this one doesn't know yet.
        del setting.actor_system.actors[key]
        setting.actor_system._hosted._starts.pop(key)
        await setting.actor_system.address(key)
        async with asyncio.timeout(5):
            while setting.partition.runtime.state.compactions.leftovers():
                await asyncio.sleep(0.001)
        go_on.set()
        await former.compactor.finished()
        assert not await setting.journals()
        assert await setting.compact() == "SUCCESS"
        assert await setting.read() == setting.expected()
        former.abort()

    run(scenario)


def test_an_unreadable_view_is_refused_by_name() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.publish("aab")
        await setting.compact()
        (name,) = await setting.journals()
        await setting.restart()
        for ledger_id in await setting.store.list_ledgers(name):
            await setting.store.delete_ledger(name, ledger_id)
        with pytest.raises(RemoteError, match="compacted"):
            await setting.partition.compactor.open_view()
        assert len(await setting.read(is_read_compacted=False)) == 3

    run(scenario)
