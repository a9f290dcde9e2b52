"""Transactions of Pulsar's Java client, as it is; what it does is in java/Transactions.java."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.contract import Absent
from tests.official import java_client
from tests.official.support import LocalServer, Server, create_partitioned
from velaray.broker.partition.session.acknowledgements import AcknowledgementHandlers

SCENARIOS = (
    "messagesComeWithTheCommit",
    "nothingOfAnAbortComes",
    "consumeProcessProduce",
    "cumulativeAcknowledgements",
    "partsOfABatch",
    "acknowledgedTwice",
    "afterTheEnd",
    "verdictsStay",
    "timeouts",
)


@pytest.fixture(scope="module")
def client_path() -> str:
    try:
        return java_client.class_path()
    except Absent as reason:
        pytest.skip(f"no Java client here: {reason}")


def test_every_scenario_passes(client_path: str, local: LocalServer, topic: str) -> None:
    create_partitioned(local, f"{topic}-messagesComeWithTheCommit", 3)
    java_client.run(client_path, "Transactions", local.service_url, topic, *SCENARIOS)


def test_consume_process_produce(client_path: str, server: Server, topic: str) -> None:
    create_partitioned(server, f"{topic}-consumeProcessProduce", 2)
    java_client.run(client_path, "Transactions", server.service_url, topic, "consumeProcessProduce")


def test_an_acknowledgement_during_a_restart_can_be_repeated(
    client_path: str, local: LocalServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_ack, refused = AcknowledgementHandlers.on_ack, []

    def before_the_consumer_is_back(self: AcknowledgementHandlers, command: Any) -> None:
        found = self._consumers.get(command.consumer_id)
        if refused or found is None or not command.HasField("txnid_least_bits"):
            on_ack(self, command)
            return
        refused.append(command)
        self._consumers.remove(found.consumer)
        on_ack(self, command)
        self._consumers.add(found)

    monkeypatch.setattr(AcknowledgementHandlers, "on_ack", before_the_consumer_is_back)
    scenario = "acknowledgedDuringARestart"
    java_client.run(client_path, "Transactions", local.service_url, topic, scenario)
    assert refused
