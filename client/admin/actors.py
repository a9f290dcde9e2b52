"""The journals of actors: their states at points in time, and their events."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from velaray.client.admin.calls import call
from velaray.client.admin.connection import ModeT, Resource
from velaray.client.admin.operations import (
    V2,
    AnyObject,
    Parameter,
    Query,
    Whole,
    reads,
)

_ACTORS = f"{V2}/velaray/actors"


class ActorState(TypedDict):
    """The state of an actor after an event of its journal, and the events that are kept."""

    actor: str
    event: int
    atMs: int | None
    firstEvent: int
    lastEvent: int
    state: AnyObject


class ActorEvent(TypedDict):
    """An event: its number, its time, and the name of its type. ``move`` is the command and reason
    of an event that moves a subscription's cursor, "" for others."""

    event: int
    atMs: int
    name: str
    move: str


UNDER = Parameter(
    "under", str, "", "Only keys that begin with these parts, such as partition/public/default."
)
AFTER_EVENT: Parameter[int | None] = Parameter("event", Whole, None, "The state after this event.")
AT_TIME: Parameter[int | None] = Parameter("time", Whole, None, "The state at this time (ms).")
FIRST = Parameter("first", Whole, 0, "The number of the first event.")
MOST_EVENTS = Parameter("most", Whole, 100, "Answer at most so many events, up to 1000.")

LIST = reads(_ACTORS, list[str], UNDER)
STATE = reads(f"{_ACTORS}/{{actor}}/state", ActorState, AFTER_EVENT, AT_TIME)
EVENTS = reads(f"{_ACTORS}/{{actor}}/events", list[ActorEvent], FIRST, MOST_EVENTS)


class Actors(Resource[ModeT]):
    """The actors that have journals. They are read from the store: no actor is called."""

    @call
    async def __call__(self, under: str = "") -> list[str]:
        """Return the keys of the actors that have a journal: all of them, or those that begin with
        the whole parts ``under``, such as "partition/public/default". The time depends on the
        number of journals below these parts.

        Raises `Invalid` if ``under`` can't be the beginning of a key.
        """
        return list(await self._ask(LIST, query={UNDER: under}))

    @call
    async def state(
        self, actor: str, *, event: int | None = None, time_ms: int | None = None
    ) -> dict[str, Any]:
        """Return the ``state`` of an actor after an ``event`` of its journal, or at a time in
        milliseconds since 1970; by default the newest one that is stored. ``firstEvent`` and
        ``lastEvent`` are those that the journal holds.

        Raises `NotFound` if the journal doesn't reach there.
        """
        query: Query = {AFTER_EVENT: event, AT_TIME: time_ms}
        return dict(await self._ask(STATE, {"actor": actor}, query))

    @call
    async def events(self, actor: str, first: int = 0, most: int = 100) -> list[dict[str, Any]]:
        """Return ``most`` events of an actor's journal from number ``first`` on: number, time and
        name. ``move`` is the command and reason of an event that moves a subscription's cursor, ""
        for others. Raises `NotFound`."""
        query: Query = {FIRST: first, MOST_EVENTS: most}
        return list(await self._ask(EVENTS, {"actor": actor}, query))
