"""Where messages carry the context of their trace, in W3C's form.

A message has it in its properties. The properties of a batch, which clients don't show, have it in
two cases: one context for a batch whose messages carry none, as ``send_many`` makes it, and copies
of the messages' contexts for an encrypted batch, whose messages the broker can't read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from velaray.wire.pulsar_pb2 import KeyValue

PARENT = "traceparent"
STATE = "tracestate"
EXPOSED: Mapping[str, str] = {PARENT: "velaray.traceparent", STATE: "velaray.tracestate"}
"""The names of copies of contexts. A state follows its parent."""


def exposed(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The copies for the properties of the batch that a message is in."""
    if PARENT in properties:
        for name, copy in EXPOSED.items():
            if name in properties:
                yield copy, properties[name]


def exposed_in(properties: Iterable[KeyValue]) -> Iterator[dict[str, str]]:
    """The contexts of which a batch has copies, each as the properties of its message."""
    found: dict[str, str] = {}
    for each in properties:
        if each.key == EXPOSED[PARENT]:
            if found:
                yield found
            found = {PARENT: each.value}
        elif each.key == EXPOSED[STATE] and found:
            found[STATE] = each.value
    if found:
        yield found
