"""The checker of moves back to the beginning, on histories written by hand."""

import pytest

from tests.sim.checkers import Evidence
from tests.sim.history import History
from tests.sim.moved_back import moves_back_redeliver_acknowledged_messages

TOPIC = "persistent://public/default/t0"
LOG = {TOPIC: {(1, 0): ["a", "b"]}}


class Story:
    """A history: consumer ``c`` of the subscription ``s`` gets a batch of a and b."""

    def __init__(self):
        self._now = 0.0
        self.history = History(lambda: self._now)

    def _add(self, event, /, **details):
        self._now += 1.0
        self.history.add(event, subscription="s", topic=TOPIC, **details)

    def subscribe(self):
        self._add("subscribe", name="c", kind=1, connection=1, consumer=1, durable=True)

    def receive(self, content):
        index = "ab".index(content)
        self._add("received", by="c", ledger=1, entry=0, index=index, content=content)

    def acknowledge(self, content, confirmed=True):
        place = {"by": "c", "ledger": 1, "entry": 0, "index": "ab".index(content)}
        self._add("acknowledging", cumulative=False, receipt=True, **place)
        if confirmed:
            self.confirm(content, self._now)

    def confirm(self, content, began):
        place = {"by": "c", "ledger": 1, "entry": 0, "index": "ab".index(content)}
        self._add("acked", began=began, cumulative=False, **place)

    def move(self, event, **details):
        """Takes a tenth of a second; an administrator's if no consumer is named."""
        self._now -= 0.9
        self._add(event, **details)

    def reset(self, done=True):
        self.move("seek", to="by an administrator")
        self.move("sought", reset=done)

    def judged(self):
        return list(moves_back_redeliver_acknowledged_messages(Evidence(self.history, LOG)))


@pytest.mark.parametrize("half", [False, True], ids=["all of it", "half of it"])
def test_a_missing_redelivery_is_reported(half):
    story = Story()
    story.subscribe()
    for content in "ab":
        story.receive(content)
    story.acknowledge("a")
    if not half:
        story.acknowledge("b")
    story.reset()
    story.subscribe()
    story.receive("b")
    story.acknowledge("b")
    (fault,) = story.judged()
    assert "never got ['a'] again" in fault


def test_a_complete_redelivery_is_accepted():
    story = Story()
    story.subscribe()
    story.receive("a")
    story.acknowledge("a")
    story.reset()
    story.subscribe()
    story.receive("a")
    assert story.judged() == []


@pytest.mark.parametrize("why", ["unconfirmed", "acknowledged later", "not moved", "no move"])
def test_messages_that_need_no_redelivery_are_not_reported(why):
    story = Story()
    story.subscribe()
    story.receive("a")
    story.receive("b")
    story.acknowledge("a", confirmed=why != "unconfirmed")
    if why != "no move":
        story.reset(done=why != "not moved")
    if why == "acknowledged later":
        story.acknowledge("b")  # as it came before the move, it may complete the batch behind it
    story.subscribe()
    assert story.judged() == []


@pytest.mark.parametrize("last", ["(1,0,0,-1)", "earliest", "by an administrator"])
@pytest.mark.parametrize("answers", [("reset", "seek"), ("seek", "reset")])
def test_the_order_of_concurrent_moves_is_unknown(last, answers):
    story = Story()
    story.subscribe()
    story.receive("a")
    story.acknowledge("a")
    reset = {"to": "by an administrator"}
    seek = {"by": "c", "to": last if last != reset["to"] else "(1,0,0,-1)"}
    for moved in (seek, reset) if last == reset["to"] else (reset, seek):
        story.move("seek", **moved)
    for answer in answers:
        story.move("sought", **({"by": "c"} if answer == "seek" else {"reset": True}))
    story.subscribe()
    assert story.judged() == []


def test_a_missing_redelivery_after_the_next_move_is_reported():
    story = Story()
    story.subscribe()
    story.receive("a")
    story.acknowledge("a")
    story.move("seek", by="c", to="(1,0,0,-1)")
    story.move("sought", by="c")
    story.reset()
    story.subscribe()
    (fault,) = story.judged()
    assert "never got ['a'] again" in fault


@pytest.mark.parametrize("event", ["", "lost"], ids=["answered", "refused"])
def test_a_missing_redelivery_after_a_consumers_seek_is_reported(event):
    story = Story()
    story.subscribe()
    story.receive("a")
    story.acknowledge("a")
    story.move("seek", by="c", to="earliest")
    story.move("sought", by="c")
    story.move(event or "subscribe", name="c")
    assert len(story.judged()) == (0 if event else 1)


def test_entries_whose_ack_was_sent_again_with_a_later_one_need_no_redelivery():
    story = Story()
    story.subscribe()
    story.receive("a")
    story.receive("b")
    story.acknowledge("a", confirmed=False)
    began = story.history.now()
    story.acknowledge("b", confirmed=False)
    story.confirm("a", began)
    story.reset()
    story.subscribe()
    assert story.judged() == []
