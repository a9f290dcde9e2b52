"""The right that each operation of the admin interface and each call of a handle needs.

An operation without a row can't be served: the interface doesn't start. `all_rules` adds the
protocol's commands (`velaray.broker.authorisation.rules`), and is the whole table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aiohttp import web

from velaray.actors.catalog.state import Scope
from velaray.admin.audit_records import ORIGINAL_PRINCIPAL
from velaray.admin.auditing import Check
from velaray.admin.binding import Route
from velaray.admin.changes import is_change
from velaray.admin.http import ACTOR_SYSTEM, IDENTITY, AdminError
from velaray.broker.authorisation.gate import roles_of
from velaray.broker.authorisation.grant_watch import GrantWatch
from velaray.broker.authorisation.grants import Demand, Right
from velaray.broker.authorisation.rules import COMMANDS
from velaray.client.admin.operations import V2, Operation
from velaray.events.ids import TopicName
from velaray.topology.auth import AuthenticationFailed

GRANTS: web.AppKey[GrantWatch | None] = web.AppKey("grants", object)  # type: ignore[arg-type]

_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
_BUNDLE = f"{_NAMESPACE}/{{bundle}}"
_TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_SUBSCRIPTION = f"{_TOPIC}/subscription/{{subscription}}"
_SCHEMAS = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
_TRANSACTIONS = "/admin/v3/transactions"
_LEDGERS = "/admin/v3/ledgers"
_VELARAY = "/admin/v2/velaray"
_CLUSTER = "/admin/v2/clusters/{cluster}"
_IN_TOPIC = "{tenant}/{namespace}/{topic}"

_ROWS: Mapping[Right, tuple[str, ...]] = {
    # The service itself: nothing about any tenant but names and counts in the metrics.
    Right.CONNECT: (
        "GET /admin/v2/brokers/health",
        "GET /admin/v2/brokers/ready",
        "GET /admin/v2/brokers/version",
        "GET /admin/v2/clusters",
        "GET /metrics",
        "GET /openapi.json",
        "GET /docs",
    ),
    # The cluster as a whole, and what tenants must not change themselves.
    Right.SUPERUSER: (
        "GET /admin/v2/brokers",
        "GET /admin/v2/brokers/leaderBroker",
        "GET /admin/v2/brokers/backlog-quota-check",
        "GET /admin/v2/brokers/configuration",
        "GET /admin/v2/brokers/configuration/values",
        "GET /admin/v2/brokers/configuration/runtime",
        "GET /admin/v2/brokers/internal-configuration",
        "GET /admin/v2/brokers/{cluster}",
        "GET /admin/v2/brokers/{cluster}/{broker}/ownedNamespaces",
        "GET /admin/v2/broker-stats/topics",
        "GET /admin/v2/broker-stats/load-report",
        "GET /admin/v2/broker-stats/metrics",
        *(f"{method} {_CLUSTER}" for method in ("GET", "PUT", "POST", "DELETE")),
        f"GET {_CLUSTER}/peers",
        f"POST {_CLUSTER}/peers",
        f"GET {_CLUSTER}/failureDomains",
        f"GET {_CLUSTER}/migrate",
        f"POST {_CLUSTER}/migrate",
        f"GET {_CLUSTER}/namespaceIsolationPolicies",
        f"GET {_CLUSTER}/namespaceIsolationPolicies/brokers",
        f"GET {_CLUSTER}/namespaceIsolationPolicies/brokers/{{broker}}",
        "GET /admin/v2/resourcegroups",
        "GET /admin/v2/homes",
        "POST /admin/v2/tenants/{tenant}/home",
        "PUT /admin/v2/tenants/{tenant}/home",
        "GET /admin/v2/tenants",
        *(f"{method} /admin/v2/tenants/{{tenant}}" for method in ("PUT", "POST", "DELETE")),
        "GET /admin/v2/policies",
        *(f"{method} /admin/v2/policies/{{policy}}" for method in ("GET", "PUT", "POST", "DELETE")),
        "GET /admin/v3/replication",
        "POST /admin/v3/replication/give-up",
        f"GET {_TRANSACTIONS}",
        f"GET {_TRANSACTIONS}/coordinators",
        f"GET {_TRANSACTIONS}/coordinatorStats",
        f"GET {_TRANSACTIONS}/coordinatorInternalStats/{{coordinator}}",
        f"POST {_TRANSACTIONS}/transactionCoordinator/replicas",
        f"GET {_TRANSACTIONS}/transactionMetadata/{{most}}/{{least}}",
        f"GET {_TRANSACTIONS}/slowTransactions/{{timeout}}",
        f"POST {_TRANSACTIONS}/abortTransaction/{{most}}/{{least}}",
        f"GET {_LEDGERS}/census",
        f"POST {_LEDGERS}/census/repair",
        f"GET {_LEDGERS}/dlq",
        f"POST {_LEDGERS}/dlq/retry",
        f"POST {_LEDGERS}/dlq/forget",
        f"GET {_LEDGERS}/{{ledger}}",
        f"GET {_VELARAY}/audit",
        f"GET {_VELARAY}/settings",
        f"GET {_VELARAY}/actors",
        f"GET {_VELARAY}/actors/{{actor}}/state",
        f"GET {_VELARAY}/actors/{{actor}}/events",
        f"GET {_VELARAY}/hosts",
        f"GET {_VELARAY}/hosts/silent",
        f"GET {_VELARAY}/hosts/log",
        f"GET {_VELARAY}/hosts/{{host}}",
        *(f"POST {_VELARAY}/hosts/{verb}" for verb in ("move", "drain", "resume", "restart")),
        f"GET {_VELARAY}/migrations",
        *(f"{method} {_VELARAY}/migrations/{{tenant}}" for method in ("GET", "POST", "DELETE")),
        f"POST {_VELARAY}/failovers/{{tenant}}",
        f"GET {_VELARAY}/failovers/{{tenant}}/received",
        f"GET {_VELARAY}/arrivals/{{tenant}}",
        f"POST {_VELARAY}/arrivals/{{tenant}}/{{step}}",
        *(f"{method} {_VELARAY}/pulls/{{tenant}}" for method in ("GET", "POST", "DELETE")),
    ),
    Right.ADMINISTER: (
        "GET /admin/v2/tenants/{tenant}",
        "GET /admin/v2/tenants/{tenant}/metadata",
        "GET /admin/v2/tenants/{tenant}/home",
        "GET /admin/v2/namespaces/{tenant}",
        *(f"{method} {_NAMESPACE}" for method in ("GET", "PUT", "DELETE")),
        f"GET {_NAMESPACE}/bundles",
        f"POST {_NAMESPACE}/erasures",
        *(
            f"{method} {base}/{path}"
            for base in (_NAMESPACE, _BUNDLE)
            for method, path in (("PUT", "unload"), ("POST", "clearBacklog"))
        ),
        f"GET {_NAMESPACE}/permissions",
        f"GET {_NAMESPACE}/permissions/subscription",
        f"POST {_NAMESPACE}/permissions/subscription/{{subscription}}",
        f"DELETE {_NAMESPACE}/permissions/{{subscription}}/{{role}}",
        *(f"{method} {_NAMESPACE}/permissions/{{role}}" for method in ("POST", "DELETE")),
        *(f"{method} {_NAMESPACE}/properties" for method in ("GET", "PUT", "DELETE")),
        f"GET {_NAMESPACE}/property/{{key}}",
        f"PUT {_NAMESPACE}/property/{{key}}/{{value}}",
        f"DELETE {_NAMESPACE}/property/{{key}}",
        *(f"GET {base}/policies" for base in (_NAMESPACE, _TOPIC)),
        *(
            f"{method} {base}/policies/{{policy}}"
            for base in (_NAMESPACE, _TOPIC)
            for method in ("GET", "PUT", "POST", "DELETE")
        ),
        f"DELETE {_TOPIC}/policies",
        *(f"{method} {_TOPIC}" for method in ("PUT", "DELETE")),
        *(f"{method} {_TOPIC}/partitions" for method in ("PUT", "POST", "DELETE")),
        *(f"{method} {_TOPIC}/properties" for method in ("PUT", "DELETE")),
        f"PUT {_TOPIC}/unload",
        f"POST {_TOPIC}/undelete",
        f"POST {_TOPIC}/terminate",
        f"POST {_TOPIC}/terminate/partitions",
        f"POST {_TOPIC}/createMissedPartitions",
        f"POST {_TOPIC}/trim",
        f"GET {_TOPIC}/permissions",
        *(f"{method} {_TOPIC}/permissions/{{role}}" for method in ("POST", "DELETE")),
        *(
            f"{method} {_TOPIC}/{what}"
            for what in ("compaction", "offload")
            for method in ("GET", "PUT")
        ),
        f"POST {_TOPIC}/all_subscription/expireMessages/{{seconds}}",
        f"POST {_TOPIC}/deadLetters/{{message}}/forget",
        *(
            f"{method} {_TOPIC}/{{subscription}}/dispatchRate"
            for method in ("GET", "POST", "DELETE")
        ),
        f"DELETE {_SCHEMAS}/schema",
    ),
    Right.LOOKUP: (
        "GET /lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}",
        "GET /lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}/bundle",
        f"GET {_NAMESPACE}/topics",
        f"GET {_NAMESPACE}/deletedTopics",
        *(
            f"GET /admin/v2/{domain}/{{tenant}}/{{namespace}}{path}"
            for domain in ("persistent", "non-persistent")
            for path in ("", "/partitioned")
        ),
        f"GET {_TOPIC}/partitions",
        f"GET {_TOPIC}/properties",
        f"GET {_TOPIC}/stats",
        f"GET {_TOPIC}/partitioned-stats",
        f"GET {_TOPIC}/internalStats",
        f"GET {_TOPIC}/partitioned-internalStats",
        f"GET {_TOPIC}/internal-info",
        f"GET {_TOPIC}/marks",
        f"GET {_SCHEMAS}/schema",
        f"GET {_SCHEMAS}/schema/{{version}}",
        f"GET {_SCHEMAS}/schemas",
        f"GET {_SCHEMAS}/metadata",
        f"POST {_SCHEMAS}/version",
        f"POST {_SCHEMAS}/compatibility",
        f"GET {_TRANSACTIONS}/transactionBufferStats/{_IN_TOPIC}",
        f"GET {_TRANSACTIONS}/transactionBufferInternalStats/{_IN_TOPIC}",
        f"GET {_TRANSACTIONS}/transactionInBufferStats/{_IN_TOPIC}/{{most}}/{{least}}",
    ),
    Right.PRODUCE: (f"POST {_SCHEMAS}/schema", f"POST {_TOPIC}/messages"),
    Right.CONSUME: (
        f"GET {_TOPIC}/lastMessageId",
        f"GET {_TOPIC}/ledger/{{ledger}}/entry/{{entry}}",
        f"GET {_TOPIC}/examinemessage",
        f"GET {_TOPIC}/messageid/{{timestamp}}",
        f"PUT {_TOPIC}/backlogSize",
        f"GET {_TOPIC}/deadLetters",
        f"GET {_TOPIC}/subscriptions",
        *(
            f"POST {base}/{path}/{{subscription}}"
            for base in (_NAMESPACE, _BUNDLE)
            for path in ("clearBacklog", "unsubscribe")
        ),
        *(f"{method} {_SUBSCRIPTION}" for method in ("PUT", "DELETE")),
        f"DELETE {_TOPIC}/marks/{{subscription}}",
        f"GET {_SUBSCRIPTION}/describe",
        f"GET {_SUBSCRIPTION}/why/{{message}}",
        *(f"{method} {_SUBSCRIPTION}/undo" for method in ("GET", "POST")),
        f"POST {_SUBSCRIPTION}/resetcursor",
        f"POST {_SUBSCRIPTION}/resetcursor/{{timestamp}}",
        f"POST {_SUBSCRIPTION}/skip/{{count}}",
        f"POST {_SUBSCRIPTION}/skip_all",
        f"POST {_SUBSCRIPTION}/expireMessages/{{seconds}}",
        f"POST {_SUBSCRIPTION}/expireMessages",
        f"POST {_SUBSCRIPTION}/analyzeBacklog",
        *(f"{method} {_SUBSCRIPTION}/properties" for method in ("GET", "PUT")),
        f"GET {_SUBSCRIPTION}/position/{{position}}",
        *(f"{method} {_SUBSCRIPTION}/replicatedSubscriptionStatus" for method in ("GET", "POST")),
        *(
            f"GET {_TRANSACTIONS}/{what}/{_IN_TOPIC}/{{subscription}}"
            for what in ("pendingAckStats", "pendingAckInternalStats")
        ),
        f"GET {_TRANSACTIONS}/transactionInPendingAckStats/{_IN_TOPIC}/{{subscription}}"
        "/{most}/{least}",
        f"GET {_TRANSACTIONS}/positionStatsInPendingAck/{_IN_TOPIC}/{{subscription}}"
        "/{ledger}/{entry}",
    ),
}
OPERATIONS: Mapping[str, Right] = {name: right for right, names in _ROWS.items() for name in names}
"""The right that each operation needs, by method and path. `right_of` has the rule of the routes of
policies, which follow from their table."""

HANDLE_CALLS: Mapping[str, tuple[str, ...]] = {
    "topic": ("publish", "publish_many", "stats", "describe"),
    "subscription": ("receive", "acknowledge", "close", "describe"),
    "coordinator": ("begin", "commit", "abort", "describe"),
    "schema registry": ("get", "versions", "describe"),
    "replicator": ("describe",),
}
"""The methods of each kind of handle. All of them need `Right.RAY`."""

_OF_POLICIES = "velaray.admin.policies"


def right_of(operation: Operation, module: str) -> Right:
    """The right that an operation needs, whose route a module lists.

    Raises `LookupError` if there is no rule.
    """
    if module == _OF_POLICIES and operation.path.startswith((f"{V2}/namespaces/", f"{V2}/persis")):
        return Right.ADMINISTER
    return OPERATIONS[f"{operation.method} {operation.path}"]


def all_rules(routes: Mapping[str, tuple[Route, ...]]) -> Iterator[tuple[str, str, Right]]:
    """Every rule: kind, name, right. ``routes`` has those of the admin interface by module."""
    for kind, rule in COMMANDS.items():
        yield "command", kind.__name__.removeprefix("Command"), rule.right
    for module, listed in routes.items():
        for operation, *_ in listed:
            name = f"{operation.method} {operation.path}"
            yield "operation", name, right_of(operation, module)
    for kind_of_handle, methods in HANDLE_CALLS.items():
        for method in methods:
            yield "handle", f"{kind_of_handle}.{method}", Right.RAY


def check_of(right: Right, operation: Operation) -> Check:
    """A check that raises `AdminError` (403) for clients without the right, and for viewers that
    would change something."""

    async def check(request: web.Request) -> None:
        grants = request.app[GRANTS]
        if grants is not None:
            await _check(grants, request, right, viewing=not is_change(operation, request))

    return check


def viewers_refusal(role: str) -> str:
    """The text for a viewer that would change something."""
    return f"role {role[:200]!r} may look at everything and change nothing"


async def _check(grants: GrantWatch, request: web.Request, right: Right, *, viewing: bool) -> None:
    role, original = request[IDENTITY].role, request.headers.get(ORIGINAL_PRINCIPAL, "")
    try:
        roles = roles_of(grants.settings, role, original)
    except AuthenticationFailed as error:
        raise AdminError(401, str(error)) from error
    viewers = grants.settings.viewers.intersection(roles)
    if viewers and not viewing:
        raise AdminError(403, viewers_refusal(min(viewers)))
    scope = _scope(request) if right not in (Right.CONNECT, Right.SUPERUSER) else Scope()
    subscription = request.match_info.get("subscription", "") if right is Right.CONSUME else ""
    demand = Demand(right, scope, subscription, viewing)
    if not await grants.ask(roles, demand):
        raise AdminError(403, demand.refusal(roles))


def _scope(request: web.Request) -> Scope:
    """The tenant, namespace or topic of the path. Raises `InvalidNameError`."""
    found = request.match_info
    tenant, namespace = found["tenant"], found.get("namespace", "")
    if "topic" in found:
        return Scope.of_topic(
            TopicName.parse(f"persistent://{tenant}/{namespace}/{found['topic']}")
        )
    return Scope(tenant, namespace)


def make_grants(app: web.Application) -> GrantWatch | None:
    """The decisions on rights for an application; None without authorisation."""
    actor_system = app[ACTOR_SYSTEM]
    settings = actor_system.config.roles
    if settings is None:
        return None
    grants = GrantWatch(settings)
    grants.ask_by(actor_system)
    return grants


async def stop_grants(app: web.Application) -> None:
    """Close the connection to the catalog."""
    grants = app[GRANTS]
    if grants is not None:
        grants.stop()
