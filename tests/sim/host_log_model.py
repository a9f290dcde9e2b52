"""A model of host logs that is searched exhaustively: breadth first over all states.

It has the rules of docs/decisions/0044-object-stores.md as `velaray.journal.objects` implements
them. Requests are under way until they take effect, in any order and as late as one likes; answers
are lost. A process that stops is one that takes no further step.

Invariants, by name:

- AckedIsRecovered: an owner that opens a journal has every acknowledged frame, once.
- NothingUnseenAppears: it has what the owner before it had, then that owner's frames in order.
- OneAckerPerEpoch: after it has opened, no frame that it doesn't have is acknowledged.
- NoDanglingTail: no record needs an object that was deleted.

A mutant lacks one rule. The search finds a shortest way to a state that violates an invariant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.sim.host_log_collectors import Collectors
from tests.sim.host_log_states import Setup, State, Step, Write, dangling
from tests.sim.host_log_takers import Takers
from tests.sim.host_log_writers import Writers


class Result(NamedTuple):
    """The outcome of a search: the number of states, the invariant that doesn't hold and a
    shortest way there, and whether all states were seen."""

    states: int
    broken: str
    trace: tuple[str, ...]
    exhausted: bool


class Model:
    """All steps of a configuration."""

    def __init__(self, setup: Setup) -> None:
        self._parts = (Writers(setup), Takers(setup), Collectors(setup))
        self._keeps_stale = "record without compare-and-set" in setup.mutants
        self.setup = setup

    def steps(self, state: State) -> Iterator[Step]:
        """Every step from a state."""
        for part in self._parts:
            yield from part.steps(state)

    def settled(self, state: State) -> State:
        """The state without writes of records that are refused whenever they arrive, and with the
        broken invariant."""
        if not self._keeps_stale:
            refused = [
                request
                for request in state.net
                if isinstance(request, Write)
                and request.base < state.records[request.journal].revision
            ]
            if refused:
                state = state._replace(net=state.net.difference(refused))
        if not state.broken and dangling(state):
            state = state._replace(broken="NoDanglingTail")
        return state


def search(setup: Setup, most_states: int = 1_000_000, wanted: str = "") -> Result:
    """Go through all states until an invariant is violated, or ``most_states`` were seen. If one
    is ``wanted``, violations of others end only their own way."""
    model = Model(setup)
    first = setup.initial()
    seen = {hash(first)}
    came: list[tuple[int, str]] = [(-1, "")]
    frontier = [(first, 0)]
    while frontier and len(seen) <= most_states:
        following: list[tuple[State, int]] = []
        for state, at in frontier:
            for label, step in model.steps(state):
                found = model.settled(step)
                key = hash(found)
                if key in seen:
                    continue
                seen.add(key)
                came.append((at, label))
                if found.broken and wanted in ("", found.broken):
                    return Result(len(seen), found.broken, _trace(came), False)
                if found.broken:
                    continue
                following.append((found, len(came) - 1))
        frontier = following
    return Result(len(seen), "", (), not frontier)


def _trace(came: list[tuple[int, str]]) -> tuple[str, ...]:
    at, labels = len(came) - 1, list[str]()
    while at > 0:
        at, label = came[at]
        labels.append(label)
    return tuple(reversed(labels))
