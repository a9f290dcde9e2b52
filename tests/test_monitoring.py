"""The dashboards and alert rules of deploy/monitoring, and Prometheus on a cluster."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

import velaray
from benchmarks.contract import Absent
from tests.support import prometheus
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.topology.metrics import METRICS, PARTS

FOLDER = Path(__file__).parents[1] / "deploy" / "monitoring"
DASHBOARDS = sorted((FOLDER / "grafana" / "dashboards").glob("*.json"))
RULES = FOLDER / "prometheus" / "alerts.yaml"
BIN = Path(sys.executable).parent
OF_PROMETHEUS = {"up"}
"""Metrics of Prometheus itself."""

FILLED_WITHIN_S = 60.0

REPLICATION = "the cluster replicates nothing"
EMPTY = {
    ("hosts", "Actors"): "without Ray there are no hosts",
    ("topics", "Subscriptions blocked by un-acknowledged messages"): "no subscription is blocked",
    ("hosts", "Time until the certificate expires"): "the cluster has no TLS",
    ("replication", "Connected replicators"): REPLICATION,
    ("replication", "Backlog"): REPLICATION,
    ("replication", "Delay"): REPLICATION,
    ("replication", "Delay of the progress of subscriptions"): REPLICATION,
    ("replication", "Messages per second"): REPLICATION,
    ("replication", "Bytes per second"): REPLICATION,
    ("replication", "Backlog in bytes"): REPLICATION,
    ("replication", "Entries per second"): REPLICATION,
}
"""The panels that are empty in the test, and why."""

Panel = tuple[str, str]


def panels() -> Iterator[tuple[Panel, list[str]]]:
    """The panels of all dashboards with their expressions."""
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            yield (path.stem, panel["title"]), [each["expr"] for each in panel["targets"]]


def rules() -> list[dict[str, Any]]:
    """The alert rules."""
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return list(group["rules"])


def metrics_of(expression: str) -> set[str]:
    """The metrics that an expression names."""
    names = set(re.findall(r"\b(?:velaray|pulsar)_\w+|\bup\b", expression))
    return {PARTS.get(name, name) for name in names}


def asked(expression: str, cluster: str) -> str:
    """The expression with values for Grafana's variables."""
    values = {"cluster": cluster, "__rate_interval": "30s"}
    return re.sub(r"\$(\w+)", lambda found: values.get(found[1], ".*"), expression)


def test_expressions_name_metrics_that_there_are() -> None:
    expressions = [each for _, several in panels() for each in several]
    expressions += [rule["expr"] for rule in rules()]
    assert len(expressions) > 100
    for expression in expressions:
        found = metrics_of(expression)
        assert found and found <= METRICS.keys() | OF_PROMETHEUS, expression


def test_the_dashboards_can_be_provisioned() -> None:
    source = yaml.safe_load((FOLDER / "grafana" / "datasource.yaml").read_text(encoding="utf-8"))
    (uid,) = {each["uid"] for each in source["datasources"]}
    found = [json.loads(path.read_text(encoding="utf-8")) for path in DASHBOARDS]
    assert len({each["uid"] for each in found}) == len({each["title"] for each in found}) == 5
    for dashboard in found:
        places = set()
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            assert panel["title"] and panel["datasource"]["uid"] == uid
            assert place["x"] + place["w"] <= 24
            places.add((place["x"], place["y"]))
        assert len(places) == len({each["id"] for each in dashboard["panels"]})
        for variable in dashboard["templating"]["list"]:
            assert metrics_of(variable["query"]["query"]) <= METRICS.keys()
    titles = [panel for panel, _ in panels()]
    assert len(titles) == len(set(titles)) and set(titles) >= EMPTY.keys()


def test_the_compose_file_names_files_that_there_are() -> None:
    path = FOLDER / "compose.yaml"
    check = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", path]
    done = subprocess.run(check, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    services = yaml.safe_load(path.read_text(encoding="utf-8"))["services"]
    mounted = [each for service in services.values() for each in service["volumes"]]
    sources = [each.partition(":")[0] for each in mounted if each.startswith("./")]
    assert len(sources) == 4 and all((FOLDER / each).exists() for each in sources)


def test_every_alert_says_what_it_is_and_what_to_do() -> None:
    found = rules()
    assert len({rule["alert"] for rule in found}) == len(found)
    page = (Path(__file__).parents[1] / "docs" / "monitoring.md").read_text(encoding="utf-8")
    for rule in found:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"].keys() == {"summary", "description"}
        assert f"`{rule['alert']}`" in page


@pytest.mark.slow
def test_the_rules_and_the_configuration_pass_promtool() -> None:
    try:
        tool = prometheus.program("promtool")
    except Absent as reason:
        pytest.skip(f"no promtool: {reason}")
    for words in (["rules", RULES], ["config", "--syntax-only", RULES.parent / "prometheus.yaml"]):
        command = [tool.path, "check", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def traffic(client: velaray.Client, admin: velaray.Admin) -> None:
    """Messages, acknowledgements, a backlog, transactions with both outcomes, a deleted topic."""
    consumer = client.subscribe("busy", "s")
    producer = client.create_producer("busy")
    for number in range(20):
        producer.send(b"%d" % number)
        if number < 15:
            consumer.acknowledge(consumer.receive(timeout_millis=10_000))
    for commits in (True, False):
        transaction = client.transaction()
        producer.send(b"in a transaction", txn=transaction)
        transaction.commit() if commits else transaction.abort()
    consumer.close()
    producer.close()
    client.create_producer("gone").close()
    admin.topics.delete("gone")


@pytest.mark.slow
def test_prometheus_fills_every_panel(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "data", hosts=1, deleters=1) as cluster:
        target = cluster.admin_url.removeprefix("http://")
        try:
            with prometheus.running(tmp_path, target, RULES) as found:
                _watch(cluster, found)
        except Absent as reason:
            pytest.skip(f"no prometheus: {reason}")


def _empty(found: prometheus.Prometheus, cluster: str) -> dict[Panel, str]:
    """The panels with an expression without a value, and the expression."""
    left: dict[Panel, str] = {}
    for panel, expressions in panels():
        for each in expressions:
            rows = found.series(asked(each, cluster))
            if all(row["value"][1] == "NaN" for row in rows):
                left.setdefault(panel, each)
    return left


def _watch(cluster: LocalCluster, found: prometheus.Prometheus) -> None:
    empty: dict[Panel, str] = {}
    admin = velaray.Admin(cluster.admin_url)
    with velaray.Client(cluster.service_url) as client:

        def filled() -> bool:
            nonlocal empty
            traffic(client, admin)
            empty = _empty(found, cluster.config.name)
            return empty.keys() <= EMPTY.keys()

        with suppress(AssertionError):
            wait_until(filled, FILLED_WITHIN_S)
    assert empty.keys() == EMPTY.keys(), empty
    written = found.series("sum(velaray_storage_write_latency_seconds_count)")
    assert float(written[0]["value"][1]) > 20
    (group,) = found.ask("rules")["groups"]
    assert {rule["name"] for rule in group["rules"]} == {rule["alert"] for rule in rules()}
    assert {rule["health"] for rule in group["rules"]} == {"ok"}
    firing = {each["labels"]["alertname"] for each in found.ask("alerts")["alerts"]}
    assert not firing & {"VelarayDown", "VelarayCatalogAway", "VelarayDiskFull"}
