"""The client that the tasks of one Python worker process of Spark share."""

from __future__ import annotations

import atexit
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from velaray import Client, Producer

PRODUCERS = 64
"""Topics for which a process keeps its producer."""


class Link:
    """A client and its producers; for one thread."""

    def __init__(self, service_url: str) -> None:
        self.client = Client(service_url)
        self._producers: OrderedDict[str, Producer] = OrderedDict()

    def producer(self, topic: str) -> Producer:
        """The producer for ``topic``; the one that was used least is closed for a new one."""
        made = self._producers.get(topic)
        if made is None:
            if len(self._producers) == PRODUCERS:
                self._producers.popitem(last=False)[1].close()
            made = self._producers[topic] = self.client.create_producer(
                topic, block_if_queue_full=True, batching_enabled=True
            )
        self._producers.move_to_end(topic)
        return made


_links: dict[str, Link] = {}


@contextmanager
def link_to(service_url: str) -> Iterator[Link]:
    """This process's link to the service, which stays for the next one who asks.

    Once something failed with it, the next one gets a new link.
    """
    link = _links.pop(service_url, None) or Link(service_url)
    well = False
    try:
        yield link
        well = True
    finally:
        if not well:
            link.client.shutdown()
        elif service_url in _links:  # somebody else's, made meanwhile
            link.client.close()
        else:
            _links[service_url] = link


@atexit.register
def _close_all() -> None:
    for link in _links.values():
        link.client.shutdown()
    _links.clear()
