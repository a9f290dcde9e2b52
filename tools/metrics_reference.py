"""Write ``docs/reference/metrics.md`` from the definitions of the metrics.

Run as ``python -m tools.metrics_reference [--check]``. With ``--check`` nothing is written; the
exit status is 1 if the page is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from velaray.topology.metrics import METRICS

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/reference/metrics.md"
_HEAD = """\
# Metrics

`make references` writes this page from `topology/metrics.py`, and a test checks that it is current.
`/metrics` on the admin port reports these in Prometheus' text format. Counters begin at 0 when an
actor starts. An untyped metric is a counter whose name, which is Pulsar's, doesn't end in `_total`.

| Metric | Type | Meaning |
|---|---|---|
"""


def _rows() -> Iterator[str]:
    for name, about in METRICS.items():
        yield f"| `{name}` | {about.kind} | {about.help} |\n"


def main() -> int:
    """Write or check the page; the exit status."""
    text = _HEAD + "".join(_rows())
    page = ROOT / PAGE
    if "--check" not in sys.argv[1:]:
        page.write_text(text)
        return 0
    if page.exists() and page.read_text() == text:
        return 0
    print(f"{PAGE} is out of date: run `make references`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
