"""Identifiers: byte form and order are Pulsar's, text forms are unambiguous and reversible."""

from __future__ import annotations

import pulsar
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from velaray.client.message_id import MessageId as UserId
from velaray.events.ids import (
    EARLIEST,
    INT32_MAX,
    INT64_MAX,
    LATEST,
    MAX_NAME_BYTES,
    ActorKey,
    ActorKind,
    InvalidMessageIdError,
    InvalidNameError,
    MessageId,
    Position,
    TopicName,
    check_local_name,
    check_name,
)

longs = st.one_of(st.integers(-1, 3), st.integers(-1, INT64_MAX))
ints = st.one_of(st.integers(-1, 3), st.integers(-1, INT32_MAX))
ids = st.builds(MessageId, longs, longs, ints, ints)
same_partition = st.builds(MessageId, longs, longs, st.just(0), ints)


def official(message_id: MessageId) -> pulsar.MessageId:
    """The same id in Pulsar's own client."""
    return pulsar.MessageId(
        message_id.partition,
        message_id.ledger_id,
        message_id.entry_id,
        message_id.batch_index,
    )


class TestMessageId:
    @given(ids)
    @example(MessageId.earliest)
    @example(MessageId.latest)
    @example(MessageId(0, 0, 0, 0))
    def test_the_byte_form_is_that_of_the_official_client(self, message_id: MessageId) -> None:
        raw = official(message_id).serialize()
        assert message_id.to_bytes() == raw
        assert MessageId.from_bytes(raw) == message_id

    @pytest.mark.parametrize("name", ["earliest", "latest"])
    def test_the_ends_of_the_log_are_those_of_the_official_client(self, name: str) -> None:
        assert getattr(MessageId, name).to_bytes() == getattr(pulsar.MessageId, name).serialize()

    @given(same_partition, same_partition)
    def test_the_order_within_a_partition_is_that_of_the_official_client(
        self, one: MessageId, other: MessageId
    ) -> None:
        a, b = official(one), official(other)
        assert (one < other, one <= other, one == other) == (a < b, a <= b, a == b)
        assert (one > other, one >= other, one != other) == (a > b, a >= b, a != b)

    @given(ids, ids)
    def test_the_order_is_total(self, one: MessageId, other: MessageId) -> None:
        assert [one < other, one == other, one > other].count(True) == 1
        assert (hash(one) == hash(other)) >= (one == other)

    def test_ids_are_not_comparable_with_other_types(self) -> None:
        with pytest.raises(TypeError):
            assert MessageId(1, 2) < Position(1, 3)
        assert MessageId(1, 2) != (1, 2)

    @given(ids, st.integers(0, INT32_MAX), st.none() | ids)
    def test_batch_size_and_first_chunk_survive(
        self, message_id: MessageId, size: int, first: MessageId | None
    ) -> None:
        whole = MessageId(
            message_id.ledger_id,
            message_id.entry_id,
            message_id.partition,
            message_id.batch_index,
            size,
            first,
        )
        read = MessageId.from_bytes(whole.to_bytes())
        assert (read, read.batch_size, read.first_chunk) == (whole, size, first)

    @given(ids)
    def test_the_text_form_survives(self, message_id: MessageId) -> None:
        assert MessageId.parse(str(message_id)) == message_id

    def test_short_text_forms(self) -> None:
        assert MessageId.parse("3:4") == MessageId(3, 4)
        assert MessageId.parse("3:4:5") == MessageId(3, 4, 5)
        assert MessageId.parse("3:4:5:6") == MessageId(3, 4, 5, 6)
        assert MessageId.parse("3:-1").position == Position(3, -1)

    def test_the_printed_form_of_clients_for_python_and_cpp(self) -> None:
        assert MessageId.parse(str(pulsar.MessageId(1, 2, 3, 4))) == MessageId(2, 3, 1, 4)
        assert MessageId.parse(repr(pulsar.MessageId.latest)) == MessageId.latest
        for own in (UserId(1, 2, 3, 4), UserId(-1, 7, 8), UserId.earliest, UserId.latest):
            assert MessageId.parse(str(own)) == MessageId.parse(repr(own)) == own.to_stored()

    @pytest.mark.parametrize(
        "text",
        [
            *(
                "",
                "3",
                "3:",
                ":4",
                "a:b",
                "3:4:5:6:7",
                "3 :4",
                "+3:4",
                "1_0:4",
                "3:4\n",
                "\u0663:4",
            ),
            *("(3,4)", "(3,4,5,6", "3,4,5,6", "(3,4,5,6)x", "(3:4:5:6)", "(3, 4, 5, 6)"),
            *("3:-2", f"{1 << 63}:0", f"0:{1 << 64}", f"0:0:{1 << 31}", "9" * 5000 + ":0"),
        ],
        ids=lambda text: text[:12],
    )
    def test_invalid_text_of_an_id_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidMessageIdError):
            MessageId.parse(text)

    @given(st.binary(max_size=40))
    def test_any_bytes_are_an_id_or_refused(self, raw: bytes) -> None:
        try:
            message_id = MessageId.from_bytes(raw)
        except InvalidMessageIdError:
            return
        assert MessageId.from_bytes(message_id.to_bytes()) == message_id

    @pytest.mark.parametrize("raw", [b"", b"\x08\x01", b"\x10\x01", b"\x08\x01\x10", b"\xff" * 20])
    def test_invalid_bytes_of_an_id_are_refused(self, raw: bytes) -> None:
        with pytest.raises(InvalidMessageIdError):
            MessageId.from_bytes(raw)

    def test_positions_are_ordered_as_the_log_is(self) -> None:
        assert EARLIEST < Position(0, -1) < Position(0, 0) < Position(0, 1) < Position(1, -1)
        assert Position(INT64_MAX - 1, INT64_MAX) < LATEST
        assert str(Position(3, 4)) == "3:4"


