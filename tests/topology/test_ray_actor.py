"""The Ray classes' own conduct, without Ray: starting, leaving, and being watched."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from velaray.admin import proxy_actor
from velaray.admin.api import admin_app
from velaray.admin.proxy_actor import ProxyActor
from velaray.broker.catalog.catalog_actor import CatalogActor
from velaray.events.ids import ActorKey
from velaray.geo.actor_kinds import make_actor
from velaray.journal.errors import CorruptJournal, JournalError
from velaray.journal.files import FileStore
from velaray.topology import ray_system
from velaray.topology.actor_system import Unreachable
from velaray.topology.config import ClusterConfig
from velaray.topology.ownership import take_ownership
from velaray.topology.ray_system import VelarayActor
from velaray.topology.sent_config import sent, store_secrets


class Exited(Exception):
    """What `ray.actor.exit_actor` does here."""


@pytest.fixture
def config(tmp_path: Path) -> ClusterConfig:
    incarnation = asyncio.run(take_ownership(FileStore(str(tmp_path)), "standalone"))
    found = ClusterConfig(str(tmp_path), incarnation, b"key", service_port=0, admin_port=0)
    store_secrets(found)
    return found


@pytest.fixture(autouse=True)
def exits(monkeypatch: pytest.MonkeyPatch) -> None:
    def exit_actor() -> None:
        raise Exited

    monkeypatch.setattr(ray.actor, "exit_actor", exit_actor)
    monkeypatch.setattr(ray_system, "collect_garbage_rarely", lambda: None)
    monkeypatch.setattr(ray_system, "_WATCH_S", 0.01)
    monkeypatch.setattr(proxy_actor, "check_every_s", lambda config: 0.01)


def with_actor(
    config: ClusterConfig, scenario: Callable[[VelarayActor], Awaitable[None]]
) -> list[BaseException]:
    """Run ``scenario`` with the catalog's actor; returns what it died of."""
    died: list[BaseException] = []

    async def main() -> None:
        actor = VelarayActor(ActorKey.catalog().text(), sent(config), make_actor)
        actor._actor_system.exit = lambda key, error: died.append(error)  # type: ignore[method-assign]
        await scenario(actor)
        actor._watching.cancel()

    asyncio.run(main())
    return died


def test_a_stopping_actor_gives_its_address_to_no_caller(
    config: ClusterConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(actor: VelarayActor) -> None:
        await actor.address()
        may_stop = asyncio.Event()
        stop = CatalogActor.stop

        async def slow_stop(hosted: CatalogActor) -> None:
            await may_stop.wait()
            await stop(hosted)

        monkeypatch.setattr(CatalogActor, "stop", slow_stop)
        leaving = asyncio.create_task(actor.retire(force=True))
        while not actor._retiring:
            await asyncio.sleep(0)
        with pytest.raises(Unreachable, match="is stopping"):
            await actor.address()
        may_stop.set()
        with pytest.raises(Exited):
            await leaving

    assert with_actor(config, scenario) == []


def test_an_actor_that_is_dismissed_while_it_starts_stops(
    config: ClusterConfig,
) -> None:
    async def scenario(actor: VelarayActor) -> None:
        starting = asyncio.create_task(actor.address())
        await asyncio.sleep(0)
        await actor.retire()  # not forced: it is wanted just now
        with pytest.raises(Exited):
            await actor.retire(force=True)
        await starting

    assert with_actor(config, scenario) == []


def test_an_actor_that_fails_to_stop_gracefully_exits(
    config: ClusterConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing_stop(hosted: CatalogActor) -> None:
        raise JournalError("the disk is gone")

    async def scenario(actor: VelarayActor) -> None:
        await actor.address()
        monkeypatch.setattr(CatalogActor, "stop", failing_stop)
        with pytest.raises(Exited):
            await actor.retire(force=True)
        actor._actor.abort()  # type: ignore[union-attr]

    (died,) = with_actor(config, scenario)
    assert "the disk is gone" in str(died)


def test_an_actor_whose_watch_fails_exits(
    config: ClusterConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreadable(store: Any, config: ClusterConfig) -> None:
        raise OSError("too many open files")

    async def scenario(actor: VelarayActor) -> None:
        monkeypatch.setattr(ray_system, "check_ownership", unreadable)
        await asyncio.wait([actor._watching], timeout=5)
        await asyncio.sleep(0)

    (died,) = with_actor(config, scenario)
    assert "too many open files" in str(died)


def test_a_proxy_that_cannot_start_reports_the_reason(
    config: ClusterConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreadable(store: Any, config: ClusterConfig) -> None:
        raise CorruptJournal("cluster", 0, "not a manifest")

    monkeypatch.setattr(proxy_actor, "check_ownership", unreadable)
    with pytest.raises(CorruptJournal, match="not a manifest"):
        ProxyActor("front-door", sent(config), admin_app)


def test_a_proxy_whose_thread_ends_exits_its_process(
    config: ClusterConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def unreadable(store: Any, config: ClusterConfig) -> None:
        raise OSError("too many open files")

    left = threading.Event()
    ProxyActor("front-door", sent(config), admin_app)
    monkeypatch.setattr(os, "_exit", lambda code: left.set())
    monkeypatch.setattr(proxy_actor, "check_ownership", unreadable)
    assert left.wait(5)
    assert "the proxy stops: too many open files" in caplog.text
