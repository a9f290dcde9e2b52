"""Write ``docs/limits.md`` from the limits that the code declares.

Run as ``python -m tools.limits_reference [--check]``. ``--check`` writes nothing, and
fails if the page is out of date.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools import generated_page
from velaray.actors.catalog.policies import TABLE
from velaray.admin.body_limits import MAX_DEPTH, MAX_MEMBERS
from velaray.admin.http import MAX_BODY
from velaray.broker.partition.entries import TAIL_BUDGET
from velaray.broker.partition.publishing import PENDING_HIGH
from velaray.broker.proxy import request_limits
from velaray.broker.proxy.request_limits import CREATION_BURST, CREATIONS_PER_S, MAX_LISTS
from velaray.broker.session import MAX_REQUESTS
from velaray.events.ids import MAX_NAME_BYTES
from velaray.schemas.validation import MAX_SCHEMA_BYTES
from velaray.settings import SETTINGS, option_of
from velaray.topology.config import ClusterConfig
from velaray.topology.ports import ACCEPTED_AT_ONCE, WAITING_CONNECTIONS
from velaray.wire.connection import HANDSHAKE_SIZE, HIGH_WATER, KEEP_ALIVE
from velaray.wire.frames import MAX_MESSAGE_SIZE
from velaray.wire.limits import COMMANDS, MAX_PROPERTIES, PARTS, Unlimited
from velaray.wire.turns import FRAME, ITERATION, REQUEST

PAGE = "docs/limits.md"

_HEAD = """\
# Limits

`make references` writes this page from the limits in the code, and a test checks that it is
current. The tables say what happens beyond each limit.

"""


class _Row(NamedTuple):
    what: str
    setting: str
    value: str
    beyond: str


def _size(number: int) -> str:
    for unit, bits in (("MiB", 20), ("KiB", 10)):
        if number >= 1 << bits and number % (1 << bits) == 0:
            return f"{number >> bits} {unit}"
    return f"{number:,} bytes"


def _setting(key: str) -> str:
    return f"`{option_of(key)}`"


def _default(key: str) -> str:
    return f"{SETTINGS[key].default:,}"


def _of_processes() -> Iterator[_Row]:
    yield _Row(
        "Connections of clients to a process",
        _setting("max_connections"),
        _default("max_connections"),
        "The connection is closed before it has a session.",
    )
    yield _Row(
        "Those from one address",
        _setting("max_connections_per_address"),
        _default("max_connections_per_address"),
        "As above.",
    )
    yield _Row(
        "Those of one authenticated role",
        _setting("max_connections_per_role"),
        _default("max_connections_per_role"),
        "TooManyRequests, and the connection is closed.",
    )
    yield _Row(
        "Requests in work of one authenticated role",
        _setting("max_requests_per_role"),
        _default("max_requests_per_role"),
        "TooManyRequests; acknowledgements, ends and closes are served.",
    )
    yield _Row(
        "Resident memory",
        _setting("memory_budget_mib"),
        "no budget",
        "Look-ups, new producers and new consumers: ServiceNotReady; clients try again.",
    )
    yield _Row(
        "Requests of all clients in one iteration of the event loop",
        "fixed",
        f"about {round(ITERATION / (REQUEST + FRAME))}",
        "They wait. Roles and addresses take turns, and so do the connections of each. Published "
        "messages don't wait.",
    )
    yield _Row(
        "Connections that a port accepts in one iteration",
        "fixed",
        str(ACCEPTED_AT_ONCE),
        f"They wait; up to {WAITING_CONNECTIONS:,} do.",
    )
    memory = f"{_default('buffer_memory_mib')} MiB"
    yield _Row(
        "Bytes of buffers for what clients send",
        _setting("buffer_memory_mib"),
        memory,
        "Empty buffers are given back; then connections are closed, the oldest buffers first.",
    )
    yield _Row(
        "Bytes that wait for clients that don't read",
        _setting("buffer_memory_mib"),
        memory,
        "The connections that haven't read for the longest time are closed.",
    )
    yield _Row(
        "Newest entries of all partitions in memory",
        "fixed",
        _size(TAIL_BUDGET),
        "Older ones are read again.",
    )


def _of_connections() -> Iterator[_Row]:
    frame = ClusterConfig.__dataclass_fields__["max_message_size"].default
    assert frame == MAX_MESSAGE_SIZE
    yield _Row("A message", "fixed", _size(MAX_MESSAGE_SIZE), "The connection is closed.")
    yield _Row(
        "A frame before CONNECT", "fixed", _size(HANDSHAKE_SIZE), "The connection is closed."
    )
    yield _Row("Time until CONNECT", "fixed", f"{KEEP_ALIVE:.0f} s", "The connection is closed.")
    yield _Row(
        "Silence, also without an answer to PING",
        "fixed",
        f"{2 * KEEP_ALIVE:.0f} s",
        "The connection is closed.",
    )
    yield _Row(
        "Unsent bytes from which on nothing is read from the client, or delivered to it",
        "fixed",
        _size(HIGH_WATER),
        f"A client that reads nothing for {KEEP_ALIVE:.0f} s is closed.",
    )
    yield _Row(
        "Requests in work",
        "fixed",
        f"{request_limits.MAX_REQUESTS} to a proxy, else {MAX_REQUESTS:,}",
        "Nothing is read until half of them are answered.",
    )
    yield _Row("Lists of topics that wait", "fixed", str(MAX_LISTS), "TooManyRequests.")
    yield _Row(
        "A list of topics",
        "fixed",
        _size(MAX_MESSAGE_SIZE),
        "NotAllowedError; a pattern that begins with more of the names makes it shorter.",
    )
    yield _Row(
        "Topics created by use",
        "fixed",
        f"{CREATIONS_PER_S:,} a second, {CREATION_BURST:,} at once",
        "TooManyRequests; existing topics are served.",
    )
    yield _Row(
        "Published bytes of a partition that aren't on disk",
        "fixed",
        _size(PENDING_HIGH),
        "Nothing is read from its producers.",
    )


def _of_bodies() -> Iterator[_Row]:
    yield _Row("A body", "fixed", _size(MAX_BODY), "413")
    yield _Row("Levels of lists and objects", "fixed", str(MAX_DEPTH), "400")
    yield _Row("Members of a list", "fixed", f"{MAX_MEMBERS:,}", "400")
    yield _Row("Fields of an object", "fixed", f"{MAX_PROPERTIES:,}", "400")
    yield _Row("A text", "fixed", _size(MAX_SCHEMA_BYTES), "400")
    yield _Row("A number", "fixed", "-2^63 + 1 to 2^63 - 1", "400")
    yield _Row(
        "A name, percent-encoded", "fixed", f"{MAX_NAME_BYTES} bytes", "422, or InvalidTopicName"
    )


def _of_policies() -> Iterator[_Row]:
    for name, policy in TABLE.items():
        if name.startswith("max") and not policy.not_applied:
            default = f"{policy.default:,}" if policy.default else "no limit"
            unacked = name.startswith("maxUnacked")
            beyond = "Deliveries wait." if unacked else "The request is refused with an error."
            yield _Row(
                policy.description.partition(";")[0].rstrip("."),
                f"policy `{name}`",
                default,
                beyond,
            )


def _table(rows: Iterator[_Row]) -> str:
    lines = ["| What | Setting | Default | Beyond it |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


_SECTIONS = (
    ("A process", _of_processes),
    ("A connection", _of_connections),
    ("Bodies of the admin interface", _of_bodies),
    ("Topics and namespaces", _of_policies),
)

_MEMORY = """
## The memory of a process

