"""Random commands and requests of clients with few rights: none does more than its role may.

``python -m tests.security.fuzz --commands 1000000`` is the long run; `test_fuzz` is the short one.
The cluster is a process of its own, which must report no failure. A client of another tenant, the
canary, must go on meanwhile. Then it is timed while a flood of such commands goes to the cluster,
and while the same flood goes to a listener that does nothing: the difference is what it notices.
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
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.security.any_command import any_command
from tests.security.attacked import Canary, Server, attacked, canary, quantile
from tests.security.dummy import dummy_listener
from tests.security.support import SECRET, TOPIC, admin_of, furnish, raw, token
from velaray.admin.api import routes_by_module
from velaray.events.ids_pb2 import MessageIdData
from velaray.topology.auth import HANDLES_METHOD, SYSTEM_METHOD, TLS_METHOD, TUNNEL_METHOD
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Command, Message, entry_header
from velaray.wire.connection import WireConnection
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
TEXTS = (*TOPICS, "shop/orders", "other/things", "s", "root", "boss", "p", "pulsar.repl.x", "")
BURST = 40
"""Commands on one connection before all their answers are awaited."""
CONNECTIONS = 8
"""Connections at a time."""
UNUSUAL = 0.25
"""The part of the commands that are of any kind, with any fields."""
PATIENCE_S = 60.0
ROUNDS = 20
"""Rounds of the canary at a time."""
MOST_GROWN = 256 << 20
"""The bytes by which the process may grow during a run."""
TURNS = 5
"""How often the dummy and the cluster are flooded, one after the other."""


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

    def __init__(self, role: str, chance: Chance, counts: Counter[str]) -> None:
        """``counts`` counts the sent commands by their kinds."""
        self.role = role
        self.token = token(role).encode()
        self.chance = chance
        self.asked: dict[int, Any] = {}
        self.counts = counts
        self._last = 0

    def make(self) -> Any:
        """A command with a new request id."""
        self._last += 1
        if self.chance.random() < UNUSUAL:
            command = any_command(self.chance, self._last, TEXTS)
        else:
            command = self.chance.choice(_MAKERS)(self.chance, self._last)
        self.asked[self._last] = command
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
    elif isinstance(command, pb.CommandWatchTopicListSuccess):
        yield from command.topic
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

_KEEP_OPEN = (pb.CommandPing, pb.CommandPong)
_KEEP_OPEN_AT_HOSTS = (
    pb.CommandFlow,
    pb.CommandAck,
    pb.CommandRedeliverUnacknowledgedMessages,
)
FORGED: tuple[Mapping[str, Any], ...] = (
    {"original_principal": "root"},
    {"auth_method_name": "none", "auth_data": b""},
    {"auth_method_name": TLS_METHOD},
    {"auth_method_name": SYSTEM_METHOD, "auth_data": b"root"},
    {"auth_method_name": HANDLES_METHOD, "auth_data": b"root"},
    {"auth_method_name": TUNNEL_METHOD, "original_principal": "root", "auth_data": b"root"},
    {"auth_data": b"a.b.c"},
)
"""Fields of CONNECT by which a client claims to be another one."""


def ends_connection(command: Any, at_proxy: bool) -> bool:
    """Whether a command without an answer is refused by closing the connection."""
    kept = _KEEP_OPEN if at_proxy else (*_KEEP_OPEN, *_KEEP_OPEN_AT_HOSTS)
    return not hasattr(command, "request_id") and not isinstance(command, kept)


class Attacker:
    """One connection, whose answers are judged when they come."""

    def __init__(self, commands: Commands) -> None:
        self.connected = self.closed = False
        self.waiting: set[int] = set()
        self._commands = commands
        self._problem: AssertionError | None = None
        self._news = asyncio.Event()
        self._connection: WireConnection

    async def connect(self, port: int, **fields: Any) -> None:
        """Connect as the role; ``fields`` are other fields of CONNECT."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: WireConnection(self, server=False), "127.0.0.1", port)
        proof = {"auth_method_name": "token", "auth_data": self._commands.token}
        self.send(pb.CommandConnect(client_version="raw", protocol_version=20, **proof | fields))
        await self.until(lambda: self.connected or self.closed)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition. Raises `AssertionError` for an answer that condemns."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition() and self._problem is None:
                self._news.clear()
                await self._news.wait()
        if self._problem is not None:
            raise self._problem

    def send(self, command: Any) -> None:
        """Send a command."""
        self._connection.send(command)

    def publish(self, producer_id: int) -> None:
        """Send a message."""
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
        entry = build_entry(metadata, b"x")
        send = pb.CommandSend(producer_id=producer_id, sequence_id=1, num_messages=1)
        self._connection.write(entry_header(send, len(entry)))
        self._connection.write(entry)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    # -- what the connection tells -------------------------------------------------

    def on_connected(self, connection: WireConnection) -> None:
        self._connection = connection

    def on_frame(self, connection: WireConnection, command: Command, entry: bytes | None) -> None:
        self.connected = self.connected or isinstance(command, pb.CommandConnected)
        self.waiting.discard(getattr(command, "request_id", -1))
        try:
            self._commands.judge(command)
        except AssertionError as problem:
            self._problem = self._problem or problem
        self._news.set()

    def on_corrupt_entry(self, connection: WireConnection, error: Exception) -> None:
        raise AssertionError(error)

    def on_writable(self, connection: WireConnection) -> None: ...

    def on_closed(self, connection: WireConnection, error: Exception | None) -> None:
        self.closed = True
        self._news.set()


