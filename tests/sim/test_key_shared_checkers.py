"""The checker of what consumers may hold, on histories written by hand."""

from tests.sim.checkers import Evidence
from tests.sim.history import History
from tests.sim.key_shared_checkers import no_consumer_exceeds_its_limit

LIMIT = 3


class Story:
    """A history with one consumer that may hold three messages."""

    def __init__(self):
        self.history = History(lambda: 0.0)
        self.history.add("limits", topic="public/default/k", consumer=LIMIT, subscription=0)

    def send(self, first, *batches):
        """Entries go out; of each the open messages, as bits."""
        self.history.add(
            "sent",
            channel=1,
            consumer=1,
            kind=3,
            subscription="s",
            topic="persistent://public/default/k",
            first=first,
            hashes=[0] * len(batches),
            open=list(batches),
        )

    def acknowledge(self, *ranges, parts=()):
        self.history.add("freed", channel=1, by=None, ranges=list(ranges), parts=list(parts))

    def judged(self):
        return list(no_consumer_exceeds_its_limit(Evidence(self.history, {})))


def test_a_delivery_beyond_the_limit_is_reported():
    story = Story()
    story.send(0, 0b1, 0b11)
    story.send(2, 0b1)
    assert len(story.judged()) == 1


def test_unacked_messages_of_a_batch_are_held():
    story = Story()
    story.send(0, 0b1111)
    story.acknowledge(parts=[(0, 0b1110)])
    story.send(1, 0b1)
    assert len(story.judged()) == 1


def test_messages_acked_before_the_delivery_of_their_batch_are_not_held():
    story = Story()
    story.send(0, 0b101, 0b1)
    story.acknowledge((1, 2), parts=[(0, 0b110)])
    story.send(2, 0b1, 0b1)
    assert not story.judged()


def test_a_batch_whose_last_part_is_acknowledged_is_not_held():
    story = Story()
    story.send(0, 0b111)
    story.acknowledge(parts=[(0, 0b100)])
    story.acknowledge(parts=[(0, 0b011)])
    story.send(1, 0b1, 0b1, 0b1)
    assert not story.judged()
