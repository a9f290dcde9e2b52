"""REST bodies beyond the limits: every route that takes a body refuses them, and none fails."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from functools import reduce
from typing import Any

import pytest

from tests.support.local_cluster import LocalCluster
from velaray.admin.api import groups
from velaray.admin.body_limits import MAX_DEPTH, MAX_MEMBERS, fault_in_value
from velaray.client.admin.operations import Operation
from velaray.events.ids import INT64_MAX
from velaray.schemas.validation import MAX_SCHEMA_BYTES
from velaray.wire.limits import MAX_PROPERTIES, MAX_TEXT_BYTES

WRITING = [
    route.operation
    for group in groups()
    for route in group.routes
    if route.operation.method in ("PUT", "POST") or route.operation.body is not None
]
BODIES = {
    "deep": "[" * 500 + "]" * 500,
    "endless": "[" * 500_000,
    "a great number": "1" + "0" * 400,
    "a great field": f'{{"maxRedeliverCount": {2**64}, "a": {2**64}}}',
    "not a number": '{"a": NaN}',
    "many fields": "{" + ",".join(f'"{number}": "v"' for number in range(2000)) + "}",
    "many members": "[" + ",".join(["1"] * 20_000) + "]",
    "a long text": '"' + "x" * 600_000 + '"',
}
VALUES = {"tenant": "public", "namespace": "default", "topic": "t", "domain": "persistent"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("data"), hosts=1) as running:
        yield running


def answered(cluster: LocalCluster, operation: Operation, body: str) -> tuple[int, str]:
    host = cluster.admin_url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=60)
    values = {name: VALUES.get(name, "7") for name in operation.variables}
    headers = {"Content-Type": "application/json"}
    connection.request(operation.method, operation.target(values), body, headers)
    answer = connection.getresponse()
    try:
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("what", BODIES)
def test_no_route_takes_a_body_beyond_the_limits(cluster: LocalCluster, what: str) -> None:
    for operation in WRITING:
        if operation.body is None and what != "endless":
            continue  # the body isn't read
        status, text = answered(cluster, operation, BODIES[what])
        if operation.body is not None:
            assert 400 <= status < 500 or status == 501, f"{operation.name}: {status} {text[:200]}"
        assert status != 500, f"{operation.name}: {text[:200]}"
        assert len(text) < 2000


def test_a_body_of_more_than_a_mebibyte_is_refused(cluster: LocalCluster) -> None:
    operation = next(each for each in WRITING if each.name.endswith("/{namespace}/properties"))
    assert answered(cluster, operation, '{"a": "' + "x" * (1 << 20) + '"}')[0] == 413


def test_properties_of_a_namespace_are_limited_together(cluster: LocalCluster) -> None:
    operation = next(each for each in WRITING if each.name.endswith("/{namespace}/properties"))
    whole = ",".join(f'"{number}": "v"' for number in range(MAX_PROPERTIES))
    assert answered(cluster, operation, "{" + whole + "}")[0] == 204
    status, text = answered(cluster, operation, '{"one more": "v"}')
    assert (status, "it may have 1000" in text) == (412, True)


def nested(depth: int) -> Any:
    return reduce(lambda inner, _: [inner], range(depth - 1), [])


def test_values_at_their_limits() -> None:
    within: list[Any] = [
        nested(MAX_DEPTH),
        [0] * MAX_MEMBERS,
        {str(number): 0 for number in range(MAX_PROPERTIES)},
        "x" * MAX_SCHEMA_BYTES,
        {"x" * MAX_TEXT_BYTES: 0},
        INT64_MAX,
        -INT64_MAX,
        1.5,
        None,
        True,
    ]
    beyond: list[Any] = [
        nested(MAX_DEPTH + 1),
        [0] * (MAX_MEMBERS + 1),
        {str(number): 0 for number in range(MAX_PROPERTIES + 1)},
        "x" * (MAX_SCHEMA_BYTES + 1),
        {"x" * (MAX_TEXT_BYTES + 1): 0},
        INT64_MAX + 1,
        float("nan"),
        float("inf"),
    ]
    assert [fault_in_value(each) for each in within] == [""] * len(within)
    assert all(fault_in_value([each]) for each in beyond)
