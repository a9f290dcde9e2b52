"""Verification of backups whose journals are of different moments, and bugs of verification."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.sim.mutants.backups import BACKUP_MUTANTS
from tests.support.local_cluster import LocalCluster
from velaray.backup import places
from velaray.backup.blobs import FolderBlobs
from velaray.backup.consistency import verify_backup
from velaray.backup.listing import Listing
from velaray.backup.stored_backup import BackupStore, JournalReport
from velaray.cli.journal import MachineFold
from velaray.client.enums import ConsumerType, InitialPosition
from velaray.sync.client import Client

TOPIC, RESULTS = "t", "results"
FEW, ALL = 2, 5
"""The messages of the topic at first, and later."""


@dataclass(slots=True)
class Backups:
    """Backups of two clusters with the same past; their newest transactions end in two ways.

    ``early``: before most messages and the transaction. ``open``: the transaction is open.
    ``committed`` and ``aborted``: it has ended.
    """

    place: Path
    early: Listing
    open: Listing
    committed: Listing
    aborted: Listing

    def problems(self, listing: Listing) -> list[str]:
        """What verification finds."""
        return [each for report in asyncio.run(self._reports(listing)) for each in report.problems]

    async def _reports(self, listing: Listing) -> list[JournalReport]:
        return await verify_backup(BackupStore(FolderBlobs(self.place), listing), MachineFold)


@contextmanager
def running(data: Path) -> Iterator[Client]:
    """A client of a cluster on this data; acknowledged work is stored when it stops."""
    with LocalCluster(data) as cluster, Client(cluster.service_url) as client:
        yield client


def saved(data: Path, place: Path) -> Listing:
    """The listing of a new backup."""
    listing, _ = asyncio.run(places.create(str(data), str(place)))
    return listing


def publish(client: Client, first: int, end: int) -> None:
    with client.create_producer(TOPIC) as producer:
        for number in range(first, end):
            producer.send(b"%d" % number)


def finish(data: Path, place: Path, *, commit: bool) -> tuple[Listing, Listing]:
    """Acknowledge everything, each subscription in its own way, and end a transaction: the backup
    before that end, and the one after it."""
    with running(data) as client:
        publish(client, FEW, ALL)
        transaction = client.new_transaction(60_000)
        for name in ("marked", "single", "pending"):
            consumer = client.subscribe(TOPIC, name, ConsumerType.Shared)
            messages = [consumer.receive(30_000) for _ in range(ALL)]
            match name:
                case "marked":
                    for message in messages:
                        consumer.acknowledge(message, receipt=True)
                case "single":
                    consumer.acknowledge(messages[-1], receipt=True)
                case _:
                    consumer.acknowledge(messages[-1], txn=transaction)
        client.create_producer(RESULTS).send(b"done", txn=transaction)
        before = saved(data, place)
        if commit:
            transaction.commit()
        else:
            transaction.abort()
    return before, saved(data, place)


@pytest.fixture(scope="module")
def backups(tmp_path_factory: pytest.TempPathFactory) -> Backups:
    folder = tmp_path_factory.mktemp("verification")
    place, data, other = folder / "place", folder / "data", folder / "other"
    with running(data) as client:
        for name in ("marked", "single", "pending"):
            client.subscribe(TOPIC, name, initial_position=InitialPosition.Earliest).close()
        client.create_producer(RESULTS).close()
        publish(client, 0, FEW)
        with client.transaction() as first:  # the coordinators exist
            client.create_producer(RESULTS).send(b"first", txn=first)
    early = saved(data, place)
    shutil.copytree(data, other)
    open_, committed = finish(data, place, commit=True)
    _, aborted = finish(other, place, commit=False)
    return Backups(place, early, open_, committed, aborted)


def mixed(listing: Listing, other: Listing, kind: str) -> Listing:
    """A backup with the journals of one kind as they are in another backup."""
    of_other = {key: each for key, each in other.journals.items() if key.startswith(f"{kind}/")}
    assert of_other.keys() <= listing.journals.keys()
    return replace(listing, journals={**listing.journals, **of_other})


def without_ledgers(listing: Listing) -> Listing:
    """A backup whose partitions have the ledgers of no backup."""
    journals = {
        key: replace(each, ledgers={}) if key.startswith("partition/") else each
        for key, each in listing.journals.items()
    }
    return replace(listing, journals=journals)


MIXTURES: dict[str, tuple[Callable[[Backups], Listing], dict[str, int]]] = {
    "partitions of an earlier moment": (
        lambda found: mixed(found.open, found.early, "partition"),
        {f"acknowledges entries up to {ALL}, but its partition ends at {FEW}": 3},
    ),
    "participants of an earlier moment": (
        lambda found: mixed(
            mixed(found.committed, found.open, "partition"), found.open, "subscription"
        ),
        {"is open here, but committed at its coordinator": 2},
    ),
    "coordinators of an earlier moment": (
        lambda found: mixed(found.committed, found.early, "coordinator"),
        {"is committed here, but unknown at its coordinator": 2},
    ),
    "coordinators of another outcome": (
        lambda found: mixed(found.committed, found.aborted, "coordinator"),
        {"is committed here, but aborted at its coordinator": 2},
    ),
    "coordinators that know of no transaction": (
        lambda found: mixed(found.open, found.early, "coordinator"),
        {"is open here, but unknown at its coordinator": 2},
    ),
    "manifests without ledgers": (
        lambda found: without_ledgers(found.committed),
        {"the manifest and the listing differ": 2},
    ),
}
"""Backups whose journals contradict each other: how each is made, and what is found how often."""


def missed(backups: Backups) -> list[str]:
    """The mixtures whose contradictions aren't all found."""
    found = []
    for name, (make, expected) in MIXTURES.items():
        problems = backups.problems(make(backups))
        for words, count in expected.items():
            if sum(words in problem for problem in problems) != count:
                found.append(f"{name}: {problems}")
    return found


def test_journals_of_one_moment_are_sound(backups: Backups) -> None:
    for listing in (backups.early, backups.open, backups.committed, backups.aborted):
        assert backups.problems(listing) == []


def test_every_contradiction_is_found(backups: Backups) -> None:
    assert missed(backups) == []


@pytest.mark.parametrize("name", BACKUP_MUTANTS)
def test_bugs_of_verification_are_found(backups: Backups, name: str) -> None:
    with BACKUP_MUTANTS[name].applied():
        assert missed(backups) != []
