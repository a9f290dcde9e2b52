"""Ray Data by TLS, with credentials and end-to-end encryption."""

import pytest
import ray

from tests.ray.support import RayNodes
from tests.support.secured import KEY, secured
from velaray.client.exceptions import InvalidConfiguration
from velaray.pipelines import TopicSink, read_topic


def test_a_dataset_goes_to_a_topic_and_back(tmp_path):
    topic = "persistent://public/default/secured"
    rows = [{"key": f"k{n % 3}", "value": f"{n}"} for n in range(100)]
    with RayNodes(workers=1), secured(tmp_path) as place:
        ray.data.DataContext.get_current().enable_progress_bars = False
        sink = TopicSink(
            topic,
            service_url=place.url,
            tls=place.certified,
            encryption_key=KEY,
            public_key_file=place.public_key,
        )
        ray.data.from_items(rows, override_num_blocks=3).write_datasink(sink)
        reading = {"service_url": place.url, "tls": place.trusting, "columns": ["key", "value"]}
        for proof in ({"token": place.token}, {"token_file": str(place.token_file)}):
            found = read_topic(
                topic, **reading, **proof, private_key_file=place.private_key
            ).take_all()
            got = sorted((row["key"], row["value"].decode()) for row in found)
            assert got == sorted((row["key"], row["value"]) for row in rows)
        with pytest.raises(Exception, match="can't be decrypted"):
            read_topic(topic, **reading, token=place.token).take_all()


def test_options_that_cannot_work_are_refused(tmp_path):
    with pytest.raises(InvalidConfiguration, match="need service_url"):
        read_topic("t", data_dir=str(tmp_path), token="x")
    with pytest.raises(InvalidConfiguration, match="one file for each name"):
        TopicSink("t", service_url="pulsar://broker:6650", encryption_key=["a", "b"])
