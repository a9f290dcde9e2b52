"""``velaray journal``: inspect and repair journals on disk.

All commands but ``repair`` only read, with or without a running cluster, and don't disturb an actor
that writes meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Any, TypeVar

import click

from velaray.actors.machine import InvariantViolation, digest
from velaray.broker.actor_states import describe, machine_of
from velaray.cli.common import Group, JournalsPlace, Output, with_keys, with_output
from velaray.events.ids import ActorKey
from velaray.journal.checkpoint import Checkpoint
from velaray.journal.encryption.keyring import master_keys_of
from velaray.journal.errors import JournalError
from velaray.journal.replay import checkpoint_of, load_manifest, replay, verify
from velaray.journal.scan import Record
from velaray.journal.store import LedgerStore
from velaray.offline.journal_events import actors_in, event_of, told_of
from velaray.offline.repairing import repair
from velaray.starting import ClusterError, lock_data
from velaray.topology.keyrings import keyring_objects
from velaray.topology.stores import open_store


class Divergent(JournalError):
    """A journal contradicts itself; the text states how and where."""


class MachineFold:
    """Recomputes an actor's state from its history; a `velaray.journal.replay.Fold`."""

    def __init__(self, key: ActorKey) -> None:
        self._machine = machine_of(key)
        self.state = self._machine.initial()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Start from the state of a checkpoint.

        Raises `Divergent` if its digest differs or if it breaks an invariant of its machine.
        """
        self.state = self._machine.restore(checkpoint.segments)
        if self.digest() != checkpoint.digest:
            raise Divergent(
                f"the checkpoint at sequence {checkpoint.sequence} restores to the digest "
                f"{self.digest().hex()}, but says {checkpoint.digest.hex()}"
            )
        self.check(checkpoint.sequence)

    def apply(self, record: Record) -> None:
        """Apply one record. Raises `Divergent` if it holds no known event."""
        self._machine.evolve(self.state, event_of(record.sequence, record.event))

    def digest(self) -> bytes:
        """The digest of the state."""
        return digest(self._machine.snapshot(self.state))

    def check(self, sequence: int) -> None:
        """Raise `Divergent` if the state before event ``sequence`` breaks an invariant."""
        try:
            self._machine.check(self.state)
        except InvariantViolation as error:
            raise Divergent(f"before event {sequence}: {error}") from error


# -- commands ----------------------------------------------------------------------


@click.group(cls=Group)
def journal() -> None:
    """Inspect the journals of actors.

    KEY names an actor, as `velaray journal list` prints it.
    """


def run_reading(work: Coroutine[Any, Any, Any], store: LedgerStore) -> Any:
    """Run ``work``, close ``store`` and return the result."""

    async def closing() -> Any:
        try:
            return await work
        finally:
            await store.close()

    return asyncio.run(closing())


CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_data = click.option(
    "--data",
    type=JournalsPlace(),
    default="velaray-data",
    show_default=True,
    help="Directory of the journals, or URL of their object store.",
)


def with_data(command: CommandT) -> CommandT:
    """Add the options --data and --encryption-keys."""
    return _data(with_keys(command))


@journal.command("list")
@with_data
@with_output
def list_journals(show: Output, data: str) -> None:
    """List the actors that have a journal.

    \b
    Example:
      velaray journal list --data velaray-data
    """
    store = open_store(data)
    rows = [{"key": key} for key in run_reading(actors_in(store), store)]
    show.rows({"key": "KEY"}, rows)


@journal.command("show")
@click.argument("key")
@with_data
@click.option(
    "--from", "first", type=click.IntRange(min=0), default=0, help="Number of the first event."
)
@click.option("--to", "last", type=click.IntRange(min=0), help="Number of the last event.")
@with_output
def show_events(show: Output, key: str, data: str, first: int, last: int | None) -> None:
    """Print the events of KEY's journal, one JSON object a line with -o json.

    \b
    Example:
      velaray journal show coordinator/0 --from 100 -o json
    """
    store = open_store(data)
    run_reading(_show(show, store, ActorKey.parse(key).text(), first, last), store)


async def _show(show: Output, store: LedgerStore, key: str, first: int, last: int | None) -> None:
    parsed = ActorKey.parse(key)
    start = await _ledger_before(store, key, first)
    async for record in replay(store, key, start):
        if last is not None and record.sequence > last:
            break
        if record.sequence < first:
            continue
        told = told_of(parsed, record)
        position = "" if record.position is None else "{}:{}".format(*record.position)
        if show.as_json:
            line = {
                "sequence": record.sequence,
                "time": record.at_ms,
                "position": position or None,
                "event": told.name,
                "fields": told.fields,
                "blobBytes": told.blob_bytes,
            }
            click.echo(json.dumps(line, ensure_ascii=False))
        else:
            place = f"  [{position}, {told.blob_bytes} bytes]" if position else ""
            click.echo(f"{record.sequence:>8}  {told.name}  {told.json()}{place}")


async def _ledger_before(store: LedgerStore, key: str, sequence: int) -> int | None:
    """The last ledger that starts at or before an event; None if there is no ledger."""
    found = None
    for info in (await load_manifest(store, key)).ledgers:
        if info.first_sequence <= sequence or found is None:
            found = info.ledger_id
    return found


_COLUMNS = {
    "key": "KEY",
    "ledger_id": "LEDGER",
    "sealed": "SEALED",
    "first_sequence": "FIRST EVENT",
    "records": "EVENTS",
    "entries": "ENTRIES",
    "damaged_entries": "DAMAGED ENTRIES",
    "bytes": "BYTES",
    "segments": "SEGMENTS",
    "kept_segments": "KEPT",
    "opened": "OPENED",
    "problems": "PROBLEMS",
}


@journal.command("verify")
@click.argument("key", required=False)
@with_data
@with_output
def verify_journal(show: Output, key: str | None, data: str) -> None:
    """Check KEY's journal (all of them without KEY): checksums, order, digests, invariants.

    The command replays every event and compares the resulting state with the digests of the actor's
    checkpoints. It fails if they differ. A journal that can't be read at all doesn't stop the
    check of the others. Without keys it checks the frames of encrypted journals, and replays none
    of their events.

    \b
    Example:
      velaray journal verify
    """
    store = open_store(data)
    rows = run_reading(_verify(store, key), store)
    show.rows(_COLUMNS, rows)
    closed = sum(row["opened"] is False for row in rows)
    if closed and not show.as_json:
        click.echo(
            f"{closed} ledgers are encrypted, and no keys are given: their frames were checked, "
            "and not their events"
        )
    broken = sorted({row["key"] for row in rows if row["problems"]})
    if broken:
        raise click.ClickException(f"not sound: {', '.join(broken)}")


async def _verify(store: LedgerStore, key: str | None) -> list[dict[str, Any]]:
    keys = await actors_in(store) if key is None else [ActorKey.parse(key).text()]
    rows = []
    for text in keys:
        try:
            fold = MachineFold(ActorKey.parse(text))
            reports = await verify(store, text, fold, keyless=True)
        except JournalError as error:
            if key is not None:
                raise
            rows.append({**dict.fromkeys(_COLUMNS), "key": text, "problems": [str(error)]})
            continue
        for report in reports:
            problems = [f"{report.file}: {problem}" for problem in report.problems]
            rows.append({"key": text, **asdict(report), "problems": problems})
    return rows


@journal.command("keys")
@with_data
@with_output
def list_keys(show: Output, data: str) -> None:
    """Count the ledgers of all journals, and the objects of the keyring of erasable namespaces, by
    the master key with which they are encrypted.

    A key that isn't listed isn't needed any more, except by backups. No key is needed for this.

    \b
    Example:
      velaray journal keys --data velaray-data
    """
    store = open_store(data)
    rows = run_reading(_ledgers_by_key(store), store)
    columns = {"key": "KEY", "ledgers": "LEDGERS", "bytes": "BYTES", "keyring": "KEYRING"}
    show.rows(columns, rows)


async def _ledgers_by_key(store: LedgerStore) -> list[dict[str, Any]]:
    found: dict[str, list[int]] = {}
    for text in await actors_in(store):
        for info in (await load_manifest(store, text)).ledgers:
            found.setdefault(info.key_id, []).append(info.bytes)
    objects = keyring_objects(store)
    keyring = {} if objects is None else await master_keys_of(objects)
    return [
        {
            "key": key_id or "(not encrypted)",
            "ledgers": len(found.get(key_id, ())),
            "bytes": sum(found.get(key_id, ())),
            "keyring": keyring.get(key_id, 0),
        }
        for key_id in sorted(found.keys() | keyring.keys())
    ]


@journal.command("repair")
@click.argument("key", required=False)
@with_data
@click.option("--undo", is_flag=True, help="Deliver all skipped entries again.")
@with_output
def repair_journal(show: Output, key: str | None, data: str, undo: bool) -> None:
    """Skip the damaged entries of partition KEY (all partitions without KEY), so that consumers
    get those behind them.

    Stop the cluster first. Each skip is an event in the journal of the partition, the damaged bytes
    stay as they are. After the file is restored from a copy, --undo removes all skips.

    Exits with 3 if a journal is damaged in another way.

    \b
    Example:
      velaray journal repair --data velaray-data
    """
    try:
        lock = lock_data(data)
    except ClusterError as error:
        raise click.ClickException(str(error)) from error
    with lock:
        store = open_store(data)
        rows = run_reading(repair(store, key, undo=undo), store)
    columns = {"key": "KEY", "first": "FIRST", "last": "LAST", "entries": "ENTRIES", "why": "WHY"}
    show.rows(columns, [asdict(row) for row in rows])
    if any(row.entries == 0 for row in rows):
        raise click.exceptions.Exit(3)


@journal.command("replay")
@click.argument("key")
@with_data
@click.option(
    "--to",
    "last",
    type=click.IntRange(min=0),
    help="Show the state after this event; default: the newest one.",
)
@with_output
def replay_journal(show: Output, key: str, data: str, last: int | None) -> None:
    """Print the state of actor KEY after an event.

    \b
    Example:
      velaray journal replay coordinator/0 --to 120
    """
    store = open_store(data)
    parsed = ActorKey.parse(key)
    event, fold = run_reading(_replay(store, parsed, last), store)
    facts = {"key": key, "event": event, "digest": fold.digest().hex()}
    found = {**facts, "state": describe(fold.state)}
    if show.as_json:
        show.value(found)
        return
    rows = [{"field": name, "value": value} for name, value in _flat(found)]
    show.rows({"field": "FIELD", "value": "VALUE"}, rows)


async def _replay(store: LedgerStore, key: ActorKey, last: int | None) -> tuple[int, MachineFold]:
    """The state after event ``last`` (None: the newest) and that event's number."""
    text, fold = key.text(), MachineFold(key)
    manifest = await load_manifest(store, text)
    if not manifest.ledgers:
        raise Divergent(f"the journal of {text} has no events yet")
    start = manifest.ledgers[-1].ledger_id
    if last is not None:
        oldest = manifest.ledgers[0].first_sequence
        if last + 1 < oldest:
            raise Divergent(f"events before {oldest} of {text} are no longer kept")
        start = await _ledger_before(store, text, last + 1) or start
    checkpoint = await checkpoint_of(store, text, start)
    fold.restore(checkpoint)
    event = checkpoint.sequence - 1
    async for record in replay(store, text, start):
        if last is not None and record.sequence > last:
            break
        fold.apply(Record(record.sequence, record.position, record.event))
        event = record.sequence
    if last is not None and event < last:
        raise Divergent(f"{text} has no event {last}: the newest is {event}")
    fold.check(event + 1)
    return event, fold


def _flat(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """The leaves of nested objects, with their paths."""
    if not isinstance(value, dict) or not value:
        return [(name, value)]
    found = []
    for key, inner in value.items():
        found += _flat(inner, f"{name}.{key}" if name else str(key))
    return found
