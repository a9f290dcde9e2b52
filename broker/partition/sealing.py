"""The sealing of a partition's messages, in a namespace whose messages can be erased.

Each message is sealed when it is published, and opened when it is delivered. The log and its caches
have sealed entries only. See `velaray.wire.sealed` and `velaray.journal.encryption.keyring`.
"""

from __future__ import annotations

from typing import Final

from velaray.actors.catalog.policies import ERASABLE, NOT_ERASABLE
from velaray.actors.machine import Reason
from velaray.broker.topic_policies import TopicPolicies
from velaray.events.ids import ActorKey
from velaray.journal.encryption.keyring import Keyring, NoLease, Part, head_of
from velaray.journal.errors import CorruptJournal
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import RemoteError
from velaray.wire.errors import MalformedEntryError
from velaray.wire.sealed import By, NotErasable, Opened, opened, parts_of, read_plain, seal

__all__ = ["NotErasable", "Sealing"]


class Sealing:
    """Seals and opens the entries of one partition.

    `sealed` and `opened` are synchronous. They return None if a data key isn't in memory or may not
    be used now; `seal` and `prepare_to_open` wait for the keyring.
    """

    def __init__(self, keyring: Keyring, namespace: str, by: By) -> None:
        self.erased = 0
        """The erased messages that this activation has passed over, for all subscriptions."""
        self._keyring = keyring
        self._namespace = namespace
        self._by = by

    @classmethod
    def of(
        cls, actor_system: ActorSystem, key: ActorKey, policies: TopicPolicies
    ) -> Sealing | None:
        """The sealing by the policies of a topic; None if its messages can't be erased.

        Raises `RemoteError` if the cluster has no encryption keys.
        """
        by = policies.raw.get(ERASABLE, NOT_ERASABLE)
        if by == NOT_ERASABLE:
            return None
        return cls(actor_system.needed_keyring(), key.topic_name.namespace_name, By(by))

    def sealed(self, entry: bytes) -> bytes | None:
        """The entry as it is stored. Raises `NotErasable`."""
        plain = read_plain(entry, self._by)
        if not self._keyring.can_seal(self._namespace, plain.subjects):
            return None
        try:
            return seal(
                plain,
                lambda subject, content: self._keyring.seal(self._namespace, subject, content),
            )
        except NoLease:  # it has ended since
            return None

    async def seal(self, entry: bytes) -> bytes:
        """As `sealed`; subjects without a data key get one. Raises `JournalError` too."""
        while (found := self.sealed(entry)) is None:
            plain = read_plain(entry, self._by)
            await self._keyring.prepare_to_seal(self._namespace, plain.subjects)
        return found

    def opened(self, entry: bytes | memoryview) -> Opened | None:
        """The entry as consumers get it. Raises `LostDataKey`, `CorruptJournal`."""
        try:
            if not self._keyring.can_open(_heads(entry)):
                return None
            return opened(entry, self._keyring.open)
        except NoLease:  # it has ended since
            return None
        except MalformedEntryError as error:
            raise CorruptJournal("a sealed entry", 0, str(error)) from error

    async def prepare_to_open(self, entry: bytes | memoryview) -> None:
        """Load what `opened` needs, and check the entry. Raises `JournalError`."""
        try:
            heads = _heads(entry)
        except MalformedEntryError as error:
            raise CorruptJournal("a sealed entry", 0, str(error)) from error
        await self._keyring.prepare_to_open(heads)
        self.opened(entry)


def _heads(entry: bytes | memoryview) -> list[Part]:
    try:
        return [head_of(part) for part in parts_of(entry)[1]]
    except ValueError as error:
        raise MalformedEntryError(str(error)) from error


SHOWN_BY_CONSUMERS: Final = "it stores them sealed: read them with a consumer or a reader"


def refuse_sealed(sealing: Sealing | None, what: str) -> None:
    """Raise `RemoteError` (NOT_ALLOWED) if the topic's messages can be erased, for an operation
    that would store or show them otherwise."""
    if sealing is not None:
        problem = f"the messages of this topic can be erased (policy {ERASABLE}): {what}"
        raise RemoteError(Reason.NOT_ALLOWED, problem)
