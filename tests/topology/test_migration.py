"""A tenant moves from one cluster to another, under failures."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest

from tests.support.neighbours import ask, create, introduce, settle
from tests.support.waiting import wait_until
from tests.topology.migrating import Move, Publishing, away, migrating, numbers
from tests.topology.replicating import Cluster, received
from velaray.actors.catalog.migration_state import Phase
from velaray.broker.catalog.messages import CreateTopic, RollBackMigration, SetPolicy
from velaray.client.admin import (
    Admin,
    AdminError,
    Conflict,
    Invalid,
    NotFound,
    PreconditionFailed,
    Unauthorized,
    Unavailable,
)
from velaray.events.ids import ActorKey
from velaray.geo.tenant_migration import migrations
from velaray.geo.tenant_migration.migration_driver import Driver
from velaray.topology.config import AuthSettings

TOPIC = "persistent://acme/n/t"
MANY = "persistent://acme/n/many"
WAY = (Phase.BEGUN, Phase.REPLICATING, Phase.FENCED, Phase.DECIDED, Phase.SWITCHED)


@pytest.fixture
def move(tmp_path: Path) -> Iterator[Move]:
    with migrating(tmp_path) as found:
        yield found


def test_a_tenant_moves_with_all_its_data(move: Move) -> None:
    ask(move.a, "create_topic", topic=MANY, partitions=3)
    move.publish(TOPIC, numbers(100))
    move.publish(MANY, numbers(30))
    began = move.begin()
    assert began["phase"] in ("begun", "replicating") and began["target"] == "b"
    move.reaches("done")
    assert move.home(move.a) == move.home(move.b) == "b"
    here, there = move.message_status(move.a), move.message_status(move.b)
    assert (here["tenant"], here["namespaces"], here["topics"]) == (True, {}, [])
    assert there["topics"] == [MANY, TOPIC]
    consumer = move.subscribe(TOPIC)  # by the cluster that it left
    assert received(consumer, 100) == numbers(100)
    assert sorted(received(move.subscribe(MANY), 30)) == sorted(numbers(30))
    steps = [phase for phase, _ in move.status()["steps"]]
    assert steps == [*WAY, "done"]


def test_a_producer_continues_through_a_migration(move: Move) -> None:
    with Publishing(move.client, TOPIC) as publishing:
        publishing.goes_on()
        move.begin()
        move.reaches("done")
        publishing.goes_on()
    consumer = move.subscribe(TOPIC)
    assert received(consumer, publishing.confirmed) == numbers(publishing.confirmed)
    assert move.stats(move.b, TOPIC)["entries"] == publishing.confirmed


def test_a_cluster_of_its_own_keeps_a_tenant_apart_from_its_former_neighbours(move: Move) -> None:
    move.publish(TOPIC, numbers(3))
    move.begin()
    move.reaches("done")
    stuck = threading.Event()
    there = Cluster(move.b)
    try:
        move.a.loop.call_soon_threadsafe(stuck.wait)  # nothing runs in the former cluster any more
        there.publish(TOPIC, numbers(10)[3:])
        assert received(there.subscribe(TOPIC), 10) == numbers(10)
    finally:
        stuck.set()
        there.client.close()
    tenants = {
        cluster.config.name: {key.tenant for key in cluster.actor_system.actors if key.topic}
        for cluster in (move.a, move.b)
    }
    assert "acme" not in tenants["a"] and tenants["b"] == {"acme"}


def test_a_tenant_moves_back(move: Move) -> None:
    with Publishing(move.client, TOPIC) as publishing:
        publishing.goes_on()
        move.begin()
        move.reaches("done")
        publishing.goes_on()
        back = Move(move.b, move.a)
        back.begin()
        back.reaches("done")
        publishing.goes_on()
        move.begin()
        assert move.status()["number"] > 0
        move.reaches("done")
        publishing.goes_on()
        back.client.close()
    consumer = move.subscribe(TOPIC)
    assert received(consumer, publishing.confirmed) == numbers(publishing.confirmed)


def test_a_dry_run_changes_nothing(move: Move) -> None:
    move.publish(TOPIC, numbers(3))
    found = move.begin(dryRun=True)
    assert found == {
        "namespaces": 1,
        "topics": 1,
        "partitions": 1,
        "subscriptions": 0,
        "entries": 3,
        "problems": [],
        "found": [],
    }
    with pytest.raises(NotFound, match="has no migration"):
        move.status()
    assert not move.message_status(move.b)["tenant"] and move.home(move.b) == "b"
    ask(move.b, "create_tenant", tenant="acme", allowed_clusters=["b"])
    ask(move.b, "create_namespace", namespace="acme/n")
    ask(move.b, "create_topic", topic=TOPIC)
    (problem,) = move.begin(dryRun=True)["problems"]
    assert problem == f"cluster b has topics of the tenant: {TOPIC}"
    assert move.begin(dryRun=True)["found"] == ["acme", "acme/n"]


@pytest.mark.parametrize(
    ("asked", "error", "named"),
    [
        ({"target": "yonder"}, NotFound, "yonder"),
        ({"target": "a"}, PreconditionFailed, "is this one"),
        ({"progress": "guessed"}, Invalid, "guessed"),
        ({"maxLag": -1}, Invalid, "maxLag"),
        ({"maxLag": True}, Invalid, "maxLag"),
    ],
)
def test_invalid_migrations_are_refused(
    move: Move, asked: dict[str, Any], error: type[AdminError], named: str
) -> None:
    with pytest.raises(error, match=named):
        move.begin(**asked)
    assert ask(move.a, "migrations") == []


def test_obstacles_are_refused_by_name(move: Move) -> None:
    move.publish(TOPIC, numbers(1))
    ask(move.a, "update_tenant", tenant="acme", allowed_clusters=["a", "b"])
    both = {"namespace": "acme/n", "name": "replication", "value": b'["a","b"]'}
    ask(move.a, "set_policy", **both)
    with pytest.raises(Conflict, match="policy replication of acme/n names b"):
        move.begin()
    ask(move.a, "remove_policy", namespace="acme/n", name="replication")
    create("acme/n", move.b)
    ttl = {"namespace": "acme/n", "name": "messageTTL", "value": b"5"}
    ask(move.b, "set_policy", **ttl)
    with pytest.raises(Conflict, match="has policies on acme/n"):
        move.begin()
    assert ask(move.a, "migrations") == []


def test_clusters_that_share_a_number_do_not_share_a_tenant(tmp_path: Path) -> None:
    number = pytest.raises(Conflict, match="both have the number 1")
    with migrating(tmp_path, cluster_number=1) as move, number:
        move.begin()


def test_a_cluster_registered_under_a_wrong_name_is_detected(move: Move) -> None:
    introduce(move.a, move.b)  # it is known already
    ask(move.a, "register_cluster", cluster="c", **move.b.urls)
    with pytest.raises(Conflict, match="calls itself b"):
        move.begin(target="c")
    with away(move.b), pytest.raises(Unavailable, match="doesn't answer"):
        move.begin()
    ask(move.b, "delete_cluster", cluster="a")
    with pytest.raises(Conflict, match="register a there"):
        move.begin()


def test_clients_that_arrive_before_the_switch_are_redirected_back(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is replicated the target answers for the source."""
    move.publish(TOPIC, numbers(1))
    monkeypatch.setattr(Driver, "_is_close", _never)
    move.begin()
    move.reaches("replicating")
    wait_until(lambda: TOPIC in move.message_status(move.b)["topics"])
    early = Move(move.b, move.a)
    early.publish(TOPIC, numbers(1))
    assert move.stats(move.a, TOPIC)["entries"] == 2
    early.client.close()


