"""A run of records is staged as its records are one by one."""

from __future__ import annotations

from velaray.journal.frames import LARGE, RecordRun, stage_apart, stage_records
from velaray.journal.store import Buffer

EVENTS = [b"a", b"bc", b"", b"def"]
BLOBS = [b"", b"1", b"23", b"456"]
SINGLES = list(zip(EVENTS, BLOBS, strict=True))
RUN = RecordRun(EVENTS, BLOBS)
LARGE_BLOB = bytes(LARGE)


def test_records_of_a_run() -> None:
    expected: list[Buffer] = []
    counts = stage_records(expected, [(b"x", None), *SINGLES, (b"y", LARGE_BLOB)])
    parts: list[Buffer] = []
    assert stage_records(parts, [(b"x", None), RUN, (b"y", LARGE_BLOB)]) == counts == (6, 5, True)
    assert parts == expected


def test_records_of_a_run_whose_blobs_are_encrypted() -> None:
    expected: tuple[list[Buffer], list[Buffer]] = ([], [])
    counts = stage_apart(*expected, [(b"x", None), *SINGLES, (b"y", b"z")])
    found: tuple[list[Buffer], list[Buffer]] = ([], [])
    assert stage_apart(*found, [(b"x", None), RUN, (b"y", b"z")]) == counts == (6, 5)
    assert found == expected
