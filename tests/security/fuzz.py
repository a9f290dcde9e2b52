"""Random commands and requests of clients with few rights: none does more than its role may.

``python -m tests.security.fuzz --commands 1000000`` is the long run; `test_fuzz` is the short one.
The judge doesn't use the table of rights. It knows the roles: "nobody" has no grants, "reader" may
consume from one topic, "boss" administers one tenant. What lies outside must not change.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp

from tests.official.raw import RawClient
from tests.security.support import TOPIC, admin_of, guarded, raw, token
from tests.support.local_cluster import LocalCluster
from velaray.admin.api import routes_by_module
from velaray.events.ids import TopicName
from velaray.events.ids_pb2 import MessageIdData
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Message, Send
from velaray.wire.messages import build_entry

ROLES = ("nobody", "reader", "boss")
COORDINATOR = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"
TOPICS = (
    TOPIC,
    "persistent://shop/orders/old",
    "persistent://shop/bills/created",
    "persistent://other/things/t",
    "persistent://other/things/created",
    "persistent://absent/things/t",
    COORDINATOR,
    "persistent://pulsar/system/__ledger_deletion",
    "not a topic",
)
FOR_EVERYBODY = {
    "/admin/v2/brokers/health",
    "/admin/v2/brokers/ready",
    "/admin/v2/brokers/version",
    "/admin/v2/clusters",
    "/metrics",
    "/openapi.json",
    "/docs",
}
BURST = 40
"""Commands on one connection before all their answers are awaited."""


def may_touch(role: str, text: str) -> bool:
    """Whether a role has any right in a topic, a namespace or a tenant."""
    if role == "boss":
        return text.startswith(("persistent://shop/", "shop/")) or text == "shop"
    return role == "reader" and text == TOPIC


# -- the protocol ------------------------------------------------------------------


class Chance(random.Random):
    """The random choices, and the transactions that the client has begun."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.begun = [0]


class Commands:
    """Makes random commands, and judges their answers."""

    def __init__(self, role: str, chance: Chance) -> None:
        self.role = role
        self.chance = chance
        self.asked: dict[int, Any] = {}
        self.counts: Counter[str] = Counter()
        self._last = 0

    def make(self) -> Any:
        """A command with a new request id."""
        self._last += 1
        kind = self.chance.choice(_MAKERS)
        command = kind(self.chance, self._last)
        self.asked[self._last] = command
        self.counts[type(command).__name__] += 1
        return command

    def judge(self, answer: Any) -> None:
        """Raise `AssertionError` if an answer shows that a command did too much."""
        if isinstance(answer, (Message, pb.CommandSendReceipt)):
            raise AssertionError(f"{self.role} got {answer!r}")
        if isinstance(answer, pb.CommandNewTxnResponse) and answer.HasField("txnid_least_bits"):
            self.chance.begun = [*self.chance.begun[-9:], answer.txnid_least_bits]
        command = self.asked.get(getattr(answer, "request_id", -1))
        if command is None or not _succeeded(answer):
            return
        for text in _places(command):
            allowed = may_touch(self.role, text)
            produces = isinstance(
                command,
                (pb.CommandProducer, pb.CommandGetOrCreateSchema, pb.CommandAddPartitionToTxn),
            )
            if not allowed or (produces and self.role == "reader"):
                raise AssertionError(f"{self.role}: {command!r} was answered {answer!r}")


def _succeeded(answer: Any) -> bool:
    if isinstance(answer, pb.CommandError):
        return False
    return not any(
        name in answer.DESCRIPTOR.fields_by_name and answer.HasField(name)
        for name in ("error", "error_code")
    )


def _places(command: Any) -> Iterator[str]:
    """The topics and namespaces that a command names, without those of transactions' coordinators,
    which everybody may look up."""
    if isinstance(command, pb.CommandGetTopicsOfNamespace):
        yield command.namespace
    elif isinstance(command, pb.CommandAddPartitionToTxn):
        yield from command.partitions
    elif isinstance(command, pb.CommandAddSubscriptionToTxn):
        yield from (each.topic for each in command.subscription)
    elif hasattr(command, "topic") and "/transaction_coordinator_assign" not in command.topic:
        yield command.topic


_Maker = Callable[[Chance, int], Any]


def _about_consumer(kind: Any) -> _Maker:
    return lambda chance, number: kind(consumer_id=chance.randrange(3), request_id=number)


def _subscribe(chance: Chance, number: int) -> pb.CommandSubscribe:
    return pb.CommandSubscribe(
        topic=chance.choice(TOPICS),
        subscription=chance.choice(("s", "reserved", "pulsar.repl.x")),
        subType=chance.choice((pb.CommandSubscribe.Shared, pb.CommandSubscribe.Exclusive)),
        consumer_id=chance.randrange(3),
        request_id=number,
        durable=chance.random() < 0.5,
    )