async def _never(driver: Driver) -> bool:
    return False


def test_an_empty_tenant_moves(move: Move) -> None:
    move.begin()
    move.reaches("done")
    assert move.home(move.a) == "b" and move.message_status(move.b)["namespaces"] == {
        "acme/n": False
    }


def test_producers_find_their_last_sequence_ids(move: Move) -> None:
    move.publish(TOPIC, numbers(10), producer_name="p")
    move.begin()
    move.reaches("done")
    producer = move.client.create_producer(TOPIC, producer_name="p")
    assert producer.last_sequence_id() == 9
    producer.close()
    producer = move.client.create_producer(TOPIC, producer_name="p", initial_sequence_id=5)
    for _ in range(4):
        producer.send(b"again")
    producer.send(b"new")
    producer.close()
    assert move.stats(move.b, TOPIC)["entries"] == 11


def test_a_cluster_that_requires_a_token_gets_it(tmp_path: Path) -> None:
    auth = AuthSettings(secret=b"a secret that is long enough for HS256")
    token = jwt.encode({"sub": "a"}, auth.secret, "HS256")
    with migrating(tmp_path, auth=auth) as move:
        move.publish(TOPIC, numbers(3))
        with pytest.raises(PreconditionFailed, match="refused"):
            move.begin()
        ask(move.a, "update_cluster", cluster="b", token=token)
        move.begin()
        move.reaches("done")
        assert move.stats(move.b, TOPIC)["entries"] == 3
        with pytest.raises(Unauthorized):
            Admin(move.b.admin_url).request("GET", "velaray/arrivals/acme")


