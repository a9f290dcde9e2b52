"""The administration client: one object for each kind of resource, and a method for each call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar
from warnings import warn

from velaray.client.admin.actors import Actors
from velaray.client.admin.audit import Audit
from velaray.client.admin.calls import Asyncio, Blocking, Call, call, of_group
from velaray.client.admin.clusters import Clusters
from velaray.client.admin.connection import DEFAULT_URL, AdminConnection, ModeT, parsed
from velaray.client.admin.dead_letters import DeadLetters
from velaray.client.admin.hosts import Hosts
from velaray.client.admin.ledgers import Ledgers
from velaray.client.admin.migrations import FailOvers, Migrations, Pulls
from velaray.client.admin.namespaces import Namespaces, Policies
from velaray.client.admin.permissions import Permissions
from velaray.client.admin.pipelines import Pipelines
from velaray.client.admin.schemas import Schemas
from velaray.client.admin.subscriptions import Subscriptions
from velaray.client.admin.tenants import Tenants
from velaray.client.admin.topics import Topics
from velaray.client.admin.transactions import Transactions
from velaray.client.admin.transports import AsyncioTransport, BlockingTransport
from velaray.client.auth import Authentication
from velaray.client.closing import AsyncClosing, Closing
from velaray.client.exceptions import InvalidConfiguration
from velaray.client.tls import Security

ResultT = TypeVar("ResultT")
P = ParamSpec("P")


def _deprecated(name: str, method: Call[P, ResultT]) -> Call[P, ResultT]:
    """``method`` under an old name, with a warning that tells the new one."""

    async def warning(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        warn(f"this method is now called {name}", DeprecationWarning, stacklevel=4)
        return await method.method(client, *args, **kwargs)

    return Call(warning)


def _checked(authentication: Authentication | None, token: str | None) -> Authentication | None:
    """``authentication``. Raises `InvalidConfiguration` if it doesn't provide tokens, or there is a
    token as well."""
    if authentication is None:
        return None
    if token is not None:
        raise InvalidConfiguration("give token or authentication, not both")
    if not isinstance(authentication, Authentication) or authentication.method != "token":
        raise InvalidConfiguration(
            "authentication must provide tokens, such as AuthenticationToken and"
            " AuthenticationOauth2: a certificate belongs into tls=TlsOptions(...)"
        )
    return authentication


async def _blocking(authentication: Authentication) -> bytes:
    return authentication.data()


class AdminCalls(Generic[ModeT]):
    """The calls of both administration clients.

    Each kind of resource has an object, such as ``admin.topics``. Calling the object lists the
    resources: ``admin.topics()``. Its methods change them: ``admin.topics.create("flights")``.
    Most of these methods are also methods of the client: ``admin.create_topic("flights")``.

    Every method raises an `AdminError`: `NotFound`, `Conflict`, `NotAllowed`,
    `PreconditionFailed`, `Invalid`, `Unauthorized` or `Unavailable` where those fit. After
    `Unavailable` a change may have taken effect. Every call except `skip` can be repeated safely.

    The short name ``flights`` stands for ``persistent://public/default/flights``. The name of a
    partition stands for that partition alone. A tenant's home cluster answers questions about the
    tenant's partitions, topics and schemas.
    """

    def __init__(self, connection: AdminConnection, mode: type[ModeT]) -> None:
        self._connection = connection
        self.mode = mode
        self.url = connection.url
        self.clusters = Clusters(connection, mode)
        self.tenants = Tenants(connection, mode)
        self.migrations = Migrations(connection, mode)
        self.pulls = Pulls(connection, mode)
        self.failovers = FailOvers(connection, mode)
        self.namespaces = Namespaces(connection, mode)
        self.policies = Policies(connection, mode)
        self.permissions = Permissions(connection, mode)
        self.topics = Topics(connection, mode)
        self.subscriptions = Subscriptions(connection, mode)
        self.dead_letters = DeadLetters(connection, mode)
        self.pipelines = Pipelines(connection, mode)
        self.schemas = Schemas(connection, mode)
        self.transactions = Transactions(connection, mode)
        self.ledgers = Ledgers(connection, mode)
        self.hosts = Hosts(connection, mode)
        self.actors = Actors(connection, mode)
        self.audit = Audit(connection, mode)

    @call
    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        version: int = 2,
    ) -> Any:
        """Send any request below ``/admin/v2``, or below another ``version``; return the parsed
        answer, None if it is empty."""
        path = f"/admin/v{version}/{path}"
        return parsed(await self._connection.send(method, path, body, query))

    health = of_group("clusters", Clusters.health)
    cluster_names = of_group("clusters", Clusters.names)
    cluster = of_group("clusters", Clusters.get)
    create_cluster = of_group("clusters", Clusters.create)
    update_cluster = of_group("clusters", Clusters.update)
    delete_cluster = of_group("clusters", Clusters.delete)
    replication = of_group("clusters", Clusters.replication)
    give_up = of_group("clusters", Clusters.give_up)

    tenant = of_group("tenants", Tenants.get)
    create_tenant = of_group("tenants", Tenants.create)
    update_tenant = of_group("tenants", Tenants.update)
    delete_tenant = of_group("tenants", Tenants.delete)
    tenant_metadata = of_group("tenants", Tenants.metadata)
    tenant_home = of_group("tenants", Tenants.home)
    set_tenant_home = of_group("tenants", Tenants.set_home)

    examine_migration = of_group("migrations", Migrations.examine)
    migrate_tenant = of_group("migrations", Migrations.start)
    migration = of_group("migrations", Migrations.get)
    roll_back_migration = of_group("migrations", Migrations.roll_back)
    pull_tenant = of_group("pulls", Pulls.start)
    finish_pull = of_group("pulls", Pulls.finish)
    fail_over_tenant = of_group("failovers", FailOvers.start)
    received_from = of_group("failovers", FailOvers.received)

    create_namespace = of_group("namespaces", Namespaces.create)
    delete_namespace = of_group("namespaces", Namespaces.delete)
    policy = of_group("policies", Policies.get)
    set_policy = of_group("policies", Policies.set)
    remove_policy = of_group("policies", Policies.remove)
    policies_of = of_group("policies", Policies.get_all)
    set_policy_of = of_group("policies", Policies.set_on)
    remove_policy_of = of_group("policies", Policies.remove_from)

    create_topic = of_group("topics", Topics.create)
    delete_topic = of_group("topics", Topics.delete)
    undelete_topic = of_group("topics", Topics.undelete)
    partitions = of_group("topics", Topics.partitions)
    grow_partitions = of_group("topics", Topics.grow)
    stats = of_group("topics", Topics.stats)
    internal_stats = of_group("topics", Topics.internal_stats)
    last_message_id = of_group("topics", Topics.last_message_id)
    terminate = of_group("topics", Topics.terminate)
    compact = of_group("topics", Topics.compact)
    compaction_status = of_group("topics", Topics.compaction_status)
    unload = of_group("topics", Topics.unload)

    create_subscription = of_group("subscriptions", Subscriptions.create)
    delete_subscription = of_group("subscriptions", Subscriptions.delete)
    seek = of_group("subscriptions", Subscriptions.seek)
    skip = of_group("subscriptions", Subscriptions.skip)
    describe_subscription = of_group("subscriptions", Subscriptions.describe)
    expire = of_group("subscriptions", Subscriptions.expire)
    explain = of_group("subscriptions", Subscriptions.explain)
    why = _deprecated("explain", explain)
    undo = of_group("subscriptions", Subscriptions.undo)
    peek = of_group("subscriptions", Subscriptions.peek)

    schema = of_group("schemas", Schemas.get)
    upload_schema = of_group("schemas", Schemas.upload)
    check_schema = of_group("schemas", Schemas.check)
    delete_schema = of_group("schemas", Schemas.delete)

    transaction = of_group("transactions", Transactions.get)
    abort_transaction = of_group("transactions", Transactions.abort)
    coordinators = of_group("transactions", Transactions.coordinators)
    scale_coordinators = of_group("transactions", Transactions.scale_coordinators)
    transaction_buffer_stats = of_group("transactions", Transactions.buffer_stats)
    pending_ack_stats = of_group("transactions", Transactions.pending_ack_stats)

    move_to_host = of_group("hosts", Hosts.move)
    drain_host = of_group("hosts", Hosts.drain)
    resume_host = of_group("hosts", Hosts.resume)
    restart_host = of_group("hosts", Hosts.restart)

    ledger_audit = of_group("ledgers", Ledgers.audit)
    ledger_census = _deprecated("ledger_audit", ledger_audit)
    repair_ledgers = of_group("ledgers", Ledgers.repair)
    ledger = of_group("ledgers", Ledgers.get)
    dead_ledgers = of_group("ledgers", Ledgers.dead)
    retry_dead_ledgers = of_group("ledgers", Ledgers.retry_dead)
    forget_dead_ledgers = of_group("ledgers", Ledgers.forget_dead)


class Admin(AdminCalls[Blocking], Closing):
    """A cluster's admin interface. Methods block, and may be called from any thread.

    Connections are kept for later requests. `close` closes them; so does the end of a ``with``
    block, and the garbage collector.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout_s: float = 90.0,
        client_version: str | None = None,
        tls: Security | None = None,
        authentication: Authentication | None = None,
    ) -> None:
        """``timeout_s`` limits every wait for the cluster; ``client_version`` is sent as the user
        agent; ``tls`` are the `TlsOptions` for a URL with https. ``authentication`` provides tokens
        instead of ``token``, such as `AuthenticationOauth2`. Raises `ValueError` if ``url`` isn't
        http(s), and `InvalidConfiguration`."""
        self._transport = self._new_transport(timeout_s, tls)
        proof = _checked(authentication, token)
        fetch_token = None if proof is None else partial(_blocking, proof)
        connection = AdminConnection(url, self._transport, token, client_version, fetch_token)
        super().__init__(connection, Blocking)
        self._copy = partial(
            type(self),
            url,
            token=token,
            timeout_s=timeout_s,
            client_version=client_version,
            tls=tls,
            authentication=authentication,
        )

    def close(self) -> None:
        """Close the connections that no request uses. The object can still be used."""
        self._transport.close()

    def _new_transport(self, timeout_s: float, tls: Security | None) -> BlockingTransport:
        return BlockingTransport(timeout_s, tls)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._copy, ()


class AsyncioAdmin(AdminCalls[Asyncio], AsyncClosing):
    """A cluster's admin interface for asyncio. Methods are coroutine functions.

    All calls belong to the event loop of the first one. Connections are kept for later requests
    until `close`, or the end of an ``async with`` block.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout_s: float = 90.0,
        client_version: str | None = None,
        tls: Security | None = None,
        authentication: Authentication | None = None,
    ) -> None:
        """``timeout_s`` limits every request; ``client_version`` is sent as the user agent; ``tls``
        are the `TlsOptions` for a URL with https. ``authentication`` provides tokens instead of
        ``token``, such as `AuthenticationOauth2`. Raises `ValueError` if ``url`` isn't http(s), and
        `InvalidConfiguration`."""
        self._transport = AsyncioTransport(timeout_s, tls)
        proof = _checked(authentication, token)
        fetch_token = None if proof is None else proof.fetch
        connection = AdminConnection(url, self._transport, token, client_version, fetch_token)
        super().__init__(connection, Asyncio)

    async def close(self) -> None:
        """Close the connections. The object can still be used."""
        await self._transport.close()
