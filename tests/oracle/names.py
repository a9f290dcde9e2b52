"""Renames since the oracle was recorded: new name to recorded name.

A commit that renames adds its rows here. `MODULES` and `CLASSES` find the classes of recorded
commands; `WORDS` maps the text of histories. The tables are empty when the oracle is recorded anew.
"""

from __future__ import annotations

import re

MODULES: dict[str, str] = {
    "velaray.actors.adoption": "velaray.actors.partition.producer_transfer",
    "velaray.actors.arrivals": "velaray.actors.catalog.migration_target",
    "velaray.actors.bitmaps": "velaray.actors.sets.bitmaps",
    "velaray.actors.books": "velaray.actors.dispatch.in_flight",
    "velaray.actors.catalog": "velaray.actors.catalog.machine",
    "velaray.actors.catalog_state": "velaray.actors.catalog.state",
    "velaray.actors.chunks": "velaray.actors.dispatch.chunks",
    "velaray.actors.clusters": "velaray.actors.catalog.clusters",
    "velaray.actors.compacted": "velaray.actors.partition.compacted",
    "velaray.actors.compacted_index": "velaray.actors.partition.compacted_index",
    "velaray.actors.compaction": "velaray.actors.partition.compaction",
    "velaray.actors.consumers": "velaray.actors.dispatch.consumers",
    "velaray.actors.coordinator": "velaray.actors.coordinator.machine",
    "velaray.actors.coordinator_state": "velaray.actors.coordinator.state",
    "velaray.actors.cursor": "velaray.actors.subscription.cursor",
    "velaray.actors.dead_letters": "velaray.actors.subscription.dead_letters",
    "velaray.actors.delayed": "velaray.actors.partition.delayed",
    "velaray.actors.deliverable": "velaray.actors.dispatch.deliverable",
    "velaray.actors.dispatch": "velaray.actors.dispatch.dispatcher",
    "velaray.actors.draining": "velaray.actors.dispatch.draining",
    "velaray.actors.expiry": "velaray.actors.subscription.expiry",
    "velaray.actors.exports": "velaray.actors.subscription.progress_exports",
    "velaray.actors.fences": "velaray.actors.partition.migration_fence",
    "velaray.actors.foreign": "velaray.actors.subscription.remote_progress",
    "velaray.actors.foreign_transactions": "velaray.actors.partition.remote_transactions",
    "velaray.actors.graves": "velaray.actors.catalog.deleted_topics",
    "velaray.actors.holdings": "velaray.actors.sets.holdings",
    "velaray.actors.holes": "velaray.actors.sets.acknowledged_ranges",
    "velaray.actors.interleaving": "velaray.actors.partition.interleaving",
    "velaray.actors.key_shared": "velaray.actors.dispatch.key_ranges",
    "velaray.actors.kit": "velaray.actors.testing",
    "velaray.actors.ledger_table": "velaray.actors.partition.ledger_table",
    "velaray.actors.migration_state": "velaray.actors.catalog.migration_state",
    "velaray.actors.migrations": "velaray.actors.catalog.migrations",
    "velaray.actors.offset_sets": "velaray.actors.sets.offset_sets",
    "velaray.actors.origins": "velaray.actors.partition.origins",
    "velaray.actors.outgoing": "velaray.actors.partition.outgoing_transactions",
    "velaray.actors.partition": "velaray.actors.partition.machine",
    "velaray.actors.pending_acks": "velaray.actors.subscription.pending_acks",
    "velaray.actors.pending_sets": "velaray.actors.subscription.pending_sets",
    "velaray.actors.policies": "velaray.actors.catalog.policies",
    "velaray.actors.producers": "velaray.actors.partition.producers",
    "velaray.actors.properties": "velaray.actors.partition.subscription_properties",
    "velaray.actors.pulls": "velaray.actors.catalog.inbound_replication",
    "velaray.actors.ranges": "velaray.actors.sets.ranges",
    "velaray.actors.redelivery": "velaray.actors.subscription.redelivery",
    "velaray.actors.schema_registry": "velaray.actors.schema_registry.machine",
    "velaray.actors.segments": "velaray.actors.sets.ack_segments",
    "velaray.actors.series": "velaray.actors.coordinator.commit_sequence",
    "velaray.actors.serve_by_key": "velaray.actors.dispatch.key_shared",
    "velaray.actors.serve_in_turns": "velaray.actors.dispatch.shared",
    "velaray.actors.serve_one": "velaray.actors.dispatch.single_active",
    "velaray.actors.serving": "velaray.actors.dispatch.strategy",
    "velaray.actors.sizes": "velaray.actors.dispatch.sizes",
    "velaray.actors.skipped": "velaray.actors.partition.skipped_sequence_ids",
    "velaray.actors.snapshots": "velaray.actors.partition.cursor_snapshots",
    "velaray.actors.standing": "velaray.actors.dispatch.lease",
    "velaray.actors.suspects": "velaray.actors.dispatch.suspects",
    "velaray.actors.subscription": "velaray.actors.subscription.machine",
    "velaray.actors.tracing": "velaray.actors.subscription.tracing",
    "velaray.actors.transactions": "velaray.actors.partition.transactions",
    "velaray.actors.translating": "velaray.actors.subscription.progress_translation",
    "velaray.actors.trimming": "velaray.actors.partition.trimming",
    "velaray.actors.unacked": "velaray.actors.dispatch.unacked",
    "velaray.actors.undecided": "velaray.actors.partition.unsettled_sequence_ids",
    "velaray.actors.undoing": "velaray.actors.subscription.undoing",
    "velaray.journal.burial": "velaray.journal.garbage_collection",
    "velaray.topology.replication.exporter": "velaray.actors.subscription.machine",
}
"""Recorded module name to the present one, such as ``velaray.actors.sets.acknowledged_ranges``."""

