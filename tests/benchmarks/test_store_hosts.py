"""The requests at an S3 server are counted by their kind."""

from __future__ import annotations

import pytest

from benchmarks.store_hosts import kind_of

LINE = (
    "velaray velaray [27/November/2026:11:16:48 +0000] 127.0.0.1 velaray S6J6AABO07X5F8KE "
    "s3_{} 7ea73c9edc41f379/a/b /velaray/7ea73c9edc41f379/a/b 200 - 0 1 1 1 - object_store/0.14.2"
)


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("PutObject", "PUT"),
        ("GetObject", "GET"),
        ("HeadObject", "HEAD"),
        ("ListObjectsV2", "LIST"),
        ("DeleteObjects", "DELETE"),
        ("CopyObject", "CopyObject"),
    ],
)
def test_a_line_of_the_log_has_a_kind(operation: str, kind: str) -> None:
    assert kind_of(LINE.format(operation)) == kind


def test_other_lines_have_none() -> None:
    assert kind_of("log starts 2026-11-27 11:16:48 +0000 UTC") == ""
