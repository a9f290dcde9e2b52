"""Write ``docs/reference/metrics.md`` from the definitions of the metrics.

Run as ``python -m tools.metrics_reference [--check]``. ``--check`` writes nothing, and
fails if the page is out of date.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tools import generated_page
from velaray.topology.metrics import METRICS

PAGE = "docs/reference/metrics.md"
_HEAD = """\
# Metrics

`make references` writes this page from `topology/metrics.py`, and a test checks that it is current.
`/metrics` on the admin port reports these in Prometheus' text format. Counters begin at 0 when an
actor starts. An untyped metric is a counter whose name, which is Pulsar's, doesn't end in `_total`.
A histogram `X` consists of `X_bucket`, `X_count` and `X_sum`. Histograms are only in `/metrics`,
neither in Ray's metrics nor in `broker-stats/metrics`.

| Metric | Type | Meaning |
|---|---|---|
"""


def _rows() -> Iterator[str]:
    for name, about in METRICS.items():
        yield f"| `{name}` | {about.kind} | {about.help} |\n"


def page() -> str:
    """The text of the page."""
    return _HEAD + "".join(_rows())


def out_of_date(root: Path) -> list[str]:
    """A fault if the page below ``root`` differs from the table."""
    return generated_page.out_of_date(root, PAGE, page(), "references")


if __name__ == "__main__":
    generated_page.run(PAGE, page(), "references")
