"""Moving tenants between clusters: migrations, inbound replication, and fail-over."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from annotated_types import MinLen
from typing_extensions import TypedDict

from velaray.client.admin.connection import Resource
from velaray.client.admin.operations import V2, AnyObject, Operation, Parameter, Whole, flag, reads
from velaray.client.admin.paths import path_of

_MIGRATIONS = f"{V2}/velaray/migrations"
_MIGRATION = f"{_MIGRATIONS}/{{tenant}}"
_PULLS = f"{V2}/velaray/pulls/{{tenant}}"
_FAILOVER = f"{V2}/velaray/failovers/{{tenant}}"


class MigrationRequest(TypedDict):
    """Where a tenant is to move."""

    target: str
    progress: NotRequired[str]
    maxLag: NotRequired[Whole]
    dryRun: NotRequired[bool]


class PullRequest(TypedDict):
    """The cluster that a tenant's topics are read from."""

    cluster: Annotated[str, MinLen(1)]
    dryRun: NotRequired[bool]


class FailOverRequest(TypedDict, total=False):
    """The cluster that is lost, if this one doesn't know the tenant's home."""

    lost: str


WHY = Parameter("why", str, "asked to", "The reason, which is recorded.")
CLUSTER = Parameter("cluster", str, "", "The name of the other cluster.")
TOPIC = Parameter("topic", str, "", "The name of a partition.")
UNFINISHED = flag("force", "Stop even if entries are missing here.")

LIST = reads(_MIGRATIONS, list[AnyObject])
START = Operation("POST", _MIGRATION, body=MigrationRequest, answers={200: AnyObject})
GET = reads(_MIGRATION, AnyObject)
ROLL_BACK = Operation("DELETE", _MIGRATION, (WHY,), answers={200: AnyObject})
PULLS = reads(_PULLS, list[AnyObject])
START_PULL = Operation("POST", _PULLS, body=PullRequest, answers={200: AnyObject})
FINISH_PULL = Operation("DELETE", _PULLS, (CLUSTER, UNFINISHED), answers={200: AnyObject})
FAIL_OVER = Operation("POST", _FAILOVER, body=FailOverRequest, answers={200: AnyObject})
RECEIVED = reads(f"{_FAILOVER}/received", AnyObject, TOPIC, CLUSTER)


class Migrations(Resource):
    """The migrations of tenants from this cluster to others."""

    def __call__(self) -> list[dict[str, Any]]:
        """Return the newest migration of every tenant that was to move away from here."""
        return list(self._connection.request("GET", path_of("velaray", "migrations")))

    def examine(
        self, tenant: str, to: str, *, progress: str = "exact", max_lag: int = 1000
    ) -> dict[str, Any]:
        """Return what would move if a tenant moved to another cluster, and the ``problems`` that
        prevent it. Nothing is changed.

        Raises as `start` does if the request makes no sense.
        """
        asked = {"target": to, "progress": progress, "maxLag": max_lag, "dryRun": True}
        return dict(self._connection.request("POST", _migration(tenant), asked))

    def start(
        self, tenant: str, to: str, *, progress: str = "exact", max_lag: int = 1000
    ) -> dict[str, Any]:
        """Move a tenant from this cluster, its home, to another one, with all its data. Its clients
        continue meanwhile. Return what `get` does. Once begun, the migration survives every crash.

        The fence goes up when at most ``max_lag`` entries are missing in the other cluster. With
        ``progress`` "snapshots" that cluster gets only the mark-delete positions of subscriptions.

        Raises `NotFound` if the tenant or the cluster doesn't exist, `PreconditionFailed` if this
        isn't the home cluster or the tenant can't move at all, `Conflict` if something prevents the
        migration or the tenant is moving elsewhere, `Unavailable` if the other cluster doesn't
        answer. Then nothing has changed.
        """
        asked = {"target": to, "progress": progress, "maxLag": max_lag}
        return dict(self._connection.request("POST", _migration(tenant), asked))

    def get(self, tenant: str) -> dict[str, Any]:
        """Return the state of a tenant's newest migration away from here: its ``phase``, whether it
        is ``over``, the ``steps`` with their times, and the progress in ``detail``.

        Raises `NotFound` if there was no migration.
        """
        return dict(self._connection.request("GET", _migration(tenant)))

    def roll_back(self, tenant: str, why: str = "asked to") -> dict[str, Any]:
        """Cancel a migration; return what `get` does.

        Raises `Conflict` once the move is decided, `NotFound` if there was no migration.
        """
        return dict(self._connection.request("DELETE", _migration(tenant), query={"why": why}))


class Pulls(Resource):
    """Tenants whose topics this cluster reads from another cluster."""

    def __call__(self, tenant: str) -> list[dict[str, Any]]:
        """Return the progress of each partition of a tenant that is read from another cluster."""
        return list(self._connection.request("GET", path_of("velaray", "pulls", tenant)))

    def start(self, tenant: str, cluster: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Create here what a tenant has in ``cluster``, usually a Pulsar cluster, and begin to read
        its topics from there.

        Return the ``steps`` that were done (``dry_run``: that would be done) and ``notes``, such as
        what isn't copied. A repetition adds what is new there. Raises `NotFound`,
        `PreconditionFailed` if this cluster has no number, `Conflict` if something exists here in
        another form, `Unavailable` if the other cluster doesn't answer. Then nothing has changed.
        """
        body = {"cluster": cluster, "dryRun": dry_run}
        return dict(self._connection.request("POST", path_of("velaray", "pulls", tenant), body))

    def finish(self, tenant: str, cluster: str, *, force: bool = False) -> dict[str, Any]:
        """Stop reading a tenant's topics from ``cluster``; return what `start` does. The ``notes``
        name what remains there.

        Raises `Conflict` while something is missing here, unless ``force``.
        """
        query = {"cluster": cluster} | ({"force": "true"} if force else {})
        path = path_of("velaray", "pulls", tenant)
        return dict(self._connection.request("DELETE", path, query=query))


class FailOvers(Resource):
    """Tenants whose home cluster is lost."""

    def start(self, tenant: str, lost: str | None = None) -> dict[str, Any]:
        """Make this cluster the home of a tenant whose home cluster is lost, with the data that was
        replicated.

        Return for each of its ``partitions``: the ``newest`` position that came from there and its
        publish time; the number of ``producers`` whose last sequence id is known; how many
        ``transactions`` were ``given_up`` because a part of them is missing; and for each of the
        ``subscriptions`` how many entries and messages from there it hasn't acknowledged, which is
        the most that is delivered again, and when its progress was last received.

        ``lost`` names the lost cluster, if this one doesn't know the tenant's home. A repetition
        changes nothing. Raises `NotFound` if nothing of the tenant is here, `Invalid` if the lost
        cluster isn't known.
        """
        body = {} if lost is None else {"lost": lost}
        path = path_of("velaray", "failovers", tenant)
        return dict(self._connection.request("POST", path, body))

    def received(self, tenant: str, topic: str, cluster: str) -> dict[str, Any]:
        """Return what a partition of a tenant received from another cluster: the ``newest``
        position there, and the progress of the ``subscriptions``, each as encoded parts."""
        path = path_of("velaray", "failovers", tenant, "received")
        query = {"topic": topic, "cluster": cluster}
        return dict(self._connection.request("GET", path, query=query))


def _migration(tenant: str) -> str:
    return path_of("velaray", "migrations", tenant)
