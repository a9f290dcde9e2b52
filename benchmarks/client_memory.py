"""The memory that a connection, a producer and a consumer take in the process that serves them.

The clients are idle. Each round has a new process, which comes to rest before each measurement.
"""

from __future__ import annotations

import asyncio

import ray

from benchmarks.entry_loads import RawConnection, connect_raw
from benchmarks.model import Result, Samples, Verdict
from benchmarks.options import Options
from benchmarks.placements import LOCAL, SETTINGS, Placed, placed
from velaray.wire import pulsar_pb2 as pb

COUNT = 2_000
"""How many of each kind."""
TOPICS = [f"persistent://public/default/memory-{number}" for number in range(4)]
AT_ONCE = 50
BUDGETS_KIB = {"connection": 20.0, "producer": 4.0, "consumer": 10.0}
MEASURE = "private memory of each"
_STEADY = 64 << 10
"""The memory is at rest if it changes by less in `_REST_S`, in bytes."""
_REST_S = 1.0
_WITHIN_S = 120.0


def run(options: Options) -> Result:
    """Growth divided by the number of clients, in KiB."""
    samples = Samples()
    for _ in range(options.rounds):
        with placed(LOCAL) as cluster:
            for kind, kib in asyncio.run(_grown(cluster)).items():
                samples.add(kind, LOCAL, MEASURE, "KiB", kib)
    result = Result(
        name="client_memory",
        settings={
            "what": "growth of Private_Clean + Private_Dirty of /proc/PID/smaps_rollup",
            LOCAL: SETTINGS[LOCAL],
            "clients": f"{COUNT} idle connections to one listener, which sent CONNECT; as many "
            f"producers, and consumers of Shared subscriptions, of {len(TOPICS)} topics over one "
            "connection",
            "ray": ray.__version__,
        },
        baseline="",
        rows=samples.rows(),
    )
    median = {row.case: row.median for row in result.rows}
    result.verdicts = [
        Verdict(f"{kind}: KiB of memory", median[kind], limit)
        for kind, limit in BUDGETS_KIB.items()
    ]
    return result


async def _grown(cluster: Placed) -> dict[str, float]:
    """The memory of a client of each kind, in KiB."""
    url, grown = cluster.service_url, {}
    first = [await connect_raw(url, topic) for topic in TOPICS]
    # One of each, so that what all share isn't counted.
    await _produce(first[0], range(len(TOPICS)))
    await _consume(first[0], range(len(TOPICS)))
    before = await _at_rest(cluster)
    for kind, work in (("producer", _produce), ("consumer", _consume)):
        await work(first[0], range(len(TOPICS), len(TOPICS) + COUNT))
        after = await _at_rest(cluster)
        grown[kind] = (after - before) / COUNT / 1024
        before = after
    # Last, since connections that are silent for long are closed.
    connections = list[RawConnection]()
    while len(connections) < COUNT:
        opening = (connect_raw(url, TOPICS[0]) for _ in range(AT_ONCE))
        connections += await asyncio.gather(*opening)
    grown["connection"] = (await _at_rest(cluster) - before) / COUNT / 1024
    for connection in (*connections, *first):
        connection.close()
    return grown


async def _produce(connection: RawConnection, numbers: range) -> None:
    for number in numbers:
        topic = TOPICS[number % len(TOPICS)]
        request = pb.CommandProducer(topic=topic, producer_id=number, request_id=number)
        await connection.ask(request, pb.CommandProducerSuccess)


async def _consume(connection: RawConnection, numbers: range) -> None:
    for number in numbers:
        request = pb.CommandSubscribe(
            topic=TOPICS[number % len(TOPICS)],
            subscription="s",
            subType=pb.CommandSubscribe.Shared,
            consumer_id=number,
            request_id=number,
        )
        await connection.ask(request, pb.CommandSuccess)


async def _at_rest(cluster: Placed) -> int:
    """The private bytes of the process once they don't change any more. Raises `TimeoutError`."""
    async with asyncio.timeout(_WITHIN_S):
        before = -_STEADY
        while abs((now := cluster.private_bytes()) - before) >= _STEADY:
            before = now
            await asyncio.sleep(_REST_S)
    return now
