"""Draw a diagram of the imports between layers into ``docs/imports.md``.

Run as ``python -m tools.import_diagram [--check]``. ``--check`` writes nothing, and
fails if the page is out of date.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tools import generated_page
from tools.layers import FACE, LAYERS, imports, layer_of, sources

PAGE = "docs/imports.md"
_HEAD = """\
# Imports between layers

`make diagram` writes this page from the tree, and a test checks that it is current. An arrow goes
from a layer to a layer that it imports. The diagram leaves out arrows that a longer path implies;
the table has them all. `tools/layers.py` says what each layer may import."""

Graph = Mapping[str, set[str]]


def read(root: Path) -> Graph:
    """Each layer of the tree at ``root`` with the layers that it imports.

    Imports inside functions and for type checkers count.
    """
    found: dict[str, set[str]] = {layer: set() for layer in LAYERS}
    for source in sources(root):
        for _, dotted in imports(source):
            if dotted.split(".")[0] == FACE and layer_of(dotted) != source.layer:
                found[source.layer].add(layer_of(dotted))
    return found


def levels(graph: Graph) -> list[list[str]]:
    """The nodes by level, lowest first. Each node imports only nodes of earlier levels.

    Raises ValueError with the nodes that have no level, if there is a cycle.
    """
    placed: set[str] = set()
    found: list[list[str]] = []
    while left := [node for node in graph if node not in placed]:
        level = [node for node in left if graph[node] <= placed]
        if not level:
            raise ValueError(f"imports don't go one way among these layers: {', '.join(left)}")
        placed.update(level)
        found.append(level)
    return found


def reduced(graph: Graph) -> dict[str, set[str]]:
    """``graph``, which has no cycle, without the edges that a longer path implies."""
    reach: dict[str, set[str]] = {}
    for level in levels(graph):
        for node in level:
            reach[node] = graph[node].union(*(reach[target] for target in graph[node]))
    return {
        node: {
            target
            for target in targets
            if not any(target in reach[other] for other in targets - {target})
        }
        for node, targets in graph.items()
    }


def _mermaid(graph: Graph) -> Iterator[str]:
    shown = reduced(graph)
    yield "flowchart TD"
    for level in reversed(levels(graph)):
        for node in level:
            yield f"    {node}"
            for target in sorted(shown[node]):
                yield f"    {node} --> {target}"


def _rows(graph: Graph) -> Iterator[str]:
    yield "| Layer | Imports |"
    yield "|---|---|"
    for level in reversed(levels(graph)):
        for node in level:
            targets = ", ".join(f"`{target}`" for target in sorted(graph[node]))
            yield f"| `{node}` | {targets or 'nothing'} |"


def page(root: Path) -> str:
    """The text of the page. Raises ValueError if the imports form a cycle."""
    graph = read(root)
    diagram = "\n".join(["```mermaid", *_mermaid(graph), "```"])
    return "\n\n".join([_HEAD, diagram, "\n".join(_rows(graph))]) + "\n"


def out_of_date(root: Path) -> list[str]:
    """A fault if the page differs from the tree at ``root``, or if imports form a cycle."""
    try:
        text = page(root)
    except ValueError as error:
        return [f"{PAGE}:1: {error}"]
    return generated_page.out_of_date(root, PAGE, text, "diagram")


if __name__ == "__main__":
    generated_page.run(PAGE, page(generated_page.ROOT), "diagram")