def _producer(chance: Chance, number: int) -> pb.CommandProducer:
    names = ("", "p", "pulsar.repl.north", "pulsar.repl.standalone-->north")
    command = pb.CommandProducer(
        topic=chance.choice(TOPICS),
        producer_id=chance.randrange(3),
        request_id=number,
        producer_name=chance.choice(names),
    )
    if chance.random() < 0.3:
        command.initial_subscription_name = "sneaked"
    return command


def _ack(chance: Chance, number: int) -> pb.CommandAck:
    ids = [MessageIdData(ledgerId=chance.randrange(9), entryId=chance.randrange(9))]
    return pb.CommandAck(
        consumer_id=chance.randrange(3),
        ack_type=pb.CommandAck.Cumulative,
        message_id=ids,
        request_id=number,
    )


_ANY_SCHEMA = pb.Schema(name="", type=pb.Schema.String, schema_data=b"")
_MAKERS: tuple[_Maker, ...] = (
    _subscribe,
    _subscribe,
    _producer,
    _producer,
    lambda chance, number: pb.CommandLookupTopic(topic=chance.choice(TOPICS), request_id=number),
    lambda chance, number: pb.CommandPartitionedTopicMetadata(
        topic=chance.choice(TOPICS), request_id=number, metadata_auto_creation_enabled=True
    ),
    lambda chance, number: pb.CommandGetTopicsOfNamespace(
        namespace=chance.choice(("shop/orders", "other/things", "pulsar/system", "x")),
        request_id=number,
    ),
    lambda chance, number: pb.CommandGetSchema(topic=chance.choice(TOPICS), request_id=number),
    lambda chance, number: pb.CommandGetOrCreateSchema(
        topic=chance.choice(TOPICS), request_id=number, schema=_ANY_SCHEMA
    ),
    lambda chance, number: pb.CommandAddPartitionToTxn(
        request_id=number,
        txnid_most_bits=0,
        txnid_least_bits=chance.choice(chance.begun),
        partitions=[chance.choice(TOPICS)],
    ),
    lambda chance, number: pb.CommandAddSubscriptionToTxn(
        request_id=number,
        txnid_most_bits=0,
        txnid_least_bits=chance.choice(chance.begun),
        subscription=[pb.Subscription(topic=chance.choice(TOPICS), subscription="s")],
    ),
    lambda chance, number: pb.CommandNewTxn(tc_id=0, request_id=number, txn_ttl_millis=60_000),
    lambda chance, number: pb.CommandEndTxn(
        request_id=number, txnid_most_bits=0, txnid_least_bits=chance.choice(chance.begun)
    ),
    lambda chance, number: pb.CommandEndTxnOnPartition(
        request_id=number, topic=chance.choice(TOPICS), txn_action=pb.COMMIT
    ),
    lambda chance, number: pb.CommandWatchTopicList(
        request_id=number, watcher_id=1, namespace="other/things", topics_pattern=".*"
    ),
    _ack,
    lambda chance, number: pb.CommandFlow(consumer_id=chance.randrange(3), messagePermits=10),
    _about_consumer(pb.CommandUnsubscribe),
    _about_consumer(pb.CommandGetLastMessageId),
    _about_consumer(pb.CommandConsumerStats),
    _about_consumer(pb.CommandCloseConsumer),
    lambda chance, number: pb.CommandSeek(
        consumer_id=chance.randrange(3), request_id=number, message_publish_time=1
    ),
)


_ANSWERED = (
    pb.CommandLookupTopic,
    pb.CommandPartitionedTopicMetadata,
    pb.CommandGetTopicsOfNamespace,
    pb.CommandGetSchema,
    pb.CommandGetOrCreateSchema,
    pb.CommandAddPartitionToTxn,
    pb.CommandAddSubscriptionToTxn,
    pb.CommandNewTxn,
)
"""Commands that are answered whatever the connection does next."""


def _answered(client: RawClient) -> set[int]:
    return {getattr(each, "request_id", 0) for each in client.history}


async def _burst(client: RawClient, commands: Commands) -> None:
    """Send some commands, await the answers of those that always get one, and judge all."""
    for _ in range(BURST):
        client.send(commands.make())
        if commands.role != "boss" and commands.chance.random() < 0.1:
            metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
            producer_id = commands.chance.randrange(3)
            client.write_entry(Send(producer_id, 1), build_entry(metadata, b"x"))
    wanted = {number for number, sent in commands.asked.items() if isinstance(sent, _ANSWERED)}
    async with asyncio.timeout(60):
        while not (client.closed.is_set() or wanted <= _answered(client)):
            await asyncio.sleep(0.005)
    for each in client.history:
        commands.judge(each)


