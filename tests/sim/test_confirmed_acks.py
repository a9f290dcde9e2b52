"""The checker of acknowledgements with receipts, on histories written by hand."""

import pytest

from tests.sim.checkers import Evidence, confirmed_acks_hold
from tests.sim.history import History

TOPIC = "persistent://public/default/t0"
LOG = {TOPIC: {(1, 0): ["a", "b"]}}


class Story:
    """A history: consumer ``c`` of the subscription ``s`` gets a batch of a and b."""

    def __init__(self):
        self._now = 0.0
        self.history = History(lambda: self._now)

    def _add(self, event, /, **details):
        self._now += 1.0
        self.history.add(event, **details)
        return self._now

    def subscribe(self):
        of = {"subscription": "s", "topic": TOPIC, "kind": 1, "durable": True}
        self._add("subscribe", name="c", connection=1, consumer=1, **of)

    def deliver(self):
        self._add("deliver", connection=1, consumer=1, ledger=1, entry=0, messages=2, open=0b11)

    def acknowledge(self, content):
        """When that began."""
        return self._note("acknowledging", content, receipt=True)

    def confirm(self, content, began):
        self._note("acked", content, began=began)

    def _note(self, event, content, **details):
        place = {"topic": TOPIC, "ledger": 1, "entry": 0, "index": "ab".index(content)}
        return self._add(event, by="c", subscription="s", cumulative=False, **place, **details)

    def judged(self):
        return list(confirmed_acks_hold(Evidence(self.history, LOG)))


@pytest.mark.parametrize("confirmed", ["before", "after"])
def test_a_redelivered_whole_batch_is_reported(confirmed):
    """It doesn't matter whether the receipts come before the consumer subscribes again."""
    story = Story()
    story.subscribe()
    story.deliver()
    began = {content: story.acknowledge(content) for content in "ab"}
    if confirmed == "after":
        story.subscribe()
    for content in "ab":
        story.confirm(content, began[content])
    story.subscribe()
    story.deliver()
    assert len(story.judged()) == 1


@pytest.mark.parametrize("again", [False, True], ids=["as it came before", "as it came again"])
def test_halves_of_a_batch_acked_before_and_after_resubscribing_do_not_add_up(again):
    """A new subscription discards the first half: no acknowledgement of this batch was sent."""
    story = Story()
    story.subscribe()
    story.deliver()
    began = story.acknowledge("b")
    story.subscribe()
    if again:
        story.deliver()
    story.confirm("a", story.acknowledge("a"))
    story.confirm("b", began)
    story.subscribe()
    story.deliver()
    assert story.judged() == []
