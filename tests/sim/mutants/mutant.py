"""What a mutant is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.sim.kind import Kind

Patch = tuple[Any, str, Callable[[Any], Any]]
"""Owner, name, and what makes the broken attribute of the original one."""


@dataclass(frozen=True)
class Mutant:
    """A bug: what it does, what is replaced by what, within how many seeds it must be found,
    whether partitions are synced on a timer meanwhile, whether there are several clusters, whether
    actors share hosts, whether there are rates, whether the journals are in an object store, and
    whether machines join and are lost there and backups are made."""

    what: str
    patches: tuple[Patch, ...]
    within: int
    relaxed: bool = False
    geo: bool = False
    hosts: bool = False
    rates: bool = False
    store: bool = False
    machines: bool = False

    def kind(self) -> Kind:
        """The kind of runs that find it."""
        return Kind(*(self.relaxed, self.geo, self.hosts, self.rates, self.store, self.machines))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Break the product for a while."""
        undo = []
        for owner, name, change in self.patches:
            original = getattr(owner, name)
            undo.append((owner, name, original))
            setattr(owner, name, change(original))
        try:
            yield
        finally:
            for owner, name, original in reversed(undo):
                setattr(owner, name, original)


def do_nothing(original: Any) -> Any:
    """Instead of the original: nothing."""
    return lambda *arguments, **named: None


def do_nothing_async(original: Any) -> Any:
    """Instead of the original coroutine function: nothing."""

    async def nothing(*arguments: Any, **named: Any) -> None:
        return None

    return nothing


def always(value: Any) -> Callable[[Any], Any]:
    """Instead of the original's answer: this one."""
    return lambda original: lambda *arguments, **named: value
