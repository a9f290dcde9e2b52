"""Pulsar's command `pulsar-admin`, as it is: all commands run in one Java process."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pulsar
import pytest

from benchmarks.contract import Absent
from tests.official import java_client
from tests.official.support import LocalServer

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent / "java_tools"
_WITHIN_S = 100.0
_T = "persistent://public/default/by-tools"
_NS = "public/by-tools"

WORKING: tuple[tuple[str, str], ...] = (
    # Every command, and what its output must hold.
    ("clusters list", "standalone"),
    ("clusters create c9 --url http://127.0.0.1:9 --broker-url pulsar://127.0.0.1:9", ""),
    ("clusters update c9 --url http://127.0.0.1:10", ""),
    ("clusters get c9", "http://127.0.0.1:10"),
    ("clusters delete c9", ""),
    ("clusters get-peer-clusters standalone", ""),
    ("clusters list-failure-domains standalone", ""),
    ("ns-isolation-policy list standalone", ""),
    ("brokers list standalone", "127.0.0.1"),
    ("brokers leader-broker", "serviceUrl"),
    ("brokers healthcheck", "ok"),
    ("brokers version", "velaray"),
    ("brokers list-dynamic-config", ""),
    ("brokers get-runtime-config", "clusterName"),
    ("brokers get-internal-config", "{"),
    ("brokers backlog-quota-check", "ok"),
    ("broker-stats topics", "by-tools"),
    ("broker-stats load-report", "LocalBrokerData"),
    ("broker-stats monitoring-metrics", "pulsar_topics_count"),
    ("tenants create tools --allowed-clusters standalone", ""),
    ("tenants list", "tools"),
    (f"namespaces create {_NS} --clusters standalone", ""),
    (f"namespaces bundles {_NS}", "0xffffffff"),
    (f"namespaces policies {_NS}", "standalone"),
    (f"namespaces permissions {_NS}", ""),
    (f"namespaces set-property {_NS} -k key -v value", ""),
    (f"namespaces get-properties {_NS}", "value"),
    (f"namespaces set-retention {_NS} -t 10m -s 10M", ""),
    (f"namespaces get-retention {_NS}", "10"),
    (f"namespaces set-replicator-dispatch-rate {_NS} --msg-dispatch-rate 10", ""),
    (f"namespaces get-replicator-dispatch-rate {_NS}", "10"),
    (f"namespaces set-subscription-types-enabled {_NS} -t Shared,Key_Shared", ""),
    (f"namespaces get-subscription-types-enabled {_NS}", "Key_Shared"),
    (f"namespaces remove-subscription-types-enabled {_NS}", ""),
    (f"namespaces get-inactive-topic-policies {_NS}", ""),
    (f"namespaces get-encryption-required {_NS}", "false"),
    (f"namespaces set-encryption-required {_NS} --enable", ""),
    (f"namespaces get-encryption-required {_NS}", "true"),
    (f"namespaces set-encryption-required {_NS} --disable", ""),
    (f"namespaces set-schema-autoupdate-strategy {_NS} -c Backward", ""),
    (f"namespaces get-schema-autoupdate-strategy {_NS}", "BACKWARD"),
    (f"namespaces unload {_NS}", ""),
    (f"topics set-message-ttl {_T} -t 60", ""),
    (f"topics get-message-ttl {_T}", "60"),
    (f"topics remove-message-ttl {_T}", ""),
    (f"topics get-persistence {_T}", ""),
    (f"topics get-shadow-topics {_T}", ""),
    (f"topics lookup {_T}", "pulsar://"),
    (f"topics bundle-range {_T}", "0x00000000_0xffffffff"),
    (f"topics stats {_T}", "msgBacklog"),
    (f"topics stats-internal {_T}", "ledgers"),
    (f"topics info-internal {_T}", "ledgers"),
    (f"topics last-message-id {_T}", "entryId"),
    (f"topics examine-messages {_T} -i earliest -m 1", "hello"),
    (f"topics peek-messages {_T} -s s", "hello"),
    (f"topics get-message-id {_T} -d 2020-01-01T00:00:00Z", "entryId"),
    (f"topics analyze-backlog {_T} -s s", "entries"),
    (f"topics update-subscription-properties {_T} -s s -p a=b", ""),
    (f"topics get-subscription-properties {_T} -s s", "b"),
    (f"topics trim-topic {_T}", ""),
    ("topics create-partitioned-topic public/default/several -p 2", ""),
    ("topics create-missed-partitions public/default/several", ""),
    ("topics update-partitioned-topic public/default/several -p 3", ""),
    ("topics list public/default", "several-partition-2"),
    (f"topicPolicies set-max-producers {_T} -p 5", ""),
    (f"topicPolicies delete {_T}", ""),
    ("namespaces clear-backlog public/default --force", ""),
)

REFUSED: tuple[tuple[str, str], ...] = (
    # Every command, and the name that its refusal must hold.
    ("bookies list-bookies", "BookKeeper"),
    ("functions list --tenant public --namespace default", "functions"),
    ("sinks list --tenant public --namespace default", "connectors"),
    ("packages list public/default --type function", "packages"),
    ("resource-quotas get", "resource quotas"),
    ("brokers update-dynamic-config --config a --value 1", "dynamic configuration"),
    ("non-persistent lookup non-persistent://public/default/t", "non-persistent topics"),
    (f"topics create-shadow-topic public/default/shadow -s {_T}", "PULSAR.SHADOW_SOURCE"),
    (f"topics set-persistence {_T}", "policy persistence"),
    (f"topics offload {_T} -s 0", "--offload URL"),
    (f"topicPolicies set-message-ttl {_T} -t 5 -g", "isGlobal"),
    (f"topics set-replicator-dispatch-rate {_T} -md 10 -rp", "relativeToPublishRate"),
)


class Result(NamedTuple):
    command: str
    said: str
    succeeded: bool


@pytest.fixture(scope="module")
def tools_path() -> str:
    try:
        return java_client.class_path(FOLDER / "pom.xml")
    except Absent as reason:
        pytest.skip(f"no pulsar-admin here: {reason}")


def run(path: str, admin_url: str, commands: list[str]) -> list[Result]:
    """What each command says, and whether it succeeds."""
    program = str(FOLDER / "PulsarAdmin.java")
    ended = subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", "-cp", path, program, admin_url],
        input="".join("\t".join(command.split()) + "\n" for command in commands),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_WITHIN_S,
    )
    said = re.split(r"^=== (ok|failed)\n", ended.stdout, flags=re.MULTILINE)
    texts, ends = said[:-1:2], said[1::2]
    return [
        Result(command, text, end == "ok")
        for command, text, end in zip(commands, texts, ends, strict=True)
    ]


def test_commands_work_or_are_refused_by_name(tools_path: str, local: LocalServer, connect) -> None:
    client: pulsar.Client = connect(local.service_url)
    client.subscribe(_T, "s").close()
    client.create_producer(_T).send(b"hello")
    commands = [command for command, _ in WORKING + REFUSED]
    found = run(tools_path, local.cluster.admin_url, commands)
    expected = [(text, True) for _, text in WORKING] + [(text, False) for _, text in REFUSED]
    wrong = [
        f"{result.command}: {result.said[:300]}"
        for result, (text, succeeds) in zip(found, expected, strict=True)
        if result.succeeded is not succeeds or text not in result.said
    ]
    assert not wrong, "\n".join(wrong)
