"""Administration over the REST interface: tenants, namespaces, topics, subscriptions, transactions.

    admin = Admin("http://127.0.0.1:8080")
    admin.create_topic("flights", partitions=4)
    admin.seek("flights", "counting", MessageId.earliest)

Calls are synchronous and use one short connection each, so an `Admin` may be shared between
threads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit, urlunsplit

from velaray.client.exceptions import VelarayError
from velaray.client.message_id import MessageId
from velaray.events.ids import MessageId as StoredId
from velaray.events.ids import TopicName

DEFAULT_URL = "http://127.0.0.1:8080"
MAX_REDIRECTS = 3
"""So often a request is sent on to the cluster where a tenant is at home."""
_ELSEWHERE = 307


class AdminError(VelarayError):
    """A request was refused or failed; ``status`` is the HTTP status (0: no answer came)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NotFound(AdminError):
    """What the request names isn't there."""


class Conflict(AdminError):
    """It exists already, or still holds something."""


class NotAllowed(AdminError):
    """That can't be done to this: a topic of the system, a partitioned topic as a whole."""


class PreconditionFailed(AdminError):
    """Clients are connected, or a limit or rule forbids it."""


class Invalid(AdminError):
    """A name, number or policy that isn't accepted."""


class Unauthorized(AdminError):
    """The token is missing or not accepted."""


class Unavailable(AdminError):
    """No answer, or a part of the cluster can't be reached now: try again. Whether a change
    took effect is unknown."""


_ERRORS: Mapping[int, type[AdminError]] = {
    400: Invalid,
    401: Unauthorized,
    404: NotFound,
    405: NotAllowed,
    406: PreconditionFailed,
    409: Conflict,
    412: PreconditionFailed,
    413: Invalid,
    422: Invalid,
    503: Unavailable,
}


@dataclass(frozen=True, slots=True)
class PeekedEntry:
    """An un-acknowledged entry: its payload (a batch, if ``messages_in_batch`` isn't None)."""

    message_id: MessageId
    payload: bytes
    publish_time: int
    properties: Mapping[str, str]
    messages_in_batch: int | None


