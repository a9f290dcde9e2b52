"""What the workloads share: which peers are there, and in whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks import peers
from benchmarks.model import Result
from benchmarks.options import Options
from benchmarks.peers import Peer


@contextmanager
def running_peers(options: Options, result: Result) -> Iterator[list[Peer]]:
    """Start the wanted peers, note their settings, and which are absent and why."""
    with ExitStack() as stack:
        found = []
        for name in options.peers:
            if (why := peers.absence(name)) is not None:
                result.notes.append(why)
            else:
                found.append(stack.enter_context(peers.start(name)))
                result.settings.update(found[-1].settings)
        yield found


def in_turn(found: list[Peer], number: int) -> list[Peer]:
    """The peers in the order for round ``number``: each round another one begins."""
    shift = number % len(found) if found else 0
    return found[shift:] + found[:shift]
