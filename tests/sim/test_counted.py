"""The checkers of redelivery counts, on histories written by hand."""

import pytest

from tests.sim.again import redeliveries_are_counted
from tests.sim.checkers import Evidence
from tests.sim.counted import losses_are_counted, redelivery_counts_outlive_crashes
from tests.sim.history import History

TOPIC = "persistent://public/default/t0"
ADMINISTRATOR = {"subscription": "s", "to": "by an administrator"}


class Story:
    """A history of the Exclusive subscription ``s``, whose consumer always gets one entry."""

    def __init__(self):
        self._now = 0.0
        self.history = History(lambda: self._now)

    def add(self, event, /, **details):
        self._now += 1.0
        self.history.add(event, **details)

    def subscribe(self):
        of = {"subscription": "s", "topic": TOPIC, "kind": 0, "durable": True}
        self.add("subscribe", name="c", connection=1, consumer=1, **of)

    def deliver(self, count):
        place = {"ledger": 1, "entry": 0, "messages": 1, "open": 1}
        self.add("deliver", connection=1, consumer=1, redelivery=count, **place)

    def redeliver(self):
        self.add("redeliver", connection=1, consumer=1)

    def counts_that_fall(self):
        return list(redelivery_counts_outlive_crashes(Evidence(self.history, {})))

    def counts_that_stay(self):
        return list(redeliveries_are_counted(Evidence(self.history, {})))


def counted_once(story):
    story.subscribe()
    story.deliver(0)
    story.redeliver()
    story.deliver(1)


def test_a_count_that_falls_is_reported():
    story = Story()
    counted_once(story)
    story.subscribe()
    story.deliver(0)
    assert len(story.counts_that_fall()) == 1


def test_a_count_that_no_delivery_explains_is_reported():
    story = Story()
    story.subscribe()
    story.deliver(1)
    assert len(story.counts_that_fall()) == 1


def test_counts_start_again_after_a_move():
    story = Story()
    counted_once(story)
    story.add("seek", by="c", subscription="s", to="earliest")
    story.add("sought", by="c", subscription="s")
    story.subscribe()
    story.deliver(0)
    assert not story.counts_that_fall()


@pytest.mark.parametrize("judged", [Story.counts_that_fall, Story.counts_that_stay])
def test_a_move_without_an_answer_never_ends(judged):
    """Also if a seek begins and ends meanwhile."""
    story = Story()
    story.add("seek", **ADMINISTRATOR)
    story.add("seek", by="c", subscription="s", to="earliest")
    story.add("sought", by="c", subscription="s")
    counted_once(story)
    if judged is Story.counts_that_fall:
        story.subscribe()
    story.deliver(0)
    assert not judged(story)


@pytest.mark.parametrize(
    ("permits", "losses", "counted"),
    [
        (5, [0, 0, 0, 0], {10, 11, 12, 13}),  # half the queue's permits are gathered
        (2, [0, 0, 0, 0], {10}),  # three messages are in the queue
        (4, [0, 0, 0, 0], {10, 11, 12}),
        (-9, [0, 0, 0, 0], {10}),  # what was delivered first always counts
        (9, [0, 1, 1, 0], {11, 12}),  # suspects count, and nothing else
        (9, [1, 2, 2, 0], {11}),  # of those of several losses only the first
    ],
)
def test_entries_that_a_lost_consumer_may_have_processed_must_count(permits, losses, counted):
    held = [(10 + at, 0, 1, lost) for at, lost in enumerate(losses)]
    for offset in range(10, 14):
        story = Story()
        story.add("lost with", subscription="s", counts=1, queue=10, permits=permits, held=held)
        story.add("again", counts=1, offset=offset, count=0)
        found = list(losses_are_counted(Evidence(story.history, {})))
        assert bool(found) == (offset in counted), offset


def test_counts_that_start_again_may_be_low():
    story = Story()
    held = [(10, 0, 1, 0)]
    story.add("lost with", subscription="s", counts=1, queue=10, permits=9, held=held)
    story.add("again", counts=2, offset=10, count=0)
    assert not list(losses_are_counted(Evidence(story.history, {})))
