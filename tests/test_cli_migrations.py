"""``velaray tenants migrate`` and ``migration``, as people run them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.topology.migrating import Move, migrating, numbers
from tests.topology.replicating import received
from velaray.cli.app import main
from velaray.geo.tenant_migration.migration_driver import Driver

TOPIC = "persistent://acme/n/t"
Run = Callable[..., Result]


@pytest.fixture
def move(tmp_path: Path) -> Iterator[Move]:
    with migrating(tmp_path) as found:
        found.publish(TOPIC, numbers(3))
        yield found


@pytest.fixture
def run(move: Move) -> Run:
    def invoke(*arguments: str, code: int = 0) -> Result:
        where = {"VELARAY_ADMIN_URL": move.a.admin_url}
        result = CliRunner(env=where).invoke(main, ["tenants", *arguments])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return invoke


def test_a_tenant_is_migrated_and_its_migration_shown(run: Run, move: Move) -> None:
    found = json.loads(run("migrate", "acme", "--to", "b", "--dry-run", "-o", "json").stdout)
    assert (found["topics"], found["entries"], found["problems"]) == (1, 3, [])
    assert "acme can move to b" in run("migrate", "acme", "--to", "b", "--dry-run").output
    assert "has no migration" in run("migration", "acme", code=1).output
    said = run("migrate", "acme", "--to", "b").output
    assert "switched" in said and "clients were kept away for" in said
    found = json.loads(run("migration", "acme", "-o", "json").stdout)
    assert (found["phase"], found["over"]) == ("done", True)
    assert received(move.subscribe(TOPIC), 3) == numbers(3)


def test_obstacles_are_listed(run: Run, move: Move) -> None:
    move.publish(TOPIC, numbers(1))
    assert "is this one" in run("migrate", "acme", "--to", "a", code=1).output
    assert "--to CLUSTER" in run("migrate", "acme", code=2).output
    assert "--to CLUSTER" in run("migrate", "acme", "--to", "b", "--roll-back", code=2).output
    assert "isn't moving" in run("migrate", "acme", "--roll-back", code=1).output


def test_a_migration_is_rolled_back(run: Run, move: Move, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(driver: Driver) -> bool:
        return False

    monkeypatch.setattr(Driver, "_is_close", never)
    said = run("migrate", "acme", "--to", "b", "--no-wait").output
    assert "acme to b:" in said
    move.reaches("replicating")
    said = run("migrate", "acme", "--roll-back").output
    assert "rolled back: asked to" in said
    assert not move.message_status(move.b)["tenant"]