class Stage:
    """Something is done once, when a migration is about to leave a phase, or has just left it."""

    def __init__(self, patch: pytest.MonkeyPatch, phase: Phase, when: str) -> None:
        self.done = False
        self._advance = Driver._advance
        self._phase, self._when = phase, when
        patch.setattr(Driver, "_advance", self._advancing())

    def _advancing(self) -> Any:
        stage = self

        async def advance(driver: Driver, phase: Phase) -> None:
            leaving = driver.migration["phase"] == stage._phase and not stage.done
            if leaving and stage._when == "before":
                stage.done = True
                await stage.act(driver)
            await stage._advance(driver, phase)
            if leaving and stage._when == "after":
                stage.done = True
                await stage.act(driver)

        return advance

    async def act(self, driver: Driver) -> None:
        """The catalog is killed, and with it who drives."""
        driver.actor_system.kill(ActorKey.catalog())  # type: ignore[attr-defined]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("phase", WAY)
def test_a_migration_continues_after_any_kill_in_any_phase(
    move: Move,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    phase: Phase,
    when: str,
) -> None:
    stage = Stage(monkeypatch, phase, when)
    with Publishing(move.client, TOPIC) as publishing:
        publishing.goes_on(5)
        move.begin()
        move.reaches("done")
        publishing.goes_on(5)
    assert stage.done
    assert move.stats(move.b, TOPIC)["entries"] == publishing.confirmed
    assert move.message_status(move.a)["topics"] == []
    assert received(move.subscribe(TOPIC), publishing.confirmed) == numbers(publishing.confirmed)
    gc.collect()  # asyncio reports an error that nothing has read when it collects the task
    assert "never retrieved" not in caplog.text


class RollingBack(Stage):
    """Somebody has the tenant stay."""

    async def act(self, driver: Driver) -> None:
        await driver.catalog(RollBackMigration("acme", "asked to"))


@pytest.mark.parametrize("found", [(), ("acme", "acme/n")])
@pytest.mark.parametrize("phase", WAY[:3])
def test_an_undecided_migration_is_rolled_back_without_a_trace(
    move: Move, monkeypatch: pytest.MonkeyPatch, phase: Phase, found: tuple[str, ...]
) -> None:
    if found:
        create("acme/n", move.b)
    ttl = {"namespace": "acme/n", "name": "messageTTL", "value": b"500"}
    ask(move.a, "set_policy", **ttl)
    RollingBack(monkeypatch, phase, "before")
    before = move.message_status(move.b)
    with Publishing(move.client, TOPIC) as publishing:
        publishing.goes_on(5)
        move.begin()
        move.reaches("rolled back")
        publishing.goes_on(5)
    assert move.status()["why"] == "asked to"
    assert move.message_status(move.b) == before
    assert move.home(move.a) == "a" and move.home(move.b) == "b"
    assert move.stats(move.a, TOPIC)["entries"] == publishing.confirmed
    monkeypatch.undo()
    move.begin()
    move.reaches("done")
    assert received(move.subscribe(TOPIC), publishing.confirmed) == numbers(publishing.confirmed)