The settings bound what clients make a process hold. A process with `--local` has two listeners,
one of the proxy and one for topics, and the limits count for each of them.

- Buffers of received bytes, and those of unsent ones, take two times `--buffer-memory`, and one
  frame for each connection that is answered at that moment.
- An idle connection takes some 17 KiB, of which 4 KiB are its first buffer; a producer 1.1 KiB, a
  consumer 5.9 KiB (`python -m benchmarks client_memory`, 2,000 of each in one process).
- Each connection has up to 1,000 requests in work, of up to 4 KiB each.
- A topic that runs takes up to 200 KiB, without its entries.
- The newest entries of all partitions have their limit together, and published bytes on their way
  to the disk for each partition.

Two parts are not bounded as a whole: what partitions and subscriptions keep for stored data
([hosts](hosts.md)), and the bytes on their way to the disk over all partitions.

`python -m tests.security.soak` attacks a process with half-open and slow peers, unfinished frames,
floods of requests and new topics, and 100,000 connections. It checks that the process stays within
these bounds, and that a client goes on. `python -m tests.security.flood` measures how much the
client slows down while requests of one kind come as fast as the process reads them, beside the same
flood to a listener that does nothing.

`/metrics` has `velaray_connections`, `velaray_received_buffer_bytes`,
`velaray_unsent_buffer_bytes`, and the numbers of refused and closed connections.
`velaray_memory_refusals_total` and `velaray_role_refusals_total` count what the budget and the
limits of roles refuse.
"""

_COMMANDS = """
## Commands

A command with a field beyond its limit is refused, and changes nothing. The answer is Pulsar's
answer to the command, and its text names the field. The code is NotAllowedError; for the name of
a topic it is InvalidTopicName, for a schema IncompatibleSchema. A SEND is answered with SEND_ERROR.
FLOW, REDELIVER_UNACKNOWLEDGED_MESSAGES and an ACK without request id have no answer, so the
connection is closed. The size of a message is the only limit of what an entry contains.

The table omits flags, choices, and ids that are only looked up.

| Message | Field | Limit |
|---|---|---|
"""


def _commands() -> Iterator[str]:
    for kind, rules in (*COMMANDS.items(), *PARTS.items()):
        name = kind.__name__
        limited = [
            (field, rule) for field, rule in rules.items() if not isinstance(rule, Unlimited)
        ]
        for field, rule in limited:
            yield f"| {name} | `{field}` | {rule.stated} |\n"


def page() -> str:
    """The text of the page."""
    tables = "\n".join(f"## {title}\n\n{_table(rows())}" for title, rows in _SECTIONS)
    return _HEAD + tables + _MEMORY + _COMMANDS + "".join(_commands())


def out_of_date(root: Path) -> list[str]:
    """A fault if the page below ``root`` differs from the limits."""
    return generated_page.out_of_date(root, PAGE, page(), "references")


if __name__ == "__main__":
    generated_page.run(PAGE, page(), "references")
