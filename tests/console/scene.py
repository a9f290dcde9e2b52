"""A cluster with something on every page of the console."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray import AuthenticationToken, Client, ConsumerType
from velaray.client.admin import Admin
from velaray.client.retention_marks import RETENTION_MARK, SPARK
from velaray.client.schema import AvroSchema, Record, String
from velaray.client.schema.record import Integer
from velaray.topology.config import AuditSettings

ORDERS = "persistent://public/default/orders"


class Order(Record):
    """A value of the scene."""

    item = String()
    count = Integer()


@contextmanager
def scene(data: Path, token: str | None = None, **settings: Any) -> Iterator[LocalCluster]:
    """Topics with and without problems, clients that stay connected, an open transaction."""
    proof = None if token is None else AuthenticationToken(token)
    settings = {"undelete_s": 3600, "audit": AuditSettings(), **settings}
    with (
        LocalCluster(data, **settings) as cluster,
        Client(cluster.service_url, authentication=proof) as client,
    ):
        admin = Admin(cluster.admin_url, token=token)
        admin.topics.create("orders")
        admin.topics.create("clicks", partitions=4)
        admin.topics.create("former", partitions=2)
        admin.topics.delete("former")
        admin.subscriptions.create("orders", "billing")
        admin.subscriptions.create("orders", "shipping")
        admin.topics.create("orders-billing-DLQ")
        admin.subscriptions.create("orders-billing-DLQ", "repair")
        admin.subscriptions.create("clicks", "report", properties={RETENTION_MARK: SPARK})
        orders = client.create_producer("orders", schema=AvroSchema(Order), producer_name="shop")
        for number in range(40):
            value = Order(item=["bolts", "nuts", "washers"][number % 3], count=number)
            orders.send(value, {"country": "is"}, f"customer-{number % 7}")
        later = json.loads(admin.schemas.get("orders")["data"])
        later["fields"].append({"name": "note", "type": ["null", "string"], "default": None})
        admin.schemas.upload("orders", "AVRO", json.dumps(later))
        shipping = client.subscribe(
            "orders", "shipping", ConsumerType.Shared, consumer_name="truck", receiver_queue_size=25
        )
        for number in range(25):
            message = shipping.receive(20_000)
            if number not in (3, 4, 9, 15):
                shipping.acknowledge(message, receipt=True)
        orders.send(Order(item="screws", count=40), deliver_after=timedelta(days=30))
        marks = {"REAL_TOPIC": "orders", "REAL_SUBSCRIPTION": "billing", "why": "no such customer"}
        client.create_producer("orders-billing-DLQ").send(b"broken", marks)
        clicks = client.create_producer("clicks", block_if_queue_full=True)
        for number in range(200):
            clicks.send_async(b"click", partition_key=str(number))
        clicks.flush()
        transaction = client.transaction(600)
        client.create_producer("payments").send(b"paid", txn=transaction)
        wait_until(lambda: admin.transactions()["total"] == 1)
        yield cluster


def pages(cluster: LocalCluster, token: str | None = None) -> dict[str, str]:
    """The paths of all pages, by name."""
    admin = Admin(cluster.admin_url, token=token)
    (transaction,) = admin.transactions()["transactions"]
    key = "subscription/public/default/orders/"
    actor = next(each for each in admin.actors() if each.startswith(key) and "shipping" in each)
    first = admin.topics.internal_stats("orders")["ledgers"][0]["ledgerId"]
    event = max(admin.actors.state(actor)["lastEvent"] - 3, 0)
    (letter,) = admin.dead_letters("orders-billing-DLQ")
    in_dead_letters = {"topic": letter["topic"], "id": letter["id"]}
    of_shipping = f"topic={ORDERS}&name=shipping"
    return {
        "attention": "/",
        "login": "/console/login",
        "topics": "/console/topics?system=1",
        "topic": f"/console/topic?topic={ORDERS}",
        "topic-partitioned": "/console/topic?topic=clicks",
        "topic-delete": f"/console/topic/delete?topic={ORDERS}",
        "policies": f"/console/policies?where={ORDERS}",
        "messages": f"/console/messages?topic={ORDERS}",
        "message": f"/console/message?topic={ORDERS}&id={first}:9",
        "subscription": f"/console/subscription?{of_shipping}",
        "moves": f"/console/subscription/moves?{of_shipping}",
        "subscription-delete": f"/console/subscription/delete?{of_shipping}",
        "preview": f"/console/subscription/preview?{of_shipping}&move=seek&to=earliest",
        "time": "/console/time",
        "moment": f"/console/time?actor={quote(actor, safe='')}&event={event}",
        "dead-letters": "/console/dead-letters",
        "forget-letter": f"/console/dead-letters/forget-letter?{urlencode(in_dead_letters)}",
        "transactions": "/console/transactions",
        "transaction": f"/console/transaction?id={transaction['txnId']}",
        "transaction-abort": f"/console/transaction/abort?id={transaction['txnId']}",
        "schemas": f"/console/schemas?topic={ORDERS}",
        "pipelines": "/console/pipelines",
        "release": "/console/pipelines/release?topic=clicks&name=report",
        "clusters": "/console/clusters",
        "hosts": "/console/hosts",
        "host-log": "/console/hosts/log?host=host/0",
        "audit": "/console/audit",
        "settings": "/console/settings",
        "problem": "/console/topic?topic=nowhere",
    }
