"""Administration of the hosts that actors share."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from annotated_types import MinLen
from typing_extensions import TypedDict

from velaray.client.admin.calls import call
from velaray.client.admin.connection import ModeT, Resource
from velaray.client.admin.operations import V2, Operation, Parameter, reads

_HOSTS = f"{V2}/velaray/hosts"


class Host(TypedDict):
    """A process that runs actors."""

    name: str
    pid: int
    node: str
    actors: list[str]
    memory: int
    cpu_s: float
    lag_s: float
    version: str
    drained: bool
    restarted_s: float | None


class NamedHost(TypedDict):
    """The name of a host."""

    host: Annotated[str, MinLen(1)]


class Move(TypedDict):
    """What to move: a topic, or the key of an actor; and the host, by default the emptiest one."""

    name: Annotated[str, MinLen(1)]
    host: NotRequired[Annotated[str, MinLen(1)]]


class Moved(TypedDict):
    """How many topics and other actors were moved."""

    moved: int


NAME: Parameter[str] = Parameter("host", str, "", "The name of the host.")

LIST = reads(_HOSTS, list[Host])
SILENT = reads(f"{_HOSTS}/silent", list[str])
LOG = reads(f"{_HOSTS}/log", list[str], NAME)
GET = reads(f"{_HOSTS}/{{host}}", Host)
MOVE = Operation("POST", f"{_HOSTS}/move", body=Move, answers={200: NamedHost})
DRAIN = Operation("POST", f"{_HOSTS}/drain", body=NamedHost, answers={200: Moved})
RESUME = Operation("POST", f"{_HOSTS}/resume", body=NamedHost)
RESTART = Operation("POST", f"{_HOSTS}/restart", body=NamedHost, answers={200: Host})


class Hosts(Resource[ModeT]):
    """The processes that run the actors of a cluster with shared placement.

    Every method raises `PreconditionFailed` if the actors of the cluster share no hosts.
    """

    @call
    async def __call__(self) -> list[dict[str, Any]]:
        """Return the hosts that run: ``name``, ``pid``, ``node``, ``actors``, ``memory`` in bytes,
        ``cpu_s``, ``lag_s`` (the longest delay of the event loop in the last minute), ``version``
        of velaray, ``drained``.

        A host that doesn't answer within five seconds is left out.
        """
        return list(await self._ask(LIST))

    @call
    async def silent(self) -> list[str]:
        """Return the names of the hosts that don't answer within five seconds: the process of each
        restarts, or is busy."""
        return list(await self._ask(SILENT))

    @call
    async def log(self, host: str) -> list[str]:
        """Return the last lines, at most 500, that a host has written to its log since its process
        began, oldest first. Raises `NotFound` if it wasn't started, `Unavailable` if it doesn't
        answer within five seconds. `velaray logs` reads all lines."""
        return list(await self._ask(LOG, query={NAME: host}))

    @call
    async def get(self, host: str) -> dict[str, Any]:
        """Return the row of one host, as in the list. Raises `NotFound` if it doesn't run, or
        doesn't answer in time."""
        return dict(await self._ask(GET, {"host": host}))

    @call
    async def move(self, name: str, host: str | None = None) -> str:
        """Move the actors of a topic (or of one partition), or the actor with the key ``name``, to
        ``host`` (default: the one with fewest actors). Return the name of the host.

        Clients reconnect; nothing acknowledged is lost. Raises `NotFound` for an unknown host and
        if nothing of this name runs, `Conflict` if no other host takes actors, and `Unavailable` if
        the former host doesn't answer; a repetition is safe.
        """
        body = {"name": name} if host is None else {"name": name, "host": host}
        return str((await self._ask(MOVE, body=body))["host"])

    @call
    async def drain(self, host: str) -> int:
        """Move everything out of a host and place nothing more in it, until `resume` or until the
        placement directory is restarted. Return the number of topics and other actors that were
        moved. Raises as `move` does."""
        found = await self._ask(DRAIN, body={"host": host})
        return int(found["moved"])

    @call
    async def resume(self, host: str) -> None:
        """Place actors in a drained host again. Raises `NotFound`."""
        await self._ask(RESUME, body={"host": host})

    @call
    async def restart(self, host: str) -> dict[str, Any]:
        """End the process of a drained host, and wait for the new one, which runs the version of
        velaray that is installed now. It takes actors again. Return its row, as in the list.

        Raises `NotFound` if no such host runs. Raises `Conflict`, with nothing changed, if it still
        has actors, or if the installed version can't work with the running one. Raises
        `Unavailable` if the new process doesn't answer in time; then the host stays drained.
        """
        return dict(await self._ask(RESTART, body={"host": host}))
