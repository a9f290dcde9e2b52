"""The checker of messages that can't be processed, on histories written by hand."""

import pytest

from tests.sim.checkers import Evidence
from tests.sim.dead_letter_checkers import poison_becomes_a_dead_letter
from tests.sim.history import History

TOPIC, GRAVE = "persistent://public/default/d0", "persistent://public/default/d0-s-DLQ"


class Story:
    """A history in which the subscription ``s`` gets a message that it can't process."""

    def __init__(self):
        self._now = 0.0
        self.history = History(lambda: self._now)

    def _add(self, event, /, **details):
        self._now += 1.0
        self.history.add(event, **details)

    def delete_topic(self):
        deed = {"what": "delete topic", "topic": "public/default/d0", "subscription": ""}
        self._add("admin", **deed)
        self._add("admin done", **deed, doubtful=False)

    def send(self):
        self._add("send", content="a")

    def fail(self):
        self._add("poison", content="a", topic=TOPIC, subscription="s")

    def judged(self, log, letters):
        logs = {TOPIC: {(1, 0): log}}
        letters = {GRAVE: {(2, 0): letters}}
        return list(poison_becomes_a_dead_letter(Evidence(self.history, logs, letters=letters)))


@pytest.mark.parametrize("kept", [True, False], ids=["still in the topic", "in no topic"])
def test_a_poison_message_without_a_dead_letter_is_reported(kept):
    story = Story()
    story.send()
    story.fail()
    assert story.judged(["a"] if kept else [], [])
    assert not story.judged(["a"] if kept else [], ["a"])


def test_messages_of_a_deleted_topic_need_no_dead_letter():
    story = Story()
    story.send()
    story.fail()
    story.delete_topic()
    assert not story.judged([], [])


def test_messages_in_the_topic_after_its_deletion_need_a_dead_letter():
    story = Story()
    story.send()
    story.delete_topic()
    story.fail()
    assert story.judged(["a"], [])


def test_messages_sent_after_the_deletion_need_a_dead_letter():
    story = Story()
    story.delete_topic()
    story.send()
    story.fail()
    assert story.judged([], [])
