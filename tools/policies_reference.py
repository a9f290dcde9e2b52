"""Write ``docs/reference/policies.md`` from the table of policies.

Run as ``python -m tools.policies_reference [--check]``. ``--check`` writes nothing, and
fails if the page is out of date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tools import generated_page
from velaray.actors.catalog.policies import POLICIES

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


def page() -> str:
    """The text of the page."""
    return _HEAD + "".join(_sections())


def out_of_date(root: Path) -> list[str]:
    """A fault if the page below ``root`` differs from the table."""
    return generated_page.out_of_date(root, PAGE, page(), "references")


if __name__ == "__main__":
    generated_page.run(PAGE, page(), "references")