async def _burst(client: Attacker, commands: Commands, at_proxy: bool) -> None:
    """Send some commands, the last of which may end the connection, and wait for the answers of
    those that always get one."""
    made = [commands.make() for _ in range(BURST)]
    made.sort(key=lambda command: ends_connection(command, at_proxy))
    for command in made:
        last = ends_connection(command, at_proxy)
        if last:
            await client.until(lambda: client.closed or not client.waiting)
        elif isinstance(command, _ANSWERED):
            client.waiting.add(command.request_id)
        commands.counts[type(command).__name__] += 1
        client.send(command)
        if commands.role != "boss" and not at_proxy and commands.chance.random() < 0.1:
            commands.counts["CommandSend"] += 1
            client.publish(commands.chance.randrange(3))
        if last:
            await client.until(lambda: client.closed)
            return
    await client.until(lambda: client.closed or not client.waiting)
    commands.counts["bursts, closed before their end"] += client.closed


async def _forge(port: int, commands: Commands) -> None:
    """Claim to be another client, in each way. Raises `AssertionError` if that succeeds."""
    for fields in FORGED:
        client = Attacker(commands)
        await client.connect(port, **fields)
        assert not client.connected, (commands.role, fields)
        commands.counts["forged CommandConnect"] += 1
        client.close()


async def attack_protocol(server: Server, role: str, commands: int, seed: int) -> Counter[str]:
    """Send random commands to the proxy and to the host of the topics, on some connections at a
    time."""
    ports = server.port, await host_port(server)
    chance, total = Chance(seed), Counter[str]()

    async def attack() -> None:
        made = Commands(role, chance, total)
        while sum(total.values()) < commands:
            made.asked.clear()
            port = chance.choice(ports)
            client = Attacker(made)
            await client.connect(port)
            await _burst(client, made, port == server.port)
            client.close()

    for port in ports:
        await _forge(port, Commands(role, chance, total))
    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(attack())
    return total


async def host_port(server: Server) -> int:
    """The port of the host of the topics."""
    client = await raw(server.port, "root")
    client.send(pb.CommandLookupTopic(topic=TOPIC, request_id=1))
    url: str = (await client.next(pb.CommandLookupTopicResponse)).brokerServiceUrl
    client.close()
    return int(url.rpartition(":")[2])


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


