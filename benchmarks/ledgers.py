"""How fast a topic of many ledgers is deleted, and what others who publish notice of it.

A cluster on Ray, defaults. The topic's partition writes one ledger, as ever; copies of it, each
with a sound header of its own, become the topic's other ledgers, and one manifest lists them all.
(A partition that rolls over so often takes minutes.) Deleting it is the ordinary call.

All the time another client publishes to another topic: the official client, in a process of its
own. Every receipt counts for the phase in which its message was sent.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import velaray
from benchmarks.contract import UNBATCHED
from benchmarks.loads.clock import pace, percentile, started_ns
from benchmarks.model import Result, Samples, Verdict
from benchmarks.options import Options
from benchmarks.processes import Usage, usage
from benchmarks.rig import running_cluster
from benchmarks.systems import official_client
from velaray.cluster import Cluster
from velaray.events.ids import ActorKey, TopicName
from velaray.geo.actor_kinds import make_actor
from velaray.journal.frames import LEDGER_HEADER_READ, decode_ledger_header, encode_ledger_header
from velaray.journal.manifest import decode_manifest
from velaray.journal.store import LedgerStore
from velaray.topology.ray_host import make_actor_system

LEDGERS = 10_000
RATE = 500
SIZE = 100
QUIET_S = 15.0
WITHIN_S = 600.0
LIMIT = 1.5
SHARES = (50.0, 99.0)
UNDISTURBED, DELETING = "undisturbed", "during the deletion"
_MESSAGES = 100
_AT_ONCE = 64
_LOOK_EVERY_S = 0.02


def run(options: Options) -> Result:
    """Every round deletes another topic of as many ledgers."""
    samples = Samples()
    with (
        running_cluster(placement="dedicated") as cluster,
        _publishing(cluster.service_url) as publisher,
    ):
        for number in range(options.rounds):
            _round(cluster, publisher, f"persistent://public/default/big-{number}", samples)
    result = Result(
        name="ledgers",
        settings={
            "topic": f"one partition, {LEDGERS:,} ledgers of some KiB, of which one was copied",
            "deleting": "from the call to the last file gone; one deleter, defaults",
            "publishing": f"{RATE} messages of {SIZE} B a second to another topic, unbatched, the"
            " official client in a process of its own; sent until acknowledged",
            UNDISTURBED: f"{QUIET_S:g} s before the call",
        },
        baseline=UNDISTURBED,
        rows=samples.rows(),
    )
    for row in result.rows:
        ratio = result.ratio(row)
        if row.measure == "receipt p99" and ratio is not None:
            goal = "publishing elsewhere, p99 during the deletion over undisturbed"
            result.verdicts.append(Verdict(goal, ratio, LIMIT))
    return result


def _round(cluster: Cluster, publisher: Publisher, topic: str, samples: Samples) -> None:
    directory = asyncio.run(_prepare(cluster, topic))
    os.sync()
    threading.Event().wait(1.0)
    phases = [time.perf_counter_ns()]
    threading.Event().wait(QUIET_S)
    phases.append(time.perf_counter_ns())
    spent = _spent(cluster)
    velaray.Admin(cluster.admin_url, timeout_s=WITHIN_S).delete_topic(topic, force=True)
    answered = time.perf_counter_ns()
    _wait_until_gone(directory)
    phases.append(time.perf_counter_ns())
    after = _spent(cluster)
    took = [(end - phases[1]) / 1e9 for end in (answered, phases[2])]
    case = f"a topic of {LEDGERS:,} ledgers"
    samples.add(case, "velaray", "the call", "s", took[0])
    samples.add(case, "velaray", "all of it", "s", took[1])
    samples.add(case, "velaray", "deleted", "ledgers/s", LEDGERS / took[1])
    for kind, used in after.items():
        share = (used - spent.get(kind, Usage(0.0, 0))).cpu_s / took[1]
        samples.add(case, "velaray", f"CPU of {kind}", "cores", share)
    for subject, begin, end in zip((UNDISTURBED, DELETING), phases, phases[1:], strict=False):
        values = publisher.taken(begin, end)
        for share, value in zip(SHARES, values, strict=True):
            samples.add("publishing elsewhere", subject, f"receipt p{share:g}", "ms", value / 1e6)


def _spent(cluster: Cluster) -> dict[str, Usage]:
    """What the actors of each kind have used; those of the system's topics apart."""
    found: dict[str, Usage] = {}
    for actor in cluster.actors():
        key = str(actor["key"])
        kind = key.split("/")[0] + (" of the system" if "/pulsar/system/" in key else "")
        used, more = found.get(kind, Usage(0.0, 0)), usage([int(actor["pid"])])
        found[kind] = Usage(used.cpu_s + more.cpu_s, used.written + more.written)
    return found