CLASSES: dict[str, str] = {
    "BeginBurial": "BeginPurge",
    "Books": "InFlightTracker",
    "CommitInSeries": "CommitInSequence",
    "EndArrival": "EndIncomingMigration",
    "EndBurial": "EndPurge",
    "EndForeign": "EndRemote",
    "Foreign": "TakenProgress",
    "ForeignEnded": "RemoteEnded",
    "ForeignTransactions": "RemoteTransactions",
    "ForgetForeign": "ForgetRemote",
    "ForgetSeries": "ForgetCommitSequence",
    "Grave": "DeletedTopic",
    "Holes": "AcknowledgedRanges",
    "InSeries": "InSequence",
    "LastInSeries": "LastInSequence",
    "LookUpSeries": "LookUpCommitSequence",
    "Series": "CommitSequence",
    "ServeByKey": "KeySharedDispatch",
    "ServeInTurns": "SharedDispatch",
    "ServeOne": "SingleActive",
    "Serving": "DispatchStrategy",
    "StandingDelivery": "LeasedDelivery",
    "StandingGrant": "DispatchLease",
    "Undecided": "UnsettledSequenceIds",
    "WatchedSubscription": "SubscriptionMachine",
    "Why": "ExpiryReason",
}
"""Recorded class name to the present one, within the present module."""

NEW_KINDS: frozenset[str] = frozenset(("lost with", "again"))
"""Kinds of events in histories that weren't noted when the oracle was recorded."""

WORDS: dict[str, str] = {}
"""Present word in a history's lines to the recorded one; whole words only."""


def recorded_class_name(present: str) -> str:
    """The name that a class had when the oracle was recorded."""
    for recorded, name in CLASSES.items():
        if name == present:
            return recorded
    return present


def in_recorded_words(line: str) -> str:
    """A history's line in the words of the recording."""
    if not WORDS:
        return line
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, WORDS)) + r")\b")
    return pattern.sub(lambda found: WORDS[found[1]], line)