async def attack_protocol(
    cluster: LocalCluster, role: str, commands: int, seed: int
) -> Counter[str]:
    """Send random commands to the proxy and to the host of the topics."""
    urls = [
        await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(
                cluster.proxy.locate(TopicName.parse(name)), cluster.loop
            )
        )
        for name in (COORDINATOR, TOPIC)
    ]
    ports = cluster.proxy.port, urls[1].service_port
    made = Commands(role, Chance(seed))
    while sum(made.counts.values()) < commands:
        made.asked.clear()
        client = await raw(made.chance.choice(ports), role)
        await client.next(pb.CommandConnected)
        await _burst(client, made)
        client.close()
    return made.counts


# -- REST --------------------------------------------------------------------------

_VALUES = {
    "tenant": ("shop", "other", "absent"),
    "namespace": ("orders", "things", "created"),
    "topic": ("new", "old", "t", "created"),
    "subscription": ("s", "sneaked"),
    "role": ("nobody", "reader"),
    "policy": ("retention", "permissions", "replication"),
    "domain": ("persistent",),
    "cluster": ("standalone", "north"),
    "bundle": ("0x00000000_0xffffffff",),
}
_BODIES: tuple[Any, ...] = (
    None,
    ["produce", "consume"],
    ["nobody"],
    {"adminRoles": ["nobody", "reader"], "allowedClusters": ["standalone"]},
    {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1},
    {},
    2,
)


def requests(chance: random.Random, role: str) -> Iterator[tuple[str, str, Any]]:
    """A request of each operation that the role might use: method, path, body."""
    for routes in routes_by_module().values():
        for route in routes:
            path = route.operation.path
            for name in [part.partition("}")[0] for part in path.split("{")[1:]]:
                value = chance.choice(_VALUES.get(name, ("0", "1", "x")))
                path = path.replace(f"{{{name}}}", value)
            if role != "boss" or not _of_shop(path):  # the boss may even delete the tenant's data
                yield route.operation.method, path, chance.choice(_BODIES)


def _of_shop(path: str) -> bool:
    return "shop" in path.split("/")


def judge_status(role: str, method: str, path: str, status: int, text: str) -> None:
    """Raise `AssertionError` if a request was carried out that the role may not make."""
    if path in FOR_EVERYBODY or (role == "reader" and "/shop/orders/new" in path):
        assert status < 500 or status == 501, (role, method, path, status, text)
        return
    assert status in (403, 422), (role, method, path, status, text)


async def attack_rest(cluster: LocalCluster, role: str, rounds: int, seed: int) -> int:
    """Send each request some times; returns the number of requests."""
    chance, sent = random.Random(seed), 0
    headers = {"Authorization": f"Bearer {token(role)}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for _ in range(rounds):
            for method, path, body in requests(chance, role):
                async with session.request(
                    method,
                    cluster.admin_url + path,
                    data=None if body is None else json.dumps(body),
                    headers={"Content-Type": "application/json"},
                    allow_redirects=False,
                ) as answer:
                    judge_status(role, method, path, answer.status, await answer.text())
                sent += 1
    return sent


# -- what must not change ----------------------------------------------------------


def outside(cluster: LocalCluster, role: str) -> dict[str, Any]:
    """What the role must not change, as a superuser sees it."""
    root = admin_of(cluster, "root")
    found: dict[str, Any] = {
        "clusters": root.clusters(),
        "policies": root.policies_of("cluster"),
        "tenants": {name: root.tenant(name) for name in root.tenants()},
    }
    for namespace in ("shop/orders", "shop/bills", "other/things", "public/default"):
        if may_touch(role, namespace):
            continue
        topics = dict.fromkeys(root.topics(namespace), 0)
        found[namespace] = root.policies_of(namespace), sorted(topics)
        for topic in topics:
            stats = root.stats(topic)
            subscriptions = {} if may_touch(role, topic) else stats["subscriptions"]
            found[topic] = root.policies_of(topic), stats["msgInCounter"], sorted(subscriptions)
    return found


def run(commands: int, rounds: int, seed: int) -> Counter[str]:
    """Attack a cluster as each role. Raises `AssertionError` for anything that does too much."""
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="vo-") as at, guarded(Path(at), hosts=1) as cluster:
        admin_of(cluster, "boss").permissions.grant(TOPIC, "reader", ["consume"])
        for number, role in enumerate(ROLES):
            before = outside(cluster, role)
            total += asyncio.run(attack_protocol(cluster, role, commands, seed + number))
            total["requests"] += asyncio.run(attack_rest(cluster, role, rounds, seed + number))
            assert outside(cluster, role) == before, role
        assert cluster.actor_system.failures == []
    return total


def main() -> None:
    """The long run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--commands", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    print(f"python -m tests.security.fuzz --commands {given.commands} --seed {given.seed}")
    for name, count in run(given.commands // len(ROLES), given.rounds, given.seed).most_common():
        print(f"{count:>9}  {name}")


if __name__ == "__main__":
    main()
