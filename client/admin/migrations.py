"""Moving tenants between clusters: migrations, inbound replication, and fail-over."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from annotated_types import MinLen
from typing_extensions import TypedDict

from velaray.client.admin.calls import call
from velaray.client.admin.connection import ModeT, Resource
from velaray.client.admin.operations import (
    V2,
    AnyObject,
    Operation,
    Parameter,
    Query,
    Whole,
    flag,
    reads,
)

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


class Migrations(Resource[ModeT]):
    """The migrations of tenants from this cluster to others."""

    @call
    async def __call__(self) -> list[dict[str, Any]]:
        """Return the newest migration of every tenant that was to move away from here."""
        return list(await self._ask(LIST))

    @call
    async def examine(
        self, tenant: str, to: str, *, progress: str = "exact", max_lag: int = 1000
    ) -> dict[str, Any]:
        """Return what would move if a tenant moved to another cluster, and the ``problems`` that
        prevent it. Nothing is changed.

        Raises as `start` does if the request makes no sense.
        """
        asked = {"target": to, "progress": progress, "maxLag": max_lag, "dryRun": True}
        return dict(await self._ask(START, {"tenant": tenant}, body=asked))

    @call
    async def start(
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
        return dict(await self._ask(START, {"tenant": tenant}, body=asked))

    @call
    async def get(self, tenant: str) -> dict[str, Any]:
        """Return the state of a tenant's newest migration away from here: its ``phase``, whether it
        is ``over``, the ``steps`` with their times, and the progress in ``detail``.

        Raises `NotFound` if there was no migration.
        """
        return dict(await self._ask(GET, {"tenant": tenant}))

    @call
    async def roll_back(self, tenant: str, why: str = "asked to") -> dict[str, Any]:
        """Cancel a migration; return what `get` does.

        Raises `Conflict` once the move is decided, `NotFound` if there was no migration.
        """
        return dict(await self._ask(ROLL_BACK, {"tenant": tenant}, {WHY: why}))


class Pulls(Resource[ModeT]):
    """Tenants whose topics this cluster reads from another cluster."""

    @call
    async def __call__(self, tenant: str) -> list[dict[str, Any]]:
        """Return the progress of each partition of a tenant that is read from another cluster."""
        return list(await self._ask(PULLS, {"tenant": tenant}))

    @call
    async def start(self, tenant: str, cluster: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Create here what a tenant has in ``cluster``, usually a Pulsar cluster, and begin to read
        its topics from there.

        Return the ``steps`` that were done (``dry_run``: that would be done) and ``notes``, such as
        what isn't copied. A repetition adds what is new there. Raises `NotFound`,
        `PreconditionFailed` if this cluster has no number, `Conflict` if something exists here in
        another form, `Unavailable` if the other cluster doesn't answer. Then nothing has changed.
        """
        body = {"cluster": cluster, "dryRun": dry_run}
        return dict(await self._ask(START_PULL, {"tenant": tenant}, body=body))

    @call
    async def finish(self, tenant: str, cluster: str, *, force: bool = False) -> dict[str, Any]:
        """Stop reading a tenant's topics from ``cluster``; return what `start` does. The ``notes``
        name what remains there.

        Raises `Conflict` while something is missing here, unless ``force``.
        """
        query: Query = {CLUSTER: cluster, UNFINISHED: force}
        return dict(await self._ask(FINISH_PULL, {"tenant": tenant}, query))


class FailOvers(Resource[ModeT]):
    """Tenants whose home cluster is lost."""

    @call
    async def start(self, tenant: str, lost: str | None = None) -> dict[str, Any]:
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
        return dict(await self._ask(FAIL_OVER, {"tenant": tenant}, body=body))

    @call
    async def received(self, tenant: str, topic: str, cluster: str) -> dict[str, Any]:
        """Return what a partition of a tenant received from another cluster: the ``newest``
        position there, and the progress of the ``subscriptions``, each as encoded parts."""
        query: Query = {TOPIC: topic, CLUSTER: cluster}
        return dict(await self._ask(RECEIVED, {"tenant": tenant}, query))
