"""Write ``docs/reference/policies.md`` from the table of policies.

Run as ``python -m tools.policies_reference [--check]``. ``--check`` writes nothing, and
fails if the page is out of date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tools import generated_page
from velaray.actors.catalog.policies import TABLE, Policy
from velaray.actors.catalog.policy_types import Nothing

PAGE = "docs/reference/policies.md"
_HEAD = """\
# Policies

`make references` writes this page from `actors/catalog/policies.py`, and a test checks that it is
current. A policy that is set for a topic overrides that of its namespace, which overrides that of
the cluster. Running topics apply changes at once. A policy that isn't here is refused by name.
`velaray policies set` and `PUT .../policies/NAME` take the value as JSON.

Policies of Apache Pulsar that velaray doesn't apply are at the end. Values that mean "not set" are
accepted, and change nothing: `null`, `false`, `0`, `-1`, `"None"`, `"UNDEFINED"`, and empty texts
and lists, also as all the fields of an object. So are those of the schema where there is one. Other
values are refused with the name of the policy.
"""


def _sections() -> Iterator[str]:
    for row in TABLE.values():
        levels = ", ".join(str(level.name).lower() for level in row.levels)
        default = "not set" if row.default is None else f"`{json.dumps(row.default)}`"
        yield f"""
## {row.name}

{row.description}

- Levels: {levels}
- Default: {default}
- {_applied(row)}
"""
        if row.type != Nothing():
            yield f"\n```json\n{json.dumps(row.type.schema(), indent=2)}\n```\n"


def _applied(row: Policy) -> str:
    if row.not_applied:
        return f"Not applied: {row.not_applied}"
    module, _, name = row.applied_by.partition(":")
    return f"Applied by: `{name}` in `{module.replace('.', '/')}.py`"


def page() -> str:
    """The text of the page."""
    return _HEAD + "".join(_sections())


def out_of_date(root: Path) -> list[str]:
    """A fault if the page below ``root`` differs from the table."""
    return generated_page.out_of_date(root, PAGE, page(), "references")


if __name__ == "__main__":
    generated_page.run(PAGE, page(), "references")
