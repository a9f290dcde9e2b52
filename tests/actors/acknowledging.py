"""A subscription's runtime with small segments, for the tests of what it keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from velaray.actors.runtime import Runtime
from velaray.actors.sets import acknowledged_ranges
from velaray.actors.subscription.machine import Create, SubscriptionMachine, SubscriptionState
from velaray.events.ids import ActorKey, TopicName
from velaray.journal import journal
from velaray.journal.journal import JournalSettings
from velaray.journal.store import LedgerStore

END = 600
SMALL = JournalSettings(roll_records=12, early_records=6)
KEY = ActorKey.of_partition(TopicName.parse("acknowledged"), 1).of_subscription("s", 1)

Replace = Callable[[Any, str, Any], None]


def small_segments(replace: Replace) -> None:
    """Some hundred entries make many segments, most of which don't fit into memory."""
    replace(acknowledged_ranges, "SEGMENT", 16)
    replace(acknowledged_ranges, "BUDGET", 3_000)
    replace(journal, "MAX_REFERRED", 3)


async def begin(
    store: LedgerStore,
    settings: JournalSettings = SMALL,
    on_fatal: Callable[[BaseException], None] | None = None,
) -> Runtime[SubscriptionState]:
    """Recover the subscription; created, if it is new, at offset 0."""

    def fail(error: BaseException) -> None:
        raise error

    runtime = await Runtime.recover(
        SubscriptionMachine(), store, KEY, lambda: 1_000, settings, on_fatal or fail
    )
    await runtime.ask(Create(0))
    return runtime


async def acked(runtime: Runtime[SubscriptionState]) -> set[int]:
    """What would not be delivered again."""
    return await runtime.look(
        lambda state: {offset for offset in range(END) if state.cursor.is_acked(offset)}
    )
