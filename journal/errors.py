"""The errors of journals. Each has its own remedy for the journal's owner."""

from __future__ import annotations

import os

from velaray.events.portable import PortableError


class JournalError(PortableError):
    """The base of all errors of this package. The text has full paths."""

    #: The path of the file or directory concerned.
    file = ""

    @property
    def told(self) -> str:
        """The text for clients: it has the file's name without the server's directory."""
        return str(self).replace(self.file, os.path.basename(self.file)) if self.file else str(self)


class Fenced(JournalError):
    """Another owner has opened the journal. Fatal: acknowledge nothing more, exit."""

    def __init__(self, journal: str, epoch: int) -> None:
        super().__init__(
            f"journal {journal}: epoch {epoch} was superseded by a newer owner; this one must exit"
        )


class SyncFailed(JournalError):
    """Writing or syncing failed. Fatal to this writer: the content of the disk is unknown until the
    journal is opened again."""

    def __init__(self, file: str, cause: str) -> None:
        super().__init__(f"{file}: {cause}; this writer is dead, open the journal again")
        self.file = file
        self.cause = cause


class StorageFull(JournalError):
    """No space is left. The refused write has no effect; free some space and try again."""

    def __init__(self, file: str, cause: str) -> None:
        super().__init__(f"{file}: storage is full ({cause}); free some space and try again")
        self.file = file
        self.cause = cause


class CorruptJournal(JournalError):
    """Stored bytes differ from the written ones. Nothing was changed; the error names the file and
    the byte offset of the damage."""

    def __init__(self, file: str, offset: int, detail: str) -> None:
        super().__init__(f"{file}: corrupt at byte {offset}: {detail}")
        self.file = file
        self.offset = offset
        self.detail = detail


class UnsupportedFormat(JournalError):
    """A file was written in a format that this version doesn't know."""

    def __init__(self, file: str, version: int) -> None:
        super().__init__(
            f"{file}: format version {version} is unknown here; upgrade velaray to read it, or "
            f"use the version that wrote it"
        )
        self.file = file


class MissingKey(JournalError):
    """A ledger, or another file, is encrypted with a master key that isn't here. Nothing was
    changed. ``key_id`` is the id of that key ("": the newest one), ``place`` the directory or the
    service that lacks it ("": none is configured)."""

    def __init__(self, file: str, key_id: str, place: str = "", problem: str = "") -> None:
        where = (
            f"keys are looked for in {place}, {problem}"
            if place
            else "no keys are given: give their directory with --encryption-keys, or in the "
            "variable VELARAY_ENCRYPTION_KEYS"
        )
        what = f"encrypted with key {key_id}" if key_id else "to be encrypted with a new key"
        super().__init__(f"{file}: {what}; {where}")
        self.file = file
        self.key_id = key_id
        self.place = place


class PlainLedger(JournalError):
    """A ledger isn't encrypted, and plain ledgers are refused. Nothing was changed."""

    def __init__(self, file: str) -> None:
        super().__init__(
            f"{file}: isn't encrypted, which --encryption-required refuses: it may be forged. If "
            "it is older than the keys, start without the option until `velaray journal keys` "
            "counts no plain ledgers"
        )
        self.file = file


class ManifestConflict(JournalError):
    """The manifest has another version than expected: another process wrote it."""

    def __init__(self, journal: str, expected: int) -> None:
        super().__init__(f"journal {journal}: manifest version {expected} is not the newest")


class LedgerExists(JournalError):
    """A ledger with this id is stored already."""

    def __init__(self, file: str) -> None:
        super().__init__(f"{file}: exists already")
        self.file = file


class NotStored(JournalError):
    """The journal or ledger doesn't exist."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: not stored here")
        self.file = what if what.startswith("/") else ""


class Purged(JournalError):
    """The journal's actor was deleted: the journal lists nothing and never will."""

    def __init__(self, journal: str) -> None:
        super().__init__(f"journal {journal}: its actor was deleted")


class Contended(JournalError):
    """Other owners won all of a bounded number of attempts."""

    def __init__(self, what: str, tries: int) -> None:
        super().__init__(f"{what}: lost the race {tries} times; try again later")
        self.file = what if what.startswith("/") else ""


class UnsafeKey(JournalError):
    """A journal key that can't be turned into file names."""

    def __init__(self, journal: str, part: str, problem: str) -> None:
        super().__init__(f"journal key {journal!r}: part {part!r} {problem}")
        self.part = part


class Misuse(JournalError):
    """A call at a time when it isn't allowed: a programming error of the caller, without any
    effect."""
