"""Explanations of entries that are replicated."""

from __future__ import annotations

from pathlib import Path

import pytest

import velaray
from tests.console.visiting import Visitor
from tests.topology.replicating import clusters, received, soon
from velaray.client.admin import Admin

TOPIC = "persistent://public/default/t"
REPLICATOR = "pulsar.repl.west"
NOWHERE = {"service_url": "pulsar://127.0.0.1:1"}


@pytest.mark.parametrize("stored", [True, False])
def test_an_entry_is_explained_as_stored_in_the_other_cluster(tmp_path: Path, stored: bool) -> None:
    with clusters(tmp_path, "east", "west") as (east, west):
        east.partition(TOPIC)
        west.partition(TOPIC)
        east.replicate(TOPIC, {"west": west.describe(**({} if stored else NOWHERE))})
        with velaray.Client(east.local.service_url) as client:
            message = client.create_producer(TOPIC).send(b"x")
        admin, visitor = Admin(east.local.admin_url), Visitor(east.local.admin_url)
        soon(lambda: admin.topics.stats(TOPIC)["replication"])
        if stored:
            assert received(west.subscribe(TOPIC), 1) == [b"x"]
            told = "it is in cluster west"
            soon(lambda: admin.explain(TOPIC, REPLICATOR, message)["now"]["text"] == told)
            facts = admin.explain(TOPIC, REPLICATOR, message)["facts"]
            assert facts[0]["what"] == "published"
            assert facts[-1]["text"] == "cluster west has stored it"
        at = f"{message.ledger_id()}:{message.entry_id()}"
        shown = visitor.get(f"/console/message?topic={TOPIC}&id={at}").text
        assert "Replication to west" in shown
        assert ("it is in cluster west" in shown) is stored