class Admin:
    """A cluster's admin interface.

    Every method raises an `AdminError`: `NotFound`, `Conflict`, `NotAllowed`,
    `PreconditionFailed`, `Invalid`, `Unauthorized` or `Unavailable` where those fit. After
    `Unavailable` a change may have taken effect; repeating it is safe but for `skip`.

    Topics are named as everywhere (``flights`` is ``persistent://public/default/flights``);
    a partition's own name stands for that partition alone. Questions for the partitions, topics and
    schemas of a tenant that is at home in another cluster are answered by that one.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout_s: float = 90.0,
        client_version: str | None = None,
    ) -> None:
        """``timeout_s`` limits every request; ``client_version`` is what we present ourselves as.
        Raises `ValueError` if ``url`` isn't http(s)."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an admin URL: {url!r}; write http://host:port")
        self.url = url
        self._token = token
        self._client_version = client_version
        self._timeout_s = timeout_s

    # -- requests ------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        version: int = 2,
    ) -> Any:
        """Send one request below ``/admin/v2``, or that of another ``version``; returns the
        parsed answer, None if it's empty."""
        response, content = self._exchange(method, path, body, query, version)
        if not content:
            return None
        if response.headers.get_content_type() != "application/json":
            return content.decode()
        return json.loads(content)

    def _exchange(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        version: int = 2,
    ) -> tuple[HTTPResponse, bytes]:
        target = f"{self.url.rstrip('/')}/admin/v{version}/{path}"
        if query:
            target += f"?{urlencode(query)}"
        for _ in range(1 + MAX_REDIRECTS):
            response, content = self._send(method, target, body)
            if response.status >= 400:
                raise _error(response.status, content)
            if response.status != _ELSEWHERE:
                return response, content
            target = urljoin(target, response.headers["Location"])
        raise AdminError(response.status, f"{self.url}: more than {MAX_REDIRECTS} redirects")

    def _send(self, method: str, target: str, body: Any) -> tuple[HTTPResponse, bytes]:
        headers = {"Accept": "*/*", "Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if self._client_version:
            headers["User-Agent"] = self._client_version
        url = urlsplit(target)
        kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
        connection = kind(str(url.hostname), url.port, timeout=self._timeout_s)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, urlunsplit(("", "", *url[2:])), data, headers)
            response = connection.getresponse()
            return response, response.read()
        except (OSError, HTTPException) as error:
            raise Unavailable(
                0,
                f"no answer from {url.scheme}://{url.netloc} ({error or type(error).__name__}): is "
                "velaray running there? Start it with `velaray start`",
            ) from error
        finally:
            connection.close()

    # -- clusters ------------------------------------------------------------------

    def health(self) -> None:
        """Return if the cluster answers; otherwise raise `AdminError`."""
        self.request("GET", "brokers/health")

    def clusters(self) -> dict[str, dict[str, Any]]:
        """What `cluster` tells of every known cluster, by name."""
        return {name: self.cluster(name) for name in self._clusters()}

    def cluster(self, name: str) -> dict[str, Any]:
        """A cluster's ``serviceUrl`` (admin) and ``brokerServiceUrl``; whether it is the ``local``
        one, this one ``hasToken`` for it, and its ``progress`` (see `create_cluster`)."""
        return dict(self.request("GET", _path("clusters", name)))

    def create_cluster(
        self,
        name: str,
        *,
        service_url: str,
        admin_url: str,
        token: str | None = None,
        progress: str = "exact",
    ) -> None:
        """Make another cluster known; `Conflict` if it is.

        ``token`` is what this cluster presents to that one; nobody is ever shown it. A cluster
        that knows Pulsar's snapshots of subscriptions alone has ``progress`` "snapshots".
        """
        body = {"brokerServiceUrl": service_url, "serviceUrl": admin_url, "progress": progress}
        self.request("PUT", _path("clusters", name), body | _credentials(token))

    def update_cluster(
        self,
        name: str,
        *,
        service_url: str | None = None,
        admin_url: str | None = None,
        token: str | None = None,
        progress: str | None = None,
    ) -> None:
        """Change what is given of another cluster; an empty ``token`` takes it away."""
        named = {"brokerServiceUrl": service_url, "serviceUrl": admin_url, "progress": progress}
        body = {field: value for field, value in named.items() if value is not None}
        self.request("POST", _path("clusters", name), body | _credentials(token))

    def delete_cluster(self, name: str) -> None:
        """Forget another cluster; `PreconditionFailed` while a tenant may use it, or a policy
        names it, or a tenant is at home there."""
        self.request("DELETE", _path("clusters", name))

    def replication(
        self, topic: str | None = None, namespace: str | None = None
    ) -> list[dict[str, Any]]:
        """The replicators of a topic; or of the partitions that run now, of a namespace or of the
        whole cluster: ``state``, ``reason``, ``backlog``, ``lag_ms``, ``progress_lag_ms``, …"""
        query = {"topic": topic, "namespace": namespace}
        given = {name: value for name, value in query.items() if value is not None}
        return list(self.request("GET", "replication", query=given, version=3))

    def give_up(self, cluster: str, topics: Sequence[str]) -> list[dict[str, Any]]:
        """Hide for good what came to these topics of transactions of another cluster that aren't
        all here; by partition how many were ``given_up``, and how many ``released``."""
        body = {"cluster": cluster, "topics": list(topics)}
        return list(self.request("POST", "replication/give-up", body, version=3))

    def _clusters(self) -> list[str]:
        found: list[str] = self.request("GET", "clusters")
        return found

    # -- tenants and namespaces ----------------------------------------------------

    def tenants(self) -> list[str]:
        """The names of all tenants."""
        return list(self.request("GET", "tenants"))

    def tenant(self, name: str) -> dict[str, list[str]]:
        """A tenant's ``adminRoles`` and ``allowedClusters``."""
        return dict(self.request("GET", _path("tenants", name)))

    def create_tenant(
        self,
        name: str,
        *,
        admin_roles: Sequence[str] = (),
        allowed_clusters: Sequence[str] | None = None,
    ) -> None:
        """Create a tenant; without ``allowed_clusters`` it may use all that are known."""
        clusters = self._clusters() if allowed_clusters is None else list(allowed_clusters)
        body = {"adminRoles": list(admin_roles), "allowedClusters": clusters}
        self.request("PUT", _path("tenants", name), body)

    def update_tenant(
        self,
        name: str,
        *,
        admin_roles: Sequence[str] | None = None,
        allowed_clusters: Sequence[str] | None = None,
    ) -> None:
        """Give a tenant these roles, or clusters, instead of its own; None: it keeps them.

        `Conflict` if it replicates to a cluster that it isn't to use any more.
        """
        body: dict[str, Sequence[str]] = dict(self.tenant(name))
        if admin_roles is not None:
            body["adminRoles"] = list(admin_roles)
        if allowed_clusters is not None:
            body["allowedClusters"] = list(allowed_clusters)
        self.request("POST", _path("tenants", name), body)

    def tenant_metadata(self, name: str) -> dict[str, Any]:
        """All that the cluster has of a tenant, but for messages: ``admin_roles``,
        ``allowed_clusters``, ``namespaces`` with their policies and topics."""
        return dict(self.request("GET", _path("tenants", name, "metadata")))

    def tenant_home(self, name: str) -> str:
        """The cluster in which a tenant is at home, as far as this one knows: there its clients
        are served, whichever cluster they ask."""
        return str(self.request("GET", _path("tenants", name, "home"))["cluster"])

    def set_tenant_home(self, name: str, cluster: str) -> None:
        """Send a tenant's clients to another cluster from now on, or (by its own name) keep them
        here. Moves nothing. `NotFound` if there is no such cluster."""
        self.request("POST", _path("tenants", name, "home"), {"cluster": cluster})

    # -- tenants that move ---------------------------------------------------------

    def examine_migration(
        self, tenant: str, to: str, *, progress: str = "exact", max_lag: int = 1000
    ) -> dict[str, Any]:
        """What would move if a tenant moved to another cluster, and the ``problems`` that are in
        the way; nothing is changed.

        Raises as `migrate_tenant` does for what makes the question meaningless.
        """
        asked = {"target": to, "progress": progress, "maxLag": max_lag, "dryRun": True}
        return dict(self.request("POST", _migration(tenant), asked))

    def migrate_tenant(
        self, tenant: str, to: str, *, progress: str = "exact", max_lag: int = 1000
    ) -> dict[str, Any]:
        """Have a tenant that is at home here move to another cluster, with all it has, while its
        clients go on; returns `migration`. From then on it goes on by itself, whatever crashes.

        The fence is put up once at most ``max_lag`` entries are missing there. With ``progress``
        "snapshots" the other cluster is told subscriptions' mark-delete alone.

        Raises `NotFound` if there is no such tenant or cluster, `PreconditionFailed` if it isn't
        at home here or can't move at all, `Conflict` if something is in the way or it is moving
        elsewhere, `Unavailable` if the other cluster doesn't answer: then nothing has changed.
        """
        asked = {"target": to, "progress": progress, "maxLag": max_lag}
        return dict(self.request("POST", _migration(tenant), asked))

    def migration(self, tenant: str) -> dict[str, Any]:
        """How far a tenant's newest migration away from here is: its ``phase``, whether it is
        ``over``, ``steps`` with their times, and ``detail``: how it goes. `NotFound` if there
        never was one."""
        return dict(self.request("GET", _migration(tenant)))

    def migrations(self) -> list[dict[str, Any]]:
        """The newest migration of every tenant that was to move away from here."""
        return list(self.request("GET", _path("velaray", "migrations")))

    def roll_back_migration(self, tenant: str, why: str = "asked to") -> dict[str, Any]:
        """Have a tenant stay; returns `migration`. `Conflict` once it is decided that it moves,
        `NotFound` if it never was to."""
        return dict(self.request("DELETE", _migration(tenant), query={"why": why}))

    def pull_tenant(self, tenant: str, cluster: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Have here what a tenant has in ``cluster``, Pulsar's as a rule, and pull its topics.

        Returns ``steps``, what was done (``dry_run``: would be), and ``notes``, such as what isn't
        taken over. May be repeated: then what is new there comes as well. Raises `NotFound`,
        `PreconditionFailed` if this cluster has no number, `Conflict` if something is here in
        another shape, `Unavailable` if the other cluster doesn't answer: then nothing changed.
        """
        body = {"cluster": cluster, "dryRun": dry_run}
        return dict(self.request("POST", _path("velaray", "pulls", tenant), body))

    def pulls(self, tenant: str) -> list[dict[str, Any]]:
        """How far each partition of a tenant is that is pulled from another cluster."""
        return list(self.request("GET", _path("velaray", "pulls", tenant)))

    def finish_pull(self, tenant: str, cluster: str, *, force: bool = False) -> dict[str, Any]:
        """Pull nothing of a tenant from ``cluster`` any more; returns as `pull_tenant`; ``notes``
        name what is left there. `Conflict` while something isn't here yet, unless ``force``."""
        query = {"cluster": cluster} | ({"force": "true"} if force else {})
        return dict(self.request("DELETE", _path("velaray", "pulls", tenant), query=query))

    def fail_over_tenant(self, tenant: str, lost: str | None = None) -> dict[str, Any]:
        """Have a tenant go on here, whose home is lost without warning, with what was replicated.

        Returns for each of its ``partitions`` what came: ``newest`` position there and when that
        was published, how many ``producers`` it is known of now where they left off, how many
        ``transactions`` were ``given_up`` as something of them is missing, and for each
        of the ``subscriptions`` how many entries and messages from there it hasn't acknowledged,
        of which no more than that can be delivered again, and when its progress was last told.

        ``lost`` names the cluster, if this one doesn't know where the tenant is at home. Again it
        changes nothing more. `NotFound` if nothing of the tenant is here, `Invalid` if it isn't
        known which cluster is lost.
        """
        body = {} if lost is None else {"lost": lost}
        return dict(self.request("POST", _path("velaray", "failovers", tenant), body))

    def received_from(self, tenant: str, topic: str, cluster: str) -> dict[str, Any]:
        """What a partition of a tenant has of another cluster: the ``newest`` position there that
        came, and of the ``subscriptions`` what they have of it, each as encoded parts."""
        path = _path("velaray", "failovers", tenant, "received")
        return dict(self.request("GET", path, query={"topic": topic, "cluster": cluster}))

    def delete_tenant(self, name: str) -> None:
        """Delete a tenant; `Conflict` while it has namespaces."""
        self.request("DELETE", _path("tenants", name))

    def namespaces(self, tenant: str) -> list[str]:
        """A tenant's namespaces, as ``tenant/namespace``."""
        return list(self.request("GET", _path("namespaces", tenant)))

    def create_namespace(self, namespace: str) -> None:
        """Create ``tenant/namespace``."""
        self.request("PUT", _namespace(namespace))

    def delete_namespace(self, namespace: str, *, force: bool = False) -> None:
        """Delete ``tenant/namespace``; `Conflict` while it has topics, unless ``force``.

        With ``force`` all its topics go with it at once, whoever is connected to them.
        """
        query = {"force": "true"} if force else None
        self.request("DELETE", _namespace(namespace), query=query)

    def policies(self, namespace: str) -> dict[str, Any]:
        """What is set on ``tenant/namespace``, in the fields of Pulsar's namespace document."""
        return dict(self.request("GET", _namespace(namespace)))

    def policy(self, namespace: str, name: str, *, applied: bool = False) -> Any:
        """A policy of ``tenant/namespace``, None if it isn't set there.

        With ``applied``: what holds there, wherever it is set.
        """
        query = {"applied": "true"} if applied else None
        return self.request("GET", f"{_namespace(namespace)}/{quote(name, safe='')}", query=query)

    def set_policy(self, namespace: str, name: str, value: Any) -> None:
        """Set a policy by its name in Pulsar's REST interface, such as ``retention``."""
        self.request("POST", f"{_namespace(namespace)}/{quote(name, safe='')}", value)

    def remove_policy(self, namespace: str, name: str) -> None:
        """Let a policy be what the wider scope says."""
        self.request("DELETE", f"{_namespace(namespace)}/{quote(name, safe='')}")

    # -- policies of every level ---------------------------------------------------

    def policies_of(self, where: str, *, applied: bool = False) -> dict[str, Any]:
        """The policies that are set on ``where``, by name; with ``applied`` those that hold there.

        ``where`` is "cluster", ``tenant/namespace`` or a topic.
        """
        query = {"applied": "true"} if applied else None
        return dict(self.request("GET", _level(where, "policies"), query=query))

    def set_policy_of(self, where: str, name: str, value: Any) -> None:
        """Set a policy of ``where`` (as in `policies_of`); running topics apply it at once."""
        self.request("PUT", _level(where, "policies", name), value)

    def remove_policy_of(self, where: str, name: str) -> None:
        """Let the wider level say what a policy of ``where`` is."""
        self.request("DELETE", _level(where, "policies", name))

    # -- topics --------------------------------------------------------------------

    def topics(self, namespace: str = "public/default") -> dict[str, int]:
        """The topics of ``tenant/namespace``: the number of partitions (0: plain) by name."""
        found: dict[str, int] = {}
        for text in self.request("GET", _path("persistent", *_split(namespace))):
            name = TopicName.parse(text)
            found[str(name.topic)] = max(found.get(str(name.topic), 0), name.partition + 1)
        return found

    def create_topic(
        self, topic: str, *, partitions: int = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic; `Conflict` if it exists."""
        given = dict(properties or {})
        if partitions:
            body = {"partitions": partitions, "properties": given}
            self.request("PUT", f"{_topic(topic)}/partitions", body)
        else:
            self.request("PUT", _topic(topic), given)

    def delete_topic(self, topic: str, *, force: bool = False) -> None:
        """Delete a topic with its messages and subscriptions.

        `PreconditionFailed` while clients are connected, unless ``force``. A deletion that
        failed half-way is finished by repeating it.
        """
        query = {"force": "true"} if force else None
        try:
            self.request("DELETE", _topic(topic), query=query)
        except Conflict:
            self.request("DELETE", f"{_topic(topic)}/partitions", query=query)

    def undelete_topic(self, topic: str) -> None:
        """Have a deleted topic back with its messages, subscriptions and policies.

        `NotFound` unless it was deleted within the cluster's window for that (none by default);
        `Conflict` if there is a newer topic of the name.
        """
        self.request("POST", f"{_topic(topic)}/undelete")

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; 0 for a plain one."""
        return int(self.request("GET", f"{_topic(topic)}/partitions")["partitions"])

    def grow_partitions(self, topic: str, partitions: int) -> None:
        """Give a partitioned topic more partitions, ``partitions`` in all."""
        self.request("POST", f"{_topic(topic)}/partitions", partitions)

    def stats(self, topic: str) -> dict[str, Any]:
        """Statistics; of a partitioned topic the sums, with each partition's in ``partitions``."""
        kind = "partitioned-stats" if self._is_partitioned(topic) else "stats"
        return dict(self.request("GET", f"{_topic(topic)}/{kind}"))

    def internal_stats(self, topic: str) -> dict[str, Any]:
        """Ledgers and cursors; of a partitioned topic in ``partitions``."""
        kind = "partitioned-internalStats" if self._is_partitioned(topic) else "internalStats"
        return dict(self.request("GET", f"{_topic(topic)}/{kind}"))

    def _is_partitioned(self, topic: str) -> bool:
        return self.partitions(topic) > 0

    def last_message_id(self, topic: str) -> MessageId:
        """The last entry of a plain topic or a partition; entry id -1 if there is none."""
        return _message_id(self.request("GET", f"{_topic(topic)}/lastMessageId"))

    def terminate(self, topic: str) -> list[MessageId]:
        """Let a topic take no more messages; the last id of every partition, in order."""
        found = self.request("POST", f"{_topic(topic)}/terminate")
        if "ledgerId" in found:
            return [_message_id(found)]
        return [_message_id(found[number]) for number in sorted(found, key=int)]

    def compact(self, topic: str) -> None:
        """Begin to compact a topic, every partition of it.

        Raises `Conflict` while it is being compacted.
        """
        self.request("PUT", f"{_topic(topic)}/compaction")

    def compaction_status(self, topic: str) -> dict[str, str]:
        """How the last compaction went: ``status`` NOT_RUN, RUNNING, SUCCESS or ERROR, and
        ``lastError``; of several partitions, the one that it went worst for."""
        return dict(self.request("GET", f"{_topic(topic)}/compaction"))

    def unload(self, topic: str) -> None:
        """Stop the topic's partition actors in good order; the next use starts them again."""
        self.request("PUT", f"{_topic(topic)}/unload")

    # -- subscriptions -------------------------------------------------------------

    def subscriptions(self, topic: str) -> list[str]:
        """The names of the durable subscriptions."""
        return list(self.request("GET", f"{_topic(topic)}/subscriptions"))

    def create_subscription(
        self,
        topic: str,
        subscription: str,
        start: MessageId = MessageId.latest,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Create a durable subscription; `Conflict` if every partition has it.

        ``start``: the first message it gets; on a partitioned topic the earliest or latest.
        """
        body = {**_id_body(start), "properties": dict(properties or {})}
        self.request("PUT", _subscription(topic, subscription), body)

    def delete_subscription(self, topic: str, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription; `PreconditionFailed` while consumed, unless ``force``."""
        query = {"force": "true"} if force else None
        self.request("DELETE", _subscription(topic, subscription), query=query)

    def seek(self, topic: str, subscription: str, to: MessageId | int) -> None:
        """Move a subscription to a message id, or to a publish time in ms since 1970.

        That message is next. An id belongs to one partition: on a partitioned topic only the
        earliest and the latest are accepted.
        """
        path = f"{_subscription(topic, subscription)}/resetcursor"
        if isinstance(to, MessageId):
            self.request("POST", path, _id_body(to))
        else:
            self.request("POST", f"{path}/{to}")

    def skip(self, topic: str, subscription: str, entries: int | None = None) -> None:
        """Acknowledge the next ``entries`` of every partition, all of the backlog if None."""
        what = "skip_all" if entries is None else f"skip/{entries}"
        self.request("POST", f"{_subscription(topic, subscription)}/{what}")

    def describe_subscription(self, topic: str, subscription: str) -> dict[str, Any]:
        """What a subscription holds and what holds it back, by the name of the partition."""
        return dict(self.request("GET", f"{_subscription(topic, subscription)}/describe"))

    def expire(self, topic: str, subscription: str | None, seconds: int) -> None:
        """Have messages expire that were published ``seconds`` ago or longer; for one
        subscription, or (None) for all.
        """
        whose = f"{_topic(topic)}/all_subscription"
        if subscription is not None:
            whose = _subscription(topic, subscription)
        self.request("POST", f"{whose}/expireMessages/{seconds}")

    def why(self, topic: str, subscription: str, message_id: MessageId) -> dict[str, Any]:
        """What happened to a message in a subscription: the ``facts`` that its journals tell, in
        order, and where it is ``now``."""
        wanted = f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.partition()}"
        return dict(self.request("GET", f"{_subscription(topic, subscription)}/why/{wanted}"))

    def undo(
        self,
        topic: str,
        subscription: str,
        *,
        event: int | None = None,
        time_ms: int | None = None,
        preview: bool = False,
    ) -> dict[str, Any]:
        """Undo what moved a subscription's cursor: the last seek, skip or expiry on request, or
        all since ``event`` of its journal or since ``time_ms``. Acknowledgements made since stay.

        Returns what changes, by the name of the partition, without those where nothing moved;
        with ``preview`` that is all. Raises `NotFound` if nothing moved anywhere (or it is no
        longer known), and `PreconditionFailed` if what would have to be delivered again was
        trimmed: nothing is changed then. An error after that names the partitions that are
        changed, and those that aren't.
        """
        named = {"event": event, "time": time_ms}
        query = {name: str(value) for name, value in named.items() if value is not None}
        method = "GET" if preview else "POST"
        path = f"{_subscription(topic, subscription)}/undo"
        return dict(self.request(method, path, query=query))

    def peek(self, topic: str, subscription: str, number: int = 1) -> PeekedEntry | None:
        """A plain topic's or partition's ``number``-th un-acknowledged entry (from 1), or None."""
        path = f"{_subscription(topic, subscription)}/position/{number}"
        try:
            response, content = self._exchange("GET", path)
        except NotFound:
            if subscription not in self.subscriptions(topic):
                raise
            return None
        headers = response.headers
        batch = headers["X-Pulsar-num-batch-message"]
        return PeekedEntry(
            MessageId.from_stored(StoredId.parse(headers["X-Pulsar-Message-ID"])),
            content,
            _milliseconds(headers["X-Pulsar-publish-time"]),
            json.loads(headers["X-Pulsar-PROPERTY"] or "{}"),
            None if batch is None else int(batch),
        )

    # -- schemas -------------------------------------------------------------------

    def schemas(
        self,
        topic: str,
        *,
        deleted: bool = False,
        as_of_ms: int | None = None,
        sequence: int | None = None,
    ) -> list[dict[str, Any]]:
        """The versions of a topic's schema that live, oldest first; with ``deleted`` the others
        and the deletions too.

        As they were at a time (milliseconds since 1970), or after an event of the registry's
        journal, if one of these is given; then `NotFound` or `AdminError` if nothing that old is
        kept.
        """
        query = {"deleted": "true" if deleted else "false"}
        if as_of_ms is not None:
            query["asOf"] = str(as_of_ms)
        if sequence is not None:
            query["sequence"] = str(sequence)
        found = self.request("GET", _schemas(topic, "schemas"), query=query)
        return list(found["getSchemaResponses"])

    def schema(self, topic: str, version: int | None = None) -> dict[str, Any]:
        """A version of a topic's schema, deleted or not; None: the latest that lives.

        Raises `NotFound` if there is none.
        """
        parts = ("schema",) if version is None else ("schema", str(version))
        return dict(self.request("GET", _schemas(topic, *parts)))

    def upload_schema(
        self, topic: str, kind: str, schema: str = "", properties: Mapping[str, str] | None = None
    ) -> int:
        """Register a schema of this type (AVRO, JSON, ...); returns its version.

        Raises `Conflict` if it isn't compatible, `Invalid` if it is none.
        """
        body = _schema_body(kind, schema, properties)
        found = self.request("POST", _schemas(topic, "schema"), body)
        return int(found["version"]["version"])

    def check_schema(
        self,
        topic: str,
        kind: str,
        schema: str = "",
        properties: Mapping[str, str] | None = None,
        *,
        strategy: str | None = None,
        every_version: bool = False,
    ) -> dict[str, Any]:
        """Whether a schema could be registered (``compatibility``), and if not, the ``problems``.

        Under ``strategy`` instead of the topic's, if it is given; compared with ``every_version``,
        deleted ones too, if that is asked for. Changes nothing. Raises `Invalid`.
        """
        query = {"all": "true" if every_version else "false"}
        if strategy is not None:
            query["strategy"] = strategy
        body = _schema_body(kind, schema, properties)
        return dict(self.request("POST", _schemas(topic, "compatibility"), body, query))

    def delete_schema(self, topic: str, *, force: bool = False) -> int:
        """Delete all versions of a topic's schema; returns the number of the deletion.

        What was published can still be decoded, also after ``force``, which is only noted. Raises
        `NotFound` if there is none that lives.
        """
        query = {"force": "true" if force else "false"}
        found = self.request("DELETE", _schemas(topic, "schema"), query=query)
        return int(found["version"])

    # -- transactions --------------------------------------------------------------

    def transactions(
        self,
        *,
        status: str | None = None,
        coordinator: int | None = None,
        older_than_ms: int = 0,
        most: int = 1000,
    ) -> dict[str, Any]:
        """The ``transactions`` that haven't ended, oldest first: ``most`` of ``total``.

        Only those that are OPEN, COMMITTING or ABORTING, with ``status``; only one coordinator's;
        only those that began so long ago. Ages and what is left of the timeout are milliseconds.
        """
        named = {"status": status, "coordinatorId": coordinator}
        query = {name: str(value) for name, value in named.items() if value is not None}
        query |= {"olderThan": str(older_than_ms), "most": str(most)}
        return dict(self.request("GET", "transactions", query=query, version=3))

    def transaction(self, txn_id: tuple[int, int]) -> dict[str, Any]:
        """A transaction (coordinator, sequence): what every participant holds of it, and what
        its end ``waitsFor``. Of one that ended, for ever, its ``status``: COMMITTED or ABORTED.

        Raises `NotFound` if there was never such a transaction.
        """
        return dict(self.request("GET", _transaction("transactionMetadata", txn_id), version=3))

    def abort_transaction(self, txn_id: tuple[int, int]) -> bool:
        """Abort a transaction (coordinator, sequence), whosever it is. Again changes nothing.

        It is aborted when this returns; False: some participants are still to be told. Raises
        `Conflict` if it is committed, `NotFound` if there was never such a transaction.
        """
        path = _transaction("abortTransaction", txn_id)
        response, _ = self._exchange("POST", path, version=3)
        return response.status != 202

    def coordinators(self) -> dict[int, dict[str, Any]]:
        """Statistics of every transaction coordinator, by its number."""
        found = self.request("GET", "transactions/coordinatorStats", version=3)
        return {int(number): stats for number, stats in found.items()}

    def scale_coordinators(self, count: int) -> None:
        """Have ``count`` transaction coordinators; `PreconditionFailed` if there are as many.

        Clients learn of the new ones when they connect.
        """
        self.request("POST", "transactions/transactionCoordinator/replicas", count, version=3)

    def transaction_buffer_stats(self, topic: str) -> dict[str, Any]:
        """The transactions that are ongoing in a plain topic or a partition, and how far it may
        be read."""
        path = f"transactions/transactionBufferStats/{_local(topic)}"
        return dict(self.request("GET", path, version=3))

    def pending_ack_stats(self, topic: str, subscription: str) -> dict[str, Any]:
        """The acknowledgements that are pending in a subscription of a plain topic or partition."""
        path = f"transactions/pendingAckStats/{_local(topic)}/{_path(subscription)}"
        return dict(self.request("GET", path, version=3))

    # -- ledgers -------------------------------------------------------------------

    def ledger_census(self) -> dict[str, Any]:
        """What is stored against what is listed and what is to be deleted: ``ledgers`` and
        ``bytes`` by state in ``totals``, by kind of actor and state in ``kinds``; up to 1000 of
        each state but *listed* by name in ``ledgers``.

        *orphan* is what nobody will delete, *missing* what is listed and not stored. The journals
        in ``unreadable`` aren't counted, each with the reason.
        """
        return dict(self.request("GET", "ledgers/census", version=3))

    def repair_ledgers(self) -> dict[str, Any]:
        """The census, of which the orphans are deleted from now on: so many were ``announced``."""
        return dict(self.request("POST", "ledgers/census/repair", version=3))

    def ledger(self, ledger_id: int) -> dict[str, Any]:
        """Where a ledger is, whose it is, and what is to become of it. Raises `NotFound`."""
        return dict(self.request("GET", _path("ledgers", str(ledger_id)), version=3))

    def dead_ledgers(self) -> list[dict[str, Any]]:
        """The deletions that were given up and that nobody has dealt with, by their ``id``."""
        return list(self.request("GET", "ledgers/dlq", version=3))

    def retry_dead_ledgers(self, ids: Sequence[str] | None = None) -> int:
        """Have deletions tried again that were given up, by default all; returns how many.

        Raises `NotFound` if there is none of such an id.
        """
        return int(self.request("POST", "ledgers/dlq/retry", _ids(ids), version=3)["retried"])

    def forget_dead_ledgers(self, ids: Sequence[str] | None = None) -> int:
        """List deletions no more that were given up, by default all; returns how many.

        What is stored of them stays. Raises `NotFound` if there is none of such an id.
        """
        return int(self.request("POST", "ledgers/dlq/forget", _ids(ids), version=3)["forgotten"])


def _credentials(token: str | None) -> dict[str, str]:
    """As the body of a cluster carries a token; "" takes it away, None says nothing."""
    if token is None:
        return {}
    return {"authenticationParameters": f"token:{token}" if token else ""}


def _migration(tenant: str) -> str:
    return _path("velaray", "migrations", tenant)


def _ids(ids: Sequence[str] | None) -> dict[str, list[str]]:
    return {} if ids is None else {"ids": list(ids)}


def _error(status: int, content: bytes) -> AdminError:
    try:
        reason = json.loads(content)["reason"]
    except (ValueError, KeyError, TypeError):
        reason = content[:200].decode("utf-8", "replace") or f"HTTP status {status}"
    return _ERRORS.get(status, AdminError)(status, reason)


def _path(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)


def _split(namespace: str) -> tuple[str, str]:
    tenant, separator, name = namespace.partition("/")
    if not separator:
        raise Invalid(422, f"not a namespace: {namespace!r}; write tenant/namespace")
    return tenant, name


def _namespace(namespace: str) -> str:
    return _path("namespaces", *_split(namespace))


def _local(topic: str) -> str:
    name = TopicName.parse(topic)
    return _path(name.tenant, name.namespace, str(name).rpartition("/")[2])


def _topic(topic: str) -> str:
    return f"{_path(TopicName.parse(topic).domain)}/{_local(topic)}"


def _schemas(topic: str, *parts: str) -> str:
    return f"schemas/{_local(topic)}/{_path(*parts)}"


def _schema_body(kind: str, schema: str, given: Mapping[str, str] | None) -> dict[str, Any]:
    return {"type": kind, "schema": schema, "properties": dict(given or {})}


def _transaction(what: str, txn_id: tuple[int, int]) -> str:
    coordinator, sequence = txn_id
    return _path("transactions", what, str(coordinator), str(sequence))


def _level(where: str, *parts: str) -> str:
    if where == "cluster":
        return _path(*parts)
    is_topic = "://" in where or where.count("/") != 1
    return f"{_topic(where) if is_topic else _namespace(where)}/{_path(*parts)}"


def _milliseconds(text: str) -> int:
    """A time in a header, in milliseconds since 1970: a number, or a date as Pulsar writes it."""
    if text.isdigit():
        return int(text)
    since = datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(milliseconds=1)


def _subscription(topic: str, subscription: str) -> str:
    return f"{_topic(topic)}/{_path('subscription', subscription)}"


def _message_id(found: Mapping[str, int]) -> MessageId:
    return MessageId(found["partitionIndex"], found["ledgerId"], found["entryId"])


def _id_body(found: MessageId) -> dict[str, int]:
    return {
        "ledgerId": found.ledger_id(),
        "entryId": found.entry_id(),
        "partitionIndex": found.partition(),
    }
