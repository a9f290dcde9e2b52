"""Lists of topics on the wire: shared by requests, narrowed by patterns, and bounded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.official.raw import RawClient
from tests.support.local_cluster import LocalCluster
from velaray.actors.machine import Reason
from velaray.broker.proxy.topic_lists import TopicLists, plain_beginning
from velaray.client.admin import Admin
from velaray.topology.rpc import RemoteError
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.hashing import topics_hash

NAMESPACE = "public/default"
BASE = f"persistent://{NAMESPACE}/"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, hosts=1) as running:
        yield running


def ask(cluster: LocalCluster, *requests: dict[str, Any]) -> list[Any]:
    """The answers to requests that are sent together."""

    async def scenario() -> list[Any]:
        client = await RawClient.connect("127.0.0.1", cluster.proxy.port)
        for number, fields in enumerate(requests):
            given = {"namespace": NAMESPACE, **fields}
            client.send(pb.CommandGetTopicsOfNamespace(request_id=number, **given))
        async with asyncio.timeout(60):
            while len(client.history) < len(requests) + 1:
                await asyncio.sleep(0.01)
        client.close()
        return sorted(client.history[1:], key=lambda answer: answer.request_id)

    return asyncio.run(scenario())


def test_a_known_list_is_not_sent_again(cluster: LocalCluster) -> None:
    with Admin(cluster.admin_url) as admin:
        admin.create_topic("a")
        admin.create_topic("b", partitions=2)
        names = [f"{BASE}a", f"{BASE}b-partition-0", f"{BASE}b-partition-1"]
        (first,) = ask(cluster, {})
        assert (sorted(first.topics), first.changed) == (names, True)
        assert first.topics_hash == topics_hash(names)
        (again,) = ask(cluster, {"topics_hash": first.topics_hash})
        assert (list(again.topics), again.changed) == ([], False)
        admin.create_topic("c")
        (changed,) = ask(cluster, {"topics_hash": first.topics_hash})
        assert changed.changed
        assert len(changed.topics) == 4


def test_a_pattern_narrows_a_list_without_being_evaluated(cluster: LocalCluster) -> None:
    with Admin(cluster.admin_url) as admin:
        for name in ("orders-1", "orders-2", "bills"):
            admin.create_topic(name)
    slow = f"{BASE}orders-(a+)+$"
    found, everything = ask(cluster, {"topics_pattern": slow}, {"topics_pattern": ".*"})
    assert sorted(found.topics) == [f"{BASE}orders-1", f"{BASE}orders-2"]
    assert len(everything.topics) == 3
    assert not found.filtered


@pytest.mark.parametrize(
    ("pattern", "beginning"),
    [
        ("persistent://public/default/a.*", "public/default/a"),
        ("public/default/a.*", "public/default/a"),
        ("^persistent://public/default/ab?c", "public/default/a"),
        ("public/default/ab*", "public/default/a"),
        ("public/default/ab{0,2}", "public/default/a"),
        ("public/default/ab+", "public/default/ab"),
        ("public/default/(a|b)", ""),
        ("public/default/a|.*", ""),
        ("public/default/[ab]", "public/default/"),
        (r"public/default/a\.b", "public/default/a"),
        (".*", ""),
        ("*", ""),
        ("", ""),
    ],
)
def test_the_plain_beginning_of_a_pattern(pattern: str, beginning: str) -> None:
    assert plain_beginning(pattern) == beginning
    for name in ("a", "ab", "abc", "abbc", "b", "a.b"):
        full = f"public/default/{name}"
        with_scheme = f"persistent://{full}" if "://" in pattern else full
        if pattern and pattern != "*" and re.fullmatch(pattern, with_scheme):
            assert full.startswith(beginning)


def test_a_list_beyond_a_message_is_refused_by_name(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, hosts=1, max_message_size=1000) as running:
        with Admin(running.admin_url) as admin:
            admin.create_topic("many", partitions=50)
            admin.create_topic("few")
        refused, found = ask(running, {}, {"topics_pattern": f"{BASE}few"})
    assert refused.error == pb.NotAllowedError
    assert "the list of the 51 topics of public/default takes" in refused.message
    assert list(found.topics) == [f"{BASE}few"]


def test_requests_that_wait_share_the_next_query() -> None:
    begun: list[str] = []
    gate = asyncio.Event()

    async def query(namespace: str, at_home: bool) -> list[str]:
        begun.append(namespace)
        number = len(begun)
        await gate.wait()
        if namespace == "absent":
            raise RemoteError(Reason.NOT_FOUND, "no namespace")
        return [f"t{number}"]

    async def scenario() -> None:
        lists = TopicLists(query)
        first = asyncio.ensure_future(lists.of("n", True))
        while not begun:
            await asyncio.sleep(0)  # what comes now mustn't get the list that is being made
        later = [asyncio.ensure_future(lists.of("n", True)) for _ in range(50)]
        absent = [asyncio.ensure_future(lists.of("absent", True)) for _ in range(2)]
        later[0].cancel()
        while len(begun) < 2:
            await asyncio.sleep(0)
        gate.set()
        assert (await first).names == ["t1"]
        shared = {id(await each): (await each).names for each in later[1:]}
        assert [*shared.values()] == [["t3"]]
        for each in absent:
            with pytest.raises(RemoteError):
                await each
        assert sorted(begun) == ["absent", "n", "n"]

    asyncio.run(scenario())
