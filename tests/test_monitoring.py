"""The dashboards and alert rules of deploy/monitoring, and Prometheus on a cluster."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Container, Iterator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

import velaray
from benchmarks.contract import Absent
from tests.support import prometheus, pulsar_panels
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.topology.metrics import METRICS, PARTS

FOLDER = Path(__file__).parents[1] / "deploy" / "monitoring"
DASHBOARDS = sorted((FOLDER / "grafana" / "dashboards").glob("*.json"))
RULES = FOLDER / "prometheus" / "alerts.yaml"
BIN = Path(sys.executable).parent
OF_PROMETHEUS = {"up"}
"""Metrics of Prometheus itself."""

JOBS = ("velaray", pulsar_panels.JOB)
FILLED_WITHIN_S = 60.0

CLUSTER = '{cluster="$cluster"}'
TOPIC = '{cluster="$cluster",namespace=~"$namespace",topic=~"$topic"}'


def by_remote(function: str, names: str) -> list[str]:
    """A function of the series of each other cluster, for several metrics."""
    return [f"{function} by (remote_cluster) ({name}{CLUSTER})" for name in names.split()]


EMPTY: dict[str, str] = {
    'sum by (host) (velaray_host_actors{cluster="$cluster",host=~"$host"})': (
        "without Ray there are no hosts"
    ),
    f"max(velaray_tls_expiry_timestamp_seconds{CLUSTER}) - time()": "the cluster has no TLS",
    "sum by (topic, subscription) "
    f"(pulsar_subscription_blocked_on_unacked_messages{TOPIC}) > 0": "no subscription is blocked",
    **dict.fromkeys(
        [
            *by_remote("sum", "pulsar_replication_connected_count velaray_pull_connected"),
            *by_remote("sum", "pulsar_replication_backlog velaray_pull_backlog"),
            *by_remote("max", "pulsar_replication_delay_in_seconds velaray_pull_delay_seconds"),
            *by_remote("max", "velaray_replication_progress_lag_seconds"),
            *by_remote("sum", "pulsar_replication_rate_out pulsar_replication_rate_in"),
            *by_remote("sum", "pulsar_replication_throughput_out pulsar_replication_throughput_in"),
            *by_remote("sum", "velaray_pull_rate velaray_pull_throughput"),
            *by_remote("sum", "velaray_replication_backlog_bytes"),
            *(
                f"sum by (remote_cluster) (rate(velaray_{what}_total{CLUSTER}[$__rate_interval]))"
                for what in (
                    *("replication_entries", "replication_duplicates"),
                    *("pull_entries", "pull_duplicates"),
                )
            ),
        ],
        pulsar_panels.NO_REPLICATION,
    ),
    **pulsar_panels.EMPTY,
}
"""The expressions that are empty in the test, and why."""

Panel = tuple[str, str]


def panels() -> Iterator[tuple[Panel, list[str]]]:
    """The panels of all dashboards with their expressions."""
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            yield (path.stem, panel["title"]), [each["expr"] for each in panel["targets"]]


def expressions() -> dict[str, Panel]:
    """The expressions of the tree's panels and of Pulsar's, each with the first that has it."""
    found: dict[str, Panel] = {}
    for panel, several in [*panels(), *pulsar_panels.PANELS.items()]:
        for each in several:
            found.setdefault(each, panel)
    return found


def unexplained(empty: Container[str], reasons: Container[str]) -> list[str]:
    """Expressions that are empty without a reason, and those that have a reason and a value."""
    return [
        f"{panel}: {each} is {'empty' if each in empty else 'filled, and has a reason'}"
        for each, panel in expressions().items()
        if (each in empty) != (each in reasons)
    ]


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
    named = [each for _, several in panels() for each in several]
    named += [rule["expr"] for rule in rules()]
    assert len(named) > 100
    for expression in named:
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
    assert len(titles) == len(set(titles))


def test_each_reason_belongs_to_one_expression() -> None:
    found = [*expressions()]
    assert EMPTY.keys() <= set(found)
    assert unexplained(EMPTY, EMPTY) == []
    (filled, second) = [each for each in found if each not in EMPTY][:2]
    assert len(unexplained({*EMPTY, filled}, EMPTY)) == 1
    (stale,) = unexplained(EMPTY, {*EMPTY, second})
    assert second in stale and "has a reason" in stale


def test_the_page_says_what_stays_empty_of_pulsars_dashboards() -> None:
    page = (Path(__file__).parents[1] / "docs" / "monitoring.md").read_text(encoding="utf-8")
    _, _, section = page.partition("## Pulsar's dashboards")
    table = re.findall(r"^\| (`.*`) \| (.*) \|$", section, re.MULTILINE)
    rows = {name: reason for cell, reason in table for name in re.findall(r"`(.+?)`", cell)}
    used = set()
    for expression, reason in pulsar_panels.EMPTY.items():
        if reason != pulsar_panels.NO_REPLICATION:
            lacking = metrics_of(expression) - METRICS.keys()
            found = {row for row in rows if any(fnmatch(name, row) for name in lacking)}
            assert {rows[row] for row in found} == {reason}, expression
            used |= found
    assert {row for row in rows if row.startswith("pulsar_")} == used


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
def test_prometheus_fills_the_panels_of_the_tree_and_those_of_pulsar(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "data", hosts=1, deleters=1) as cluster:
        target = cluster.admin_url.removeprefix("http://")
        try:
            with prometheus.running(tmp_path, target, RULES, JOBS) as found:
                _watch(cluster, found)
        except Absent as reason:
            pytest.skip(f"no prometheus: {reason}")


def _empty(found: prometheus.Prometheus, cluster: str) -> set[str]:
    """The expressions without a value."""
    return {
        each
        for each in expressions()
        if all(row["value"][1] == "NaN" for row in found.series(asked(each, cluster)))
    }


def _zero(found: prometheus.Prometheus, cluster: str) -> list[str]:
    """The expressions of Pulsar's dashboard of messaging that are 0."""
    return [
        each
        for each, (dashboard, _) in expressions().items()
        if dashboard == pulsar_panels.MESSAGING
        and all(float(row["value"][1]) == 0 for row in found.series(asked(each, cluster)))
    ]


def _watch(cluster: LocalCluster, found: prometheus.Prometheus) -> None:
    empty: set[str] = set()
    zero: list[str] = []
    admin = velaray.Admin(cluster.admin_url)
    with velaray.Client(cluster.service_url) as client:
        client.create_producer("connected")
        client.subscribe("connected", "s")

        def filled() -> bool:
            nonlocal empty, zero
            traffic(client, admin)
            empty = _empty(found, cluster.config.name)
            zero = _zero(found, cluster.config.name)
            return empty <= EMPTY.keys() and not zero

        with suppress(AssertionError):
            wait_until(filled, FILLED_WITHIN_S)
    assert zero == []
    assert unexplained(empty, EMPTY) == []
    written = found.series('sum(velaray_storage_write_latency_seconds_count{job="velaray"})')
    assert float(written[0]["value"][1]) > 20
    (group,) = found.ask("rules")["groups"]
    assert {rule["name"] for rule in group["rules"]} == {rule["alert"] for rule in rules()}
    assert {rule["health"] for rule in group["rules"]} == {"ok"}
    firing = {each["labels"]["alertname"] for each in found.ask("alerts")["alerts"]}
    assert not firing & {"VelarayDown", "VelarayCatalogAway", "VelarayDiskFull"}