NAMES = st.text("abz09-=:._", min_size=1, max_size=12).filter(lambda name: name not in (".", ".."))
LOCALS = st.text(min_size=1, max_size=12).filter(lambda name: _is_local(name))


def _is_local(name: str) -> bool:
    """Whether ``name`` may be a topic's own name."""
    try:
        return "/" not in name and TopicName.parse(f"persistent://t/n/{name}").local == name
    except InvalidNameError:
        return False


topics = st.builds(
    TopicName,
    NAMES,
    NAMES,
    LOCALS,
    st.integers(-1, 999_999_999),
    st.sampled_from(["persistent", "non-persistent"]),
)


class TestTopicName:
    def test_short_names_mean_the_default_namespace(self) -> None:
        plain = TopicName("public", "default", "flights")
        assert TopicName.parse("flights") == plain
        assert TopicName.parse("public/default/flights") == plain
        assert TopicName.parse("persistent://public/default/flights") == plain
        assert str(plain) == "persistent://public/default/flights"
        assert plain.namespace_name == "public/default"

    def test_a_partition_is_distinguished_from_its_topic(self) -> None:
        third = TopicName.parse("flights-partition-3")
        assert (third.local, third.partition) == ("flights", 3)
        assert third.topic == TopicName.parse("flights")
        assert third.topic.of_partition(3) == third
        assert str(third) == "persistent://public/default/flights-partition-3"

    @pytest.mark.parametrize(
        "local", ["a-partition-", "a-partition-03", "a-partition--1", "a-partition-1234567890"]
    )
    def test_names_that_only_look_like_partitions_are_topics(self, local: str) -> None:
        assert TopicName.parse(local) == TopicName("public", "default", local)

    @given(topics)
    def test_the_text_form_survives(self, topic: TopicName) -> None:
        assert TopicName.parse(str(topic)) == topic
        assert TopicName.parse(str(topic.topic)) == topic.topic

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "persistent://",
            "persistent:///n/t",
            "persistent://t//x",
            "persistent://t/n/",
            "persistent://t/n",
            "persistent://t/cluster/n/topic",
            "t/n",
            "http://t/n/x",
            "://t/n/x",
            "persistent://../n/x",
            "persistent://t/./x",
            "persistent://t/n/..",
            "persistent://t/n/.",
            "persistent://t e/n/x",
            "persistent://té/n/x",
            "persistent://t/n/x\n",
            "persistent://t/n/x\x00",
            "persistent://t\n/n/x",
            "persistent://t/n/-partition-3",
            "persistent://t/n/a-partition-3-partition-4",
            "persistent://t/n/\ud800",
            "persistent://t/n/" + "x" * (MAX_NAME_BYTES + 1),
            "persistent://t/n/" + "\u822a" * (MAX_NAME_BYTES // 9 + 1),
            "persistent://" + "t" * (MAX_NAME_BYTES + 1) + "/n/x",
        ],
        ids=lambda text: ascii(text[:40]),
    )
    def test_a_name_against_the_rules_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidNameError) as refused:
            TopicName.parse(text)
        assert len(str(refused.value)) < 500

    @given(st.text(max_size=60))
    def test_any_text_is_a_name_or_refused(self, text: str) -> None:
        try:
            topic = TopicName.parse(text)
        except InvalidNameError:
            return
        assert TopicName.parse(str(topic)) == topic

    def test_the_longest_name_is_allowed(self) -> None:
        for name in ("x" * MAX_NAME_BYTES, "\u822a" * (MAX_NAME_BYTES // 9)):
            assert TopicName.parse(name).local == name

    def test_parts_of_names_are_validated_separately(self) -> None:
        assert check_name("tenant", "a-b=c:d.e_f") == "a-b=c:d.e_f"
        assert check_local_name("subscription", "any/thing é") == "any/thing é"
        for name in ("", "..", "a b", "é"):
            with pytest.raises(InvalidNameError, match="tenant"):
                check_name("tenant", name)
        for name in ("", ".", "a\tb", "\x7f"):
            with pytest.raises(InvalidNameError, match="subscription"):
                check_local_name("subscription", name)


partitions = st.builds(ActorKey.of_partition, topics, st.integers(0, INT64_MAX))
subscriptions = st.builds(
    ActorKey.of_subscription,
    partitions,
    st.text(
        st.characters(min_codepoint=32, exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12
    ).filter(lambda name: name not in (".", "..")),
    st.integers(0, INT64_MAX),
)


class TestActorKey:
    @given(partitions | subscriptions | st.just(ActorKey.catalog()))
    def test_the_text_form_survives_and_may_stand_as_a_path(self, key: ActorKey) -> None:
        text = key.text()
        assert ActorKey.parse(text) == key
        assert str(key) == text
        assert all(part not in ("", ".", "..") for part in text.split("/"))
        assert text.isascii() and text.isprintable() and " " not in text

    @given(subscriptions, subscriptions)
    def test_different_keys_have_different_texts(self, one: ActorKey, other: ActorKey) -> None:
        assert (one.text() == other.text()) == (one == other)

    def test_names_that_pulsar_confuses_are_kept_apart(self) -> None:
        def key(topic: str, subscription: str) -> ActorKey:
            partition = ActorKey.of_partition(TopicName.parse(topic), 1)
            return partition.of_subscription(subscription, 1)

        assert key("a-b", "c").text() != key("a", "b-c").text()
        assert key("a", "b/1").text() != key("a", "b").text() + "/1"

    def test_the_text_form_of_a_key_is_readable(self) -> None:
        key = ActorKey.of_partition(TopicName.parse("acme/eu/orders-partition-3"), 7)
        assert key.text() == "partition/acme/eu/orders/3/7"
        assert key.of_subscription("bill ing", 2).text() == (
            "subscription/acme/eu/orders/3/7/bill%20ing/2"
        )
        assert key.of_compacted(4).text() == "compacted/acme/eu/orders/3/7/4"
        assert ActorKey.parse(key.of_compacted(4).text()) == key.of_compacted(4)
        assert ActorKey.catalog().text() == "catalog"
        assert key.of_subscription("s", 2).topic_name == TopicName.parse(
            "acme/eu/orders-partition-3"
        )

    def test_no_key_can_name_a_parent_folder(self) -> None:
        key = ActorKey(ActorKind.PARTITION, "..", ".", "..", 0, 1)
        assert key.text() == "partition/%2E%2E/%2E/%2E%2E/0/1"

    @pytest.mark.parametrize("subscription", ["", ".", "..", "a\nb", "x" * (MAX_NAME_BYTES + 1)])
    def test_a_subscription_name_against_the_rules_is_refused(self, subscription: str) -> None:
        partition = ActorKey.of_partition(TopicName.parse("t"), 1)
        with pytest.raises(InvalidNameError):
            partition.of_subscription(subscription, 1)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "/",
            "nobody",
            "catalog/x",
            "catalog/a/b/c/1/1",
            "partition",
            "partition/a/b/c/1",
            "partition/a/b/c/1/1/1",
            "compacted/a/b/c/1/1",
            "compacted/a/b/c/1/1/1/1",
            "compacted/a/b/c/1/1/-1",
            "compacted/a/b/c/1/1/x",
            "partition//b/c/1/1",
            "partition/a/b//1/1",
            "partition/../b/c/1/1",
            "partition/%2E%2E/b/c/1/1",
            "partition/a/b/%2e%2e/1/1",
            "partition/a/b/c/x/1",
            "partition/a/b/c/+1/1",
            "partition/a/b/c/01/1",
            "partition/a/b/c/1/1_0",
            "partition/a/b/c/-2/1",
            "partition/a/b/c/1/-1",
            "partition/a/b/%c3/1/1",
            "partition/a/b/%63/1/1",
            "partition/a/b/é/1/1",
            "partition/a/b/\ud800/1/1",
            "subscription/a/b/c/1/1",
            "subscription/a/b/c/1/1//1",
            "subscription/a/b/c/1/1/s/x",
        ],
        ids=ascii,
    )
    def test_invalid_text_of_a_key_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidNameError, match="not an actor key"):
            ActorKey.parse(text)

    @given(st.text(max_size=60))
    def test_any_text_is_a_key_or_refused(self, text: str) -> None:
        try:
            key = ActorKey.parse(text)
        except InvalidNameError:
            return
        assert key.text() == text
