"""Write ``docs/reference/policies.md`` from the table of policies.

Run as ``python -m tools.policies_reference [--check]``. With ``--check`` nothing is written; the
exit status is 1 if the page is out of date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from velaray.actors.catalog.policies import POLICIES

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/reference/policies.md"
_HEAD = """\
# Policies

`make references` writes this page from `actors/catalog/policies.py`, and a test checks that it is
current. A policy that is set for a topic overrides that of its namespace, which overrides that of
the cluster. Running topics apply changes at once. A policy that isn't here is refused by name.
`velaray policies set` and `PUT .../policies/NAME` take the value as JSON.
"""


def _sections() -> Iterator[str]:
    for row in POLICIES.values():
        levels = ", ".join(str(level.name).lower() for level in row.levels)
        default = "not set" if row.default is None else f"`{json.dumps(row.default)}`"
        module, _, name = row.applied_by.partition(":")
        path = module.replace(".", "/")
        yield f"""
## {row.name}

{row.description}

- Levels: {levels}
- Default: {default}
- Applied by: `{name}` in `{path}.py`

```json
{json.dumps(row.type.schema(), indent=2)}
```
"""


def main() -> int:
    """Write or check the page; the exit status."""
    text = _HEAD + "".join(_sections())
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
