"""SIGKILL of a schema registry while 32 register at once, over the wire, from 32 connections."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path

import pytest

from tests.ray.support import RayNodes, actors, wait_until
from velaray.actors.schema_registry.machine import RegistryState, SchemaRegistryMachine
from velaray.aio import Client
from velaray.client.admin import Admin
from velaray.client.exceptions import IncompatibleSchema
from velaray.cluster import Cluster
from velaray.events.ids import TopicName
from velaray.offline.stored_schemas import stored_registry
from velaray.schemas import SchemaInfo, SchemaType
from velaray.schemas.compatibility import Known, Rules, producer_problems
from velaray.schemas.validation import identity

EACH = 16
STRIKES_WITHIN_S = 0.06


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the cluster's journals are."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def cluster(nodes: RayNodes, data: Path) -> Iterator[Cluster]:
    """A velaray cluster on those nodes."""
    with Cluster.start(data, service_port=0, admin_port=0, placement="dedicated") as cluster:
        yield cluster


def schema(*fields: tuple[str, str]) -> SchemaInfo:
    """A record whose fields all have a default."""
    defaults = {"int": 0, "string": ""}
    made = [{"name": name, "type": kind, "default": defaults[kind]} for name, kind in fields]
    text = json.dumps({"type": "record", "name": "R", "fields": made})
    return SchemaInfo(SchemaType.AVRO, "R", text.encode())


FIRST = schema(("a", "int"))
SAME = schema(("a", "int"), ("b", "int"))
# Those with another type of x don't get along: one of them can't follow one of the other kind.
RIVALS = [
    schema(("a", "int"), (f"n{n}", "int"), ("x", ("int", "string")[n % 2])) for n in range(EACH)
]


@dataclass
class Round:
    """The answers, and how many of them came before the registry was killed."""

    versions: dict[SchemaInfo, set[int]] = field(default_factory=dict)
    refused: set[SchemaInfo] = field(default_factory=set)
    answered: int = 0


async def play(cluster: Cluster, clients: list[Client], topic: str, chance: random.Random) -> Round:
    """Register all at once, and kill the registry within some milliseconds."""
    await clients[0].core.schemas.version_of(topic, FIRST)
    await asyncio.gather(*(client.get_schema(topic) for client in clients))  # all are connected
    name = topic.rpartition("/")[2]
    victim = wait_until(
        lambda: [each for each in actors(cluster, "schema-registry") if f"/{name}/" in each["key"]],
        "the registry runs",
    )[0]
    found = Round()

    async def register(client: Client, info: SchemaInfo) -> None:
        try:
            version = await client.core.schemas.version_of(topic, info)
            found.versions.setdefault(info, set()).add(int.from_bytes(version, "big"))
        except IncompatibleSchema:
            found.refused.add(info)

    wanted = [SAME] * EACH + RIVALS
    chance.shuffle(wanted)
    pairs = zip(clients, wanted, strict=True)
    work = [asyncio.ensure_future(register(*pair)) for pair in pairs]
    if chance.random() < 0.5:  # when it strikes is a matter of chance
        await asyncio.wait(work, timeout=chance.uniform(0, STRIKES_WITHIN_S))
    else:
        for each in islice(asyncio.as_completed(work), chance.randint(1, EACH)):
            await each
    found.answered = sum(each.done() for each in work)
    os.kill(victim["pid"], signal.SIGKILL)
    await asyncio.gather(*work)
    return found


def check(found: Round, state: RegistryState) -> None:
    """The answers are those of the journal, and all of them are right."""
    SchemaRegistryMachine().check(state)
    infos = [each.info for each in state.versions]
    assert [each.number for each in state.versions] == list(range(len(infos)))
    assert len({identity(info) for info in infos if info is not None}) == len(infos)
    told = {FIRST: {0}} | found.versions
    assert told == {info: {number} for number, info in enumerate(infos)}  # nothing else is there
    assert found.refused == set(RIVALS) - found.versions.keys()
    for before, each in pairwise(state.versions):
        assert each.predecessor == before.number and before.info and each.info
        assert not producer_problems(each.info, [Known(before.number, before.info)], Rules())
    for info in found.refused:
        live = [Known(each.number, each.info) for each in state.versions if each.info]
        assert any(producer_problems(info, [known], Rules()) for known in live)


async def all_rounds(cluster: Cluster, data: Path, rounds: int) -> tuple[int, int]:
    """Returns in how many rounds it died before the first answer, and before the last one."""
    chance, admin = random.Random(7), Admin(cluster.admin_url)
    clients = [Client(cluster.service_url) for _ in range(2 * EACH)]
    early = amid = 0
    for turn in range(rounds):
        topic = f"persistent://public/default/registry-{rounds}-{turn}"
        found = await play(cluster, clients, topic, chance)
        state = await asyncio.to_thread(stored_registry, str(data), TopicName.parse(topic))
        check(found, state)
        await asyncio.to_thread(admin.delete_topic, topic, force=True)  # and its processes
        early += found.answered == 0
        amid += 0 < found.answered < 2 * EACH
    await asyncio.gather(*(client.close() for client in clients))
    return early, amid


MANY = pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(1200)])


@pytest.mark.parametrize("rounds", [MANY])
def test_versions_are_dense_unique_and_checked_against_their_predecessors(
    cluster: Cluster, data: Path, rounds: int
) -> None:
    early, amid = asyncio.run(all_rounds(cluster, data, rounds))
    print(f"{rounds} rounds: killed {early} times before the first answer, {amid} amid the answers")
    assert early + amid > 0, "it always died too late"
