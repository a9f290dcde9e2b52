"""A batch's limit is shared out over partitions: fairly, and always with progress."""

import pytest

from velaray.client.read_bounds import Span, Spot
from velaray.pipelines.spark_admission import Limits, admit
from velaray.pipelines.spark_offsets import Progress
from velaray.pipelines.spark_positions import Place


class Log:
    """Partitions with entries of so many messages, each of ten bytes."""

    def __init__(self, **entries):
        self.entries = entries
        self.asked = 0

    def ask(self, progress, limits):
        self.asked += 1
        return {name: self._span(name, progress[name], limits[name]) for name in progress}

    def _span(self, name, progress, limits):
        begun = progress.entries or 0
        messages, at = 0, begun
        for size in self.entries[name][begun:]:
            full = limits.messages and messages + size > limits.messages
            full = full or (limits.bytes and (messages + size) * 10 > limits.bytes)
            if full and (messages or not limits.some):
                break
            messages += size
            at += 1
        spot = Spot(Place(1, at - 1).message_id(-1), at)
        more = at < len(self.entries[name])
        return Span(spot, messages, messages * 10, more, False, None, 1, 0, 0, False)

    def batches(self, limits, most=100):
        """How many messages of each partition are in each batch until there is no more."""
        at = {name: Progress(Place(1, -1), 0) for name in self.entries}
        found = []
        for turn in range(most):
            names = sorted(at)
            turn %= len(names)
            new = admit(self.ask, at, names[turn:] + names[:turn], limits)
            counts = {
                name: sum(self.entries[name][at[name].entries : new[name].entries])
                for name in names
            }
            if not any(counts.values()):
                return found
            found.append(counts)
            at = new
        raise AssertionError("no end")


def test_partitions_share_the_limit_and_unused_parts_go_to_the_others():
    log = Log(a=[1] * 100, b=[1] * 100, c=[1] * 5)
    assert log.batches(Limits(messages=45))[0] == {"a": 20, "b": 20, "c": 5}


def test_without_limits_one_request_gives_one_batch_of_everything():
    log = Log(a=[1] * 10, b=[7] * 3)
    assert log.batches(Limits()) == [{"a": 10, "b": 21}]


@pytest.mark.parametrize("limits", [Limits(messages=10), Limits(bytes=100), Limits(10, 1000)])
def test_no_batch_exceeds_the_limit_and_everything_is_read(limits):
    log = Log(a=[3] * 20, b=[1] * 50, c=[10] * 3, d=[])
    found = log.batches(limits)
    assert all(sum(batch.values()) <= 10 for batch in found)
    sums = {name: sum(batch[name] for batch in found) for name in log.entries}
    assert sums == {"a": 60, "b": 50, "c": 30, "d": 0}


def test_an_entry_above_the_limit_is_read_alone():
    log = Log(a=[1] * 6, b=[100] * 2)
    found = log.batches(Limits(messages=2))
    assert {"a": 0, "b": 100} in found
    assert sum(batch["b"] for batch in found) == 200
    assert sum(batch["a"] for batch in found) == 6


@pytest.mark.parametrize("limits", [Limits(messages=60), Limits(bytes=600)])
def test_an_entry_above_the_limit_is_read_if_the_first_partition_is_empty(limits):
    """It was taken back, and asked for again, for ever."""
    assert Log(a=[], b=[300, 10]).batches(limits) == [{"a": 0, "b": 300}, {"a": 0, "b": 10}]
    log = Log(a=[], b=[300], c=[20, 200])
    assert sum(sum(batch.values()) for batch in log.batches(limits)) == 520
    assert log.asked < 40


def test_partitions_take_turns_if_the_limit_is_below_one_message_each():
    log = Log(**{f"p{number:02}": [1] * 2 for number in range(16)})
    found = log.batches(Limits(messages=3))
    assert all(0 < sum(batch.values()) <= 3 for batch in found)
    assert len(found) == 11  # 32 messages
    early = [name for batch in found[:6] for name, count in batch.items() if count]
    assert len(set(early)) > 6
