"""How far a streaming query is behind, in Spark's reports of its progress."""

import pytest

from velaray.pipelines import lag

NO_OFFSETS = ("null", "None", None, '{"7": 3}', '"text"', {"partitions": {"p": {"entries": None}}})


def test_lag_is_the_entries_after_the_end_of_the_batch():
    def offset(**entries):
        return {"partitions": {name: {"after": "1:1", "entries": n} for name, n in entries.items()}}

    one = {"endOffset": offset(a=3, b=5), "latestOffset": offset(a=10, b=5, new=7)}
    other = {"endOffset": offset(a=9), "latestOffset": offset(a=10)}
    assert lag({"sources": [one, other]}) == {"a": 7, "b": 0}
    for missing in NO_OFFSETS:
        assert lag({"sources": [{"endOffset": offset(a=3), "latestOffset": missing}]}) == {}


def test_the_source_reports_the_ends_of_all_partitions(driver, client, topic, make_topic):
    make_topic(topic, 2)
    with client.create_producer(topic, batching_enabled=False) as producer:
        for number in range(10):
            producer.send(b"%d" % number)
    query = driver(max_messages_per_trigger="4")
    source = query.start()
    try:
        assert source.reportLatestOffset() is None
        assert query.plan(source)
        report = {"endOffset": query.ends[-1], "latestOffset": source.reportLatestOffset()}
        behind = lag({"sources": [report]})
        assert sum(behind.values()) == 6
        assert sorted(behind) == [f"{topic}-partition-{number}" for number in range(2)]
    finally:
        source.stop()


@pytest.mark.slow
def test_spark_reports_the_lag_of_each_batch(run, client, topic):
    with client.create_producer(topic, batching_enabled=False) as producer:
        for number in range(6):
            producer.send(b"%d" % number)
    progress = run(lambda writer: writer.format("noop"), max_messages_per_trigger=2)
    assert [lag(each)[topic] for each in progress if each["numInputRows"]] == [4, 2, 0]
