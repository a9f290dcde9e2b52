"""Administration of transactions and their coordinators."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt

from velaray.client.admin.connection import Resource
from velaray.client.admin.operations import V3, AnyObject, Operation, Parameter, Whole, flag, reads
from velaray.client.admin.paths import local_path, path_of

TRANSACTIONS = f"{V3}/transactions"
ONE = "{most}/{least}"
OF_TOPIC = "{tenant}/{namespace}/{topic}"

Coordinators = Annotated[int, Ge(1), Lt(1 << 16)]

STATUS: Parameter[str | None] = Parameter(
    "status", Literal["OPEN", "COMMITTING", "ABORTING"], None, "Only transactions in this state."
)
COORDINATOR: Parameter[int | None] = Parameter(
    "coordinatorId", Whole, None, "Only this coordinator."
)
OLDER_THAN = Parameter("olderThan", Whole, 0, "Only those that began so long ago (ms).")
MOST = Parameter("most", Whole, 1000, "Answer at most so many transactions.")

LOW_WATER_MARKS = flag("lowWaterMarks", "Add the low-water marks, which are always empty.")

LIST = reads(TRANSACTIONS, AnyObject, STATUS, COORDINATOR, OLDER_THAN, MOST)
GET = reads(f"{TRANSACTIONS}/transactionMetadata/{ONE}", AnyObject)
ABORT = Operation("POST", f"{TRANSACTIONS}/abortTransaction/{ONE}", answers={204: None, 202: None})
COORDINATOR_STATS = reads(f"{TRANSACTIONS}/coordinatorStats", AnyObject, COORDINATOR)
SCALE = Operation("POST", f"{TRANSACTIONS}/transactionCoordinator/replicas", body=Coordinators)
BUFFER_STATS = reads(
    f"{TRANSACTIONS}/transactionBufferStats/{OF_TOPIC}", AnyObject, LOW_WATER_MARKS
)
PENDING_ACK_STATS = reads(
    f"{TRANSACTIONS}/pendingAckStats/{OF_TOPIC}/{{subscription}}", AnyObject, LOW_WATER_MARKS
)


class Transactions(Resource):
    """The transactions of all coordinators."""

    def __call__(
        self,
        *,
        status: str | None = None,
        coordinator: int | None = None,
        older_than_ms: int = 0,
        most: int = 1000,
    ) -> dict[str, Any]:
        """Return the ``transactions`` that haven't ended, oldest first: ``most`` of ``total``.

        ``status`` selects those that are OPEN, COMMITTING or ABORTING, ``coordinator`` those of one
        coordinator, ``older_than_ms`` those that began so long ago. Ages and remaining timeouts are
        in milliseconds.
        """
        named = {"status": status, "coordinatorId": coordinator}
        query = {name: str(value) for name, value in named.items() if value is not None}
        query |= {"olderThan": str(older_than_ms), "most": str(most)}
        return dict(self._connection.request("GET", "transactions", query=query, version=3))

    def get(self, txn_id: tuple[int, int]) -> dict[str, Any]:
        """Return a transaction (coordinator, sequence): what every participant holds of it, and
        what its end ``waitsFor``. The ``status`` of one that ended, COMMITTED or ABORTED, is kept
        permanently.

        Raises `NotFound` if there was never such a transaction.
        """
        path = _path("transactionMetadata", txn_id)
        return dict(self._connection.request("GET", path, version=3))

    def abort(self, txn_id: tuple[int, int]) -> bool:
        """Abort a transaction (coordinator, sequence) of any client. A repetition changes nothing.

        The transaction is aborted when this returns; False: some participants haven't applied it
        yet. Raises `Conflict` if it is committed, `NotFound` if there was never such a transaction.
        """
        path = _path("abortTransaction", txn_id)
        response, _ = self._connection.exchange("POST", path, version=3)
        return response.status != 202

    def coordinators(self) -> dict[int, dict[str, Any]]:
        """Return the statistics of every transaction coordinator, by its number."""
        found = self._connection.request("GET", "transactions/coordinatorStats", version=3)
        return {int(number): stats for number, stats in found.items()}

    def scale_coordinators(self, count: int) -> None:
        """Increase the number of transaction coordinators to ``count``. Clients use the new ones
        after they connect again.

        Raises `PreconditionFailed` if there are as many already.
        """
        path = "transactions/transactionCoordinator/replicas"
        self._connection.request("POST", path, count, version=3)

    def buffer_stats(self, topic: str) -> dict[str, Any]:
        """Return the ongoing transactions of a plain topic or a partition, and the position up to
        which consumers may read."""
        path = f"transactions/transactionBufferStats/{local_path(topic)}"
        return dict(self._connection.request("GET", path, version=3))

    def pending_ack_stats(self, topic: str, subscription: str) -> dict[str, Any]:
        """Return the pending acknowledgements in a subscription of a plain topic or partition."""
        path = f"transactions/pendingAckStats/{local_path(topic)}/{path_of(subscription)}"
        return dict(self._connection.request("GET", path, version=3))


def _path(what: str, txn_id: tuple[int, int]) -> str:
    coordinator, sequence = txn_id
    return path_of("transactions", what, str(coordinator), str(sequence))
