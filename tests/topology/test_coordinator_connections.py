"""How clients find coordinators and connect to them, over the wire."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.official.raw import RawClient
from tests.support.local_cluster import LocalCluster
from tests.topology.test_transactions import COORDINATOR, Setting, run
from tests.topology.test_transactions_completion import superseded
from velaray.broker.coordinator.coordinators import ASSIGN, ensure_coordinators
from velaray.wire import pulsar_pb2 as pb

PATIENCE_S = 20.0


async def coordinators(proxy: RawClient) -> int:
    """How many there are, as the assign topic's partition metadata says."""
    asked = pb.CommandPartitionedTopicMetadata(topic=str(ASSIGN), request_id=1)
    proxy.send(asked)
    answer = await proxy.next(pb.CommandPartitionedTopicMetadataResponse)
    assert answer.response == pb.CommandPartitionedTopicMetadataResponse.Success
    return int(answer.partitions)


async def owner(proxy: RawClient, number: int) -> RawClient:
    """A connection to where the look-up of a coordinator's partition leads."""
    proxy.send(pb.CommandLookupTopic(topic=str(ASSIGN.of_partition(number)), request_id=2))
    answer = await proxy.next(pb.CommandLookupTopicResponse)
    assert answer.response == pb.CommandLookupTopicResponse.Connect
    host, port = answer.brokerServiceUrl.removeprefix("pulsar://").split(":")
    return await RawClient.connect(host, int(port))


async def joined(client: RawClient, number: int) -> pb.CommandTcClientConnectResponse:
    """What a coordinator answers to a client that takes it for this one."""
    client.send(pb.CommandTcClientConnectRequest(request_id=3, tc_id=number))
    answer = await client.next(pb.CommandTcClientConnectResponse)
    assert isinstance(answer, pb.CommandTcClientConnectResponse)
    return answer


def test_metadata_and_lookup_of_the_assign_topic_find_each_coordinator(
    tmp_path: Path,
) -> None:
    with LocalCluster(tmp_path) as cluster:

        async def work() -> None:
            proxy = await RawClient.connect("127.0.0.1", cluster.proxy.port)
            assert await coordinators(proxy) == 1
            await ensure_coordinators(cluster.actor_system, 3)
            assert await coordinators(proxy) == 3
            for number in range(3):
                found = await joined(await owner(proxy, number), number)
                assert not found.HasField("error")
            proxy.send(pb.CommandLookupTopic(topic=str(ASSIGN.of_partition(3)), request_id=2))
            answer = await proxy.next(pb.CommandLookupTopicResponse)
            assert answer.response == pb.CommandLookupTopicResponse.Failed
            assert await coordinators(proxy) == 3

        cluster.run(work())


def test_a_client_at_the_wrong_coordinator_must_look_up_again() -> None:
    async def scenario(setting: Setting) -> None:
        refused = await joined(setting.coordinator, 4)
        assert refused.error == pb.TransactionCoordinatorNotFound
        assert "coordinator 4 is not served here: look it up again" in refused.message
        assert not (await joined(setting.coordinator, 3)).HasField("error")
        remote = pb.CommandEndTxn(txnid_most_bits=4, txnid_least_bits=0, txn_action=pb.COMMIT)
        answer = await setting.ask(remote, pb.CommandEndTxnResponse)
        assert answer.error == pb.TransactionCoordinatorNotFound
        assert "coordinator 4 is not served here: look it up again" in answer.message

    run(scenario)


def test_only_the_newest_owner_of_a_coordinators_journal_answers() -> None:
    async def scenario(setting: Setting) -> None:
        first = await setting.begin()
        await superseded(setting, COORDINATOR)
        setting.coordinator.send(pb.CommandNewTxn(request_id=99, tc_id=3, txn_ttl_millis=60_000))
        await asyncio.wait_for(setting.coordinator.closed.wait(), PATIENCE_S)
        answers = [each for each, _ in setting.coordinator.received]
        begun = [each for each in answers if isinstance(each, pb.CommandNewTxnResponse)]
        assert all(each.HasField("error") for each in begun)
        setting.coordinator = await setting.connect(COORDINATOR)
        assert await setting.begin() > first

    run(scenario)
