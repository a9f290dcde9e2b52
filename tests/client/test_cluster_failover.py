"""A cluster is lost, and comes back: clients that know another one go on there, and return."""

import asyncio
from pathlib import Path

import velaray
from tests.support.disaster import PATIENCE_MS, TOPIC, Disaster, goes_on_and_comes_back


def test_a_client_fails_over_to_the_other_cluster_and_back(tmp_path: Path) -> None:
    goes_on_and_comes_back(tmp_path, velaray, {"receipt": True})


def test_operations_of_the_asyncio_client_continue_in_the_other_cluster(
    tmp_path: Path,
) -> None:
    async def work(clusters: Disaster) -> None:
        infos = [velaray.ServiceInfo(each.service_url) for each in (clusters.a, clusters.b)]
        chosen = velaray.AutoClusterFailover(infos[0], infos[1:], 100, failover_threshold=2)
        async with velaray.aio.Client(chosen) as client:
            assert client.get_service_info() is infos[0]
            consumer = await client.subscribe(TOPIC, "s", replicate_subscription_state_enabled=True)
            producer = await client.create_producer(TOPIC, batching_enabled=False)
            sent = [asyncio.create_task(producer.send(b"%d" % number)) for number in range(5)]
            await asyncio.gather(*sent)
            held = [await consumer.receive(PATIENCE_MS) for _ in range(5)]
            await consumer.acknowledge(held[0], receipt=True)
            await asyncio.to_thread(clusters.wait_for_the_rest, 5, 4)
            await asyncio.to_thread(clusters.lose)
            sent = [asyncio.create_task(producer.send(b"%d" % number)) for number in range(5, 8)]
            await consumer.acknowledge_cumulative(held[2], receipt=True)
            await asyncio.gather(*sent)
            assert client.get_service_info() is infos[1]
            got: list[bytes] = []
            while got[-1:] != [b"7"]:
                got.append((await consumer.receive(PATIENCE_MS)).data())
            # Messages that were acknowledged during the outage may be redelivered here first.
            assert got == [b"%d" % number for number in range(8 - len(got), 8)]
            assert 5 <= len(got) <= 7

    with Disaster(tmp_path) as clusters:
        asyncio.run(asyncio.wait_for(work(clusters), 120))