def _wait_until_gone(directory: Path) -> None:
    # The journal's directory goes with its last ledger.
    deadline = time.monotonic() + WITHIN_S
    while directory.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{directory} is still there")
        threading.Event().wait(_LOOK_EVERY_S)


# -- the topic -------------------------------------------------------------------------


async def _prepare(cluster: Cluster, topic: str) -> Path:
    """Make the topic; returns the directory of its partition's journal."""
    with velaray.Client(cluster.service_url) as client, client.create_producer(topic) as producer:
        for _ in range(_MESSAGES):
            producer.send(b"x" * SIZE)
    actor_system = make_actor_system(cluster.config, make_actor)
    try:
        journals = await actor_system.store.list_journals()
        keys = [ActorKey.parse(text) for text in journals if text.startswith("partition/")]
        (key,) = [key for key in keys if key.topic_name == TopicName.parse(topic)]
        await actor_system.dismiss(key)
        await _multiply(actor_system.store, key.text())
        return Path(actor_system.store.location(key.text())).parent
    finally:
        actor_system.drop_rpc()
        await actor_system.store.close()


async def _multiply(store: LedgerStore, journal: str) -> None:
    """Give the journal, which has no owner now, copies of its ledger."""
    stored = await store.read_manifest(journal)
    assert stored is not None
    manifest = decode_manifest(journal, stored.data)
    info = replace(manifest.ledgers[-1], sealed=True, sealed_ms=1)
    raw = await store.read(journal, info.ledger_id, 0, await store.size(journal, info.ledger_id))
    header = decode_ledger_header(journal, raw[:LEDGER_HEADER_READ])
    index = await store.read_index(journal, info.ledger_id) or b""
    first = manifest.next_index
    ids = [manifest.ledger_id(first + number) for number in range(LEDGERS - len(manifest.ledgers))]

    async def copy(ledger_id: int) -> None:
        own = encode_ledger_header(ledger_id, journal, header.epoch, header.salt)
        writer = await store.create_ledger(journal, ledger_id, own)
        await writer.append([raw[header.size :]])
        await writer.close()
        await store.write_index(journal, ledger_id, index)

    for start in range(0, len(ids), _AT_ONCE):
        await asyncio.gather(*map(copy, ids[start : start + _AT_ONCE]))
    copies = (replace(info, ledger_id=each) for each in ids)
    many = replace(manifest, next_index=first + len(ids), ledgers=(*manifest.ledgers, *copies))
    await store.write_manifest(journal, stored.version, many.encode())


# -- publishing ------------------------------------------------------------------------


@dataclass(slots=True)
class Publisher:
    """The process that publishes, as who measures sees it."""

    pipe: Connection

    def taken(self, begin_ns: int, end_ns: int) -> list[float]:
        """The `SHARES` of what messages took, in ns, that were sent within this time.

        Returns when all of them have their receipts. Raises `EOFError` if it has failed."""
        self.pipe.send((begin_ns, end_ns))
        found: list[float] = self.pipe.recv()
        return found


@contextmanager
def _publishing(url: str) -> Iterator[Publisher]:
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=_publish, args=(url, other))
    process.start()
    other.close()
    try:
        pipe.recv()  # it is warm
        yield Publisher(pipe)
    finally:
        pipe.close()
        process.join()


def _publish(url: str, pipe: Connection) -> None:
    """Publish until stopped."""
    taken: list[tuple[int, int]] = []

    def done(payload: bytes) -> None:
        sent = started_ns(payload)
        taken.append((sent, time.perf_counter_ns() - sent))

    with (
        official_client.connected(url) as client,
        official_client.sender(client, "elsewhere", UNBATCHED) as sender,
    ):
        count = 0

        def go_on() -> None:
            nonlocal count
            count += RATE
            pace(RATE, RATE, SIZE, lambda payloads: sender.send_each(payloads, done))

        for _ in range(3):
            go_on()
        pipe.send("ready")
        asked = None
        try:
            while True:
                go_on()
                if asked is None and pipe.poll():
                    asked = pipe.recv()
                    wanted = count
                if asked is not None and len(taken) >= wanted:
                    begin, end = asked
                    found = sorted(ns for sent, ns in taken if begin <= sent < end)
                    pipe.send([percentile(found, share) for share in SHARES])
                    asked = None
        except EOFError:
            return