async def attack_rest(server: Server, role: str, rounds: int, seed: int) -> Counter[str]:
    """Send each request some times; returns the number of requests."""
    chance, sent = random.Random(seed), Counter[str]()
    headers = {"Authorization": f"Bearer {token(role)}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for _ in range(rounds):
            for method, path, body in requests(chance, role):
                async with session.request(
                    method,
                    server.admin_url + path,
                    data=None if body is None else json.dumps(body),
                    headers={"Content-Type": "application/json"},
                    allow_redirects=False,
                ) as answer:
                    judge_status(role, method, path, answer.status, await answer.text())
                sent["requests"] += 1
    return sent


# -- what must not change ----------------------------------------------------------


def outside(server: Server, role: str) -> dict[str, Any]:
    """What the role must not change, as a superuser sees it."""
    root = admin_of(server, "root")
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


# -- the neighbour -----------------------------------------------------------------


async def _while_singing(bird: Canary, attack: Awaitable[Counter[str]]) -> Counter[str]:
    """The outcome of an attack, while the canary goes on."""
    task = asyncio.ensure_future(attack)
    while not task.done():
        await asyncio.to_thread(bird.goes_on, ROUNDS)
    return await task


async def flood(ports: Sequence[int], commands_per_s: int, ended: asyncio.Event, seed: int) -> int:
    """Send the commands of all roles at a rate, whatever is answered; returns their number."""
    chance, counts = Chance(seed), Counter[str]()
    clients: list[Attacker] = []
    loop = asyncio.get_running_loop()
    begun, sent = loop.time(), 0
    while not ended.is_set():
        made = Commands(chance.choice(ROLES), chance, counts)
        port = chance.choice(ports)
        client = Attacker(made)
        await client.connect(port)
        clients.append(client)
        for _ in range(BURST):
            while sent >= (loop.time() - begun) * commands_per_s:
                await asyncio.sleep(0.005)
            command = made.make()
            if not ends_connection(command, port == ports[0]):
                client.send(command)
                sent += 1
        for old in clients[:-CONNECTIONS]:
            old.close()
        clients = clients[-CONNECTIONS:]
    for client in clients:
        client.close()
    return sent


@dataclass(frozen=True, slots=True)
class Notice:
    """What a neighbour notices: its times in seconds while the flood goes to a dummy listener, and
    while it goes to the cluster; and the commands per second of both floods."""

    dummy_s: list[float]
    cluster_s: list[float]
    dummy_rate: float
    cluster_rate: float

    @property
    def ratio(self) -> float:
        """The ratio of the 99th percentiles."""
        return quantile(self.cluster_s, 0.99) / quantile(self.dummy_s, 0.99)

    def __str__(self) -> str:
        texts = (
            f"p50 {quantile(times, 0.5):.1f} ms, p99 {quantile(times, 0.99):.1f} ms, "
            f"{rate:.0f} commands/s, {len(times)} rounds"
            for times, rate in (
                (self.dummy_s, self.dummy_rate),
                (self.cluster_s, self.cluster_rate),
            )
        )
        return "canary by a dummy: {}\ncanary by the cluster: {}\nratio {:.2f}".format(
            *texts, self.ratio
        )


async def notice(server: Server, bird: Canary, commands_per_s: int, rounds: int) -> Notice:
    """Flood a dummy listener and the cluster in turns, and time the canary."""
    loop = asyncio.get_running_loop()
    times: tuple[list[float], list[float]] = ([], [])
    sent, took = [0, 0], [0.0, 0.0]
    with dummy_listener() as port:
        targets = ((port, port), (server.port, await host_port(server)))
        for turn in range(2 * TURNS):
            ended, begun = asyncio.Event(), loop.time()
            flooding = flood(targets[turn % 2], commands_per_s, ended, turn // 2)
            flooded = asyncio.ensure_future(flooding)
            times[turn % 2].extend(await asyncio.to_thread(bird.goes_on, rounds // TURNS))
            ended.set()
            sent[turn % 2] += await flooded
            took[turn % 2] += loop.time() - begun
    return Notice(*times, sent[0] / took[0], sent[1] / took[1])


# -- runs --------------------------------------------------------------------------


@contextmanager
def guarded_process() -> Iterator[tuple[Server, Canary]]:
    """A guarded cluster in a process of its own, and a canary in a tenant of its own."""
    with ExitStack() as stack:
        at = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vk-")), "secret")
        at.write_bytes(SECRET)
        roles = ("--superuser", "root", "--superuser", "gate-root", "--proxy-role", "gate")
        server = stack.enter_context(attacked("--token-secret", str(at), *roles))
        furnish(server)
        root = admin_of(server, "root")
        root.permissions.grant(TOPIC, "reader", ["consume"])
        root.create_tenant("neighbour", allowed_clusters=["standalone"])
        root.create_namespace("neighbour/bay")
        root.permissions.grant("neighbour/bay", "canary", ["produce", "consume"])
        topic = "persistent://neighbour/bay/canary"
        yield server, stack.enter_context(canary(server, topic, token("canary")))
        server.check()


def run(commands: int, rounds: int, seed: int) -> Counter[str]:
    """Attack a cluster as each role. Raises `AssertionError` for anything that does too much, and
    if the process or one of its actors fails."""
    total: Counter[str] = Counter()
    with guarded_process() as (server, bird):
        before_bytes = server.memory()
        for number, role in enumerate(ROLES):
            before = outside(server, role)
            attack = attack_protocol(server, role, commands, seed + number)
            total += asyncio.run(_while_singing(bird, attack))
            attack = attack_rest(server, role, rounds, seed + number)
            total += asyncio.run(_while_singing(bird, attack))
            assert outside(server, role) == before, role
            server.check()
        grown = server.memory("VmHWM") - before_bytes
        assert grown < MOST_GROWN, grown
        total["MiB more than before"] = grown >> 20
    return total


def main() -> None:
    """The long run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--commands", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--rate", type=int, default=200, help="commands per second of the flood")
    parser.add_argument("--canary", type=int, default=3000, help="rounds of the canary; 0: none")
    given = parser.parse_args()
    print(f"python -m tests.security.fuzz --commands {given.commands} --seed {given.seed}")
    if given.commands:
        found = run(given.commands // len(ROLES), given.rounds, given.seed)
        for name, count in found.most_common():
            print(f"{count:>9}  {name}")
    if given.canary:
        with guarded_process() as (server, bird):
            print(noticed := asyncio.run(notice(server, bird, given.rate, given.canary)))
        assert noticed.ratio <= 2, noticed


if __name__ == "__main__":
    main()
