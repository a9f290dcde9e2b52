"""A cluster in this process for the tests of pipelines."""

import itertools

import pytest

from tests.support.local_cluster import LocalCluster

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def topic():
    return f"persistent://public/default/pipeline-{next(_numbers)}"
