"""The client's connections."""

import asyncio

import velaray.aio
from velaray.events.ids import ActorKind


def test_connections_to_former_addresses_of_actors_are_dropped(cluster, topic):
    async def main():
        async with velaray.aio.Client(cluster.service_url) as client:
            producer = await client.create_producer(topic)
            for number in range(4):
                await producer.send(b"%d" % number)
                for key in cluster.keys(ActorKind.PARTITION):
                    await asyncio.to_thread(cluster.kill, key)
            await producer.send(b"4")
            assert len(client.core.pool._open) == 2  # the proxy and the partition

    asyncio.run(main())
