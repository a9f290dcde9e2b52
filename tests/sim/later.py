"""What must hold of delayed messages; checkers as in `tests.sim.checkers`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.checkers import Evidence

IN_ORDER = (0, 2)
"""The wire's numbers of the types that get everything at once: Exclusive, Failover."""


def delayed_messages_are_not_early(run: Evidence) -> Iterator[str]:
    """Shared consumers get no delayed message early. (Its delivery is judged with all others.)

    Runs in which a clock was set are exempt: setting it forward makes messages due.
    """
    if any("clock jump" in note["fault"] for _, _, note in run.history.of("fault")):
        return
    due = {note["content"]: note["due"] for _, _, note in run.history.of("send") if note.get("due")}
    in_order: set[str] = set()
    for time, kind, note in run.history.of("subscribe", "received"):
        subscription = note["subscription"]
        if kind == "subscribe":
            if note["kind"] in IN_ORDER:
                in_order.add(subscription)
        elif subscription not in in_order and time < due.get(note["content"], 0.0):
            content = note["content"]
            yield f"{time} s: {subscription} got {content}, which is due at {due[content]} s"
