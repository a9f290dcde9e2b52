"""A cluster with authorisation, and clients of several roles."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import jwt

from tests.official.raw import RawClient
from tests.support.local_cluster import LocalCluster
from velaray import AuthenticationToken, Client
from velaray.client.admin import Admin
from velaray.topology.config import AuthorisationSettings, AuthSettings
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.connection import WireConnection

SECRET = b"a secret that is long enough for HS256"
SETTINGS = AuthorisationSettings(frozenset({"root", "gate-root"}), frozenset({"gate", "gate-root"}))
TOPIC = "persistent://shop/orders/new"


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, algorithm="HS256")


@contextmanager
def guarded(path: Path, anonymous: str = "", **more: Any) -> Iterator[LocalCluster]:
    """A cluster with the tenants shop, whose administrator is "boss", and other."""
    auth = AuthSettings(secret=SECRET, anonymous_role=anonymous)
    with LocalCluster(path, auth=auth, roles=SETTINGS, **more) as cluster:
        furnish(cluster)
        yield cluster


class Served(Protocol):
    """A cluster with an admin interface."""

    @property
    def admin_url(self) -> str: ...


def furnish(cluster: Served) -> None:
    """Create the tenants shop, whose administrator is "boss", and other."""
    root = admin_of(cluster, "root")
    root.create_tenant("shop", admin_roles=["boss"], allowed_clusters=["standalone"])
    root.create_tenant("other", allowed_clusters=["standalone"])
    for namespace in ("shop/orders", "shop/bills", "other/things"):
        root.create_namespace(namespace)
    root.create_topic(TOPIC)
    root.create_topic("persistent://shop/orders/old")
    root.create_topic("persistent://other/things/t")


def admin_of(cluster: Served, role: str) -> Admin:
    return Admin(cluster.admin_url, token=token(role))


def client_of(cluster: LocalCluster, role: str) -> Client:
    return Client(
        cluster.service_url,
        authentication=AuthenticationToken(token(role)),
        operation_timeout_seconds=30,
    )


async def raw(port: int, role: str, **fields: Any) -> RawClient:
    """A connection on which CONNECT was sent; ``role`` "": without a token."""
    client = RawClient()
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: WireConnection(client, server=False), "127.0.0.1", port)
    data = token(role).encode() if role else b""
    client.send(
        pb.CommandConnect(
            client_version="raw",
            protocol_version=20,
            auth_method_name="token",
            auth_data=data,
            **fields,
        )
    )
    return client