def test_a_decided_migration_is_not_rolled_back(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    RollingBack(monkeypatch, Phase.DECIDED, "before")
    move.publish(TOPIC, numbers(1))
    move.begin()
    move.reaches("done")
    with pytest.raises(Conflict, match="has moved to cluster b"):
        move.roll_back()


@pytest.mark.parametrize("phase", WAY)
def test_a_migration_waits_for_an_unreachable_target(
    move: Move, monkeypatch: pytest.MonkeyPatch, phase: Phase
) -> None:
    monkeypatch.setattr(migrations, "LAST_PAUSE_S", 0.5)
    stage = GoingAway(monkeypatch, phase, "before")
    stage.move = move
    move.publish(TOPIC, numbers(20))
    move.begin()
    wait_until(lambda: stage.gone is not None, 30)
    if phase in (Phase.BEGUN, Phase.REPLICATING, Phase.FENCED):
        wait_until(lambda: move.phase() != phase, 30)
    stage.gone.__exit__(None, None, None)
    move.reaches("done")
    assert received(move.subscribe(TOPIC), 20) == numbers(20)


class GoingAway(Stage):
    """The target can't be reached any more."""

    move: Move
    gone: Any = None

    async def act(self, driver: Driver) -> None:
        import asyncio

        gone = away(self.move.b)
        await asyncio.to_thread(gone.__enter__)
        self.gone = gone


def test_clients_continue_at_the_source_if_the_target_is_lost_during_the_fence(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "LAST_PAUSE_S", 0.2)
    monkeypatch.setattr(migrations, "FENCE_PATIENCE_S", 1.0)
    stage = GoingAway(monkeypatch, Phase.REPLICATING, "after")
    stage.move = move
    with Publishing(move.client, TOPIC) as publishing:
        publishing.goes_on(5)
        move.begin()
        move.reaches("rolling back")
        publishing.goes_on(5)
        assert "kept away for too long" in move.status()["why"]
        stage.gone.__exit__(None, None, None)
        move.reaches("rolled back")
    assert move.stats(move.a, TOPIC)["entries"] == publishing.confirmed
    assert not move.message_status(move.b)["tenant"]


def test_metadata_created_during_a_migration_moves(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    making = Making(monkeypatch, Phase.REPLICATING, "before")
    move.publish(TOPIC, numbers(1))
    move.begin()
    move.reaches("done")
    assert making.done
    assert move.message_status(move.b)["topics"] == [TOPIC, "persistent://acme/n/u"]
    namespace = ask(move.b, "policies", namespace="acme/n")
    assert namespace == {"messageTTL": 500}


class Making(Stage):
    """A topic and a policy come into being."""

    async def act(self, driver: Driver) -> None:
        await driver.catalog(CreateTopic("persistent://acme/n/u"))
        await driver.catalog(SetPolicy("messageTTL", b"500", namespace="acme/n"))


def test_a_tenant_taken_over_by_the_target_does_not_move_any_more(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "LAST_PAUSE_S", 0.2)
    monkeypatch.setattr(Driver, "_is_close", _never)
    move.publish(TOPIC, numbers(1))
    move.begin()
    move.reaches("replicating")
    settle("acme", "b", move.b)
    wait_until(lambda: "taken over" in move.status()["detail"].get("problem", ""), 30)
    move.roll_back()
    move.reaches("rolled back")
    assert move.message_status(move.b)["topics"] == [TOPIC]
