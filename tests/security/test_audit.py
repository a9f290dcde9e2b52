"""The audit log: what is recorded of changes, and what happens without the log."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints
from unittest.mock import patch
from urllib.error import HTTPError

import pytest
from click.testing import CliRunner
from typing_extensions import is_typeddict

from tests.console.visiting import Visitor
from tests.security.support import TOPIC, admin_of, guarded, token
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.admin import auditing
from velaray.admin.api import routes_by_module
from velaray.admin.audit_records import _SECRET, HIDDEN
from velaray.admin.auditing import REFUSALS_PER_S
from velaray.admin.changes import CHANGING_GETS, READS, may_change, name_of
from velaray.admin.http import AdminError as Refused
from velaray.broker.audit import reader
from velaray.broker.audit.topic import AUDIT
from velaray.broker.partition import partition_actor
from velaray.broker.partition.messages import Append
from velaray.cli.app import main
from velaray.client.admin import Admin, AdminError, NotAllowed, NotFound, Unavailable
from velaray.client.admin.operations import Operation
from velaray.events.ids import ActorKind
from velaray.topology.config import AuditSettings

OPERATIONS = {
    name_of(route.operation): route.operation
    for routes in routes_by_module().values()
    for route in routes
}
CHANGES = [operation for operation in OPERATIONS.values() if may_change(operation)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    path = tmp_path_factory.mktemp("audited")
    with guarded(path, audit=AuditSettings(days=30, size_mib=7)) as running:
        yield running


@pytest.fixture(scope="module")
def root(cluster: LocalCluster) -> Admin:
    return admin_of(cluster, "root")


def newest(root: Admin, **filters: Any) -> dict[str, Any]:
    found: dict[str, Any] = root.audit(most=1, **filters)["records"][0]
    return found


def everything(root: Admin, most: int, **filters: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    page: str | None = ""
    while page is not None:
        answer = root.audit(most=most, page=page, **filters)
        assert len(answer["records"]) <= most
        found += answer["records"]
        page = answer["next"]
    return found


# -- which operations --------------------------------------------------------------


def test_every_operation_with_another_method_than_get_is_a_change_or_a_known_read() -> None:
    reads = {name for name, each in OPERATIONS.items() if not may_change(each)}
    assert {name for name in reads if not name.startswith("GET ")} == READS
    assert CHANGING_GETS.keys() == {name_of(each) for each in CHANGES if each.method == "GET"}
    assert len(CHANGES) > 200


def _sent(cluster: LocalCluster, operation: Operation, role: str) -> int:
    """The status of a request for an operation, for something that doesn't exist."""
    path = operation.target(dict.fromkeys(_Any(), "nothing"))
    flag = CHANGING_GETS.get(name_of(operation))
    query = f"?{flag}=true" if flag else ""
    request = urllib.request.Request(
        f"{cluster.admin_url}{path}{query}",
        method=operation.method,
        headers={"Authorization": f"Bearer {token(role)}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


class _Any(dict[str, str]):
    """A value for every variable of a path."""

    def __iter__(self) -> Iterator[str]:
        names = "actor broker bundle cluster coordinator count domain entry key least ledger"
        names += " message most namespace policy position role seconds step subscription tenant"
        names += " timeout timestamp topic value version host"
        return iter(names.split())


def test_every_change_is_recorded_before_it_begins(cluster: LocalCluster) -> None:
    """Each operation that may change something begins with a record."""
    begun: list[str] = []

    async def begin(self: auditing.Audit, record: Any) -> None:
        begun.append(record["operation"])
        raise Refused(503, "not now")

    with patch.object(auditing.Audit, "begin", begin):
        for operation in CHANGES:
            assert _sent(cluster, operation, "root") == 503, operation
        assert sorted(begun) == sorted(map(name_of, CHANGES))
        begun.clear()
        for name in READS:
            _sent(cluster, OPERATIONS[name], "root")
        assert begun == []


def test_secrets_of_bodies_have_names_that_are_hidden() -> None:
    """The fields of all bodies whose names sound secret; a new one needs a look."""
    fields = {
        field
        for operation in CHANGES
        if is_typeddict(operation.body)
        for field in get_type_hints(operation.body)
    }
    hidden = {field for field in fields if _SECRET.search(field)}
    assert hidden == {"authenticationParameters"}
    assert {each for each in fields if "auth" in each.lower()} - hidden == {"authenticationPlugin"}


# -- records -----------------------------------------------------------------------


def test_a_change_has_who_when_what_from_where_and_its_outcome(
    cluster: LocalCluster, root: Admin
) -> None:
    before_ms = newest(root)["atMs"]
    boss = admin_of(cluster, "boss")
    boss.policies.set_on("persistent://shop/orders/old", "messageTTL", 77)
    found = newest(root)
    assert found["role"] == "boss"
    assert found["authentication"] == "token"
    assert found["address"] == "127.0.0.1"
    assert found["operation"].split()[0] in ("PUT", "POST")
    assert found["target"].startswith("persistent://shop/orders/old")
    assert "77" in json.dumps(found["parameters"])
    assert (found["outcome"], found["reason"]) == ("done", "")
    assert before_ms <= found["atMs"] <= found["endedMs"]


def test_a_change_that_fails_is_recorded_with_the_error(root: Admin) -> None:
    with pytest.raises(NotFound):
        root.topics.delete("persistent://shop/orders/nowhere")
    found = newest(root)
    assert (found["outcome"], found["status"]) == ("refused", 404)
    assert "nowhere" in found["reason"]


def test_a_request_without_the_right_is_recorded(cluster: LocalCluster, root: Admin) -> None:
    with pytest.raises(AdminError, match="not authorized"):
        admin_of(cluster, "stranger").topics.create("persistent://shop/orders/mine")
    (found,) = wait_until(lambda: root.audit(role="stranger")["records"])
    assert (found["outcome"], found["status"], found["begun"]) == ("refused", 403, False)
    assert "not authorized to administer" in found["reason"]


def test_a_flood_of_refused_requests_is_counted_and_not_recorded(
    cluster: LocalCluster, root: Admin
) -> None:
    flood = admin_of(cluster, "flood")

    def sent() -> None:
        with pytest.raises(AdminError, match="not authorized"):
            flood.topics.create("persistent://shop/orders/mine")

    with patch.object(auditing, "_now_ms", lambda request: 1_000_000):
        for _ in range(REFUSALS_PER_S + 5):
            sent()
    sent()
    wait_until(lambda: "before it" in newest(root, role="flood")["reason"])
    assert "5 refused requests weren't recorded" in newest(root, role="flood")["reason"]
    assert len(everything(root, 500, role="flood")) == REFUSALS_PER_S + 1


def test_reading_is_not_recorded(root: Admin) -> None:
    before = newest(root)
    root.topics("shop/orders")
    root.topics.stats(TOPIC)
    assert newest(root) == before


def test_secrets_are_hidden(root: Admin) -> None:
    urls = {"service_url": "pulsar://127.0.0.1:1", "admin_url": "http://127.0.0.1:2"}
    root.clusters.create("west", token="a-very-secret-token", **urls)
    found = newest(root)
    assert found["target"] == "west"
    assert found["parameters"]["body"]["authenticationParameters"] == HIDDEN
    assert found["parameters"]["body"]["brokerServiceUrl"] == "pulsar://127.0.0.1:1"
    root.request("PUT", "namespaces/shop/orders/property/db-password/xyzzy")
    assert newest(root)["parameters"] == {"key": "db-password", "value": HIDDEN}
    root.topics.publish(TOPIC, "a confidential message")
    assert newest(root, operation="messages")["parameters"]["body"].startswith("(a message, ")
    assert "very-secret" not in json.dumps(everything(root, 500))
    assert "confidential" not in json.dumps(everything(root, 500))


def test_long_values_are_cut(root: Admin) -> None:
    root.topics.create("persistent://shop/orders/long", properties={"p": "x" * 5000})
    found = newest(root)
    assert found["parameters"]["body"]["p"].endswith("(5000 characters)")
    root.topics.create(
        "persistent://shop/orders/longer", properties={f"p{n}": "x" * 400 for n in range(40)}
    )
    assert "leftOut" in newest(root)["parameters"]


def test_changes_of_the_console_and_the_command_line_name_them(
    cluster: LocalCluster, root: Admin
) -> None:
    visitor = Visitor(cluster.admin_url)
    visitor.post("/console/login", {"token": token("boss")})
    sent = {"topic": "persistent://shop/orders/by-console", "back": "/console/topics"}
    visitor.post("/console/topics/create", sent)
    found = newest(root, target="by-console")
    assert (found["role"], found["client"]) == ("boss", "velaray-console")
    assert (found["address"], found["outcome"]) == ("127.0.0.1", "done")
    create = ["topics", "create", "persistent://shop/orders/by-cli"]
    environment = {"VELARAY_ADMIN_URL": cluster.admin_url, "VELARAY_TOKEN": token("boss")}
    result = CliRunner(env=environment).invoke(main, create)
    assert result.exit_code == 0, result.output
    assert newest(root, target="by-cli")["client"] == "velaray-cli"


def test_creation_by_a_get_is_recorded(root: Admin) -> None:
    path = "persistent/shop/orders/made-by-get/partitions"
    root.request("GET", path, query={"checkAllowAutoCreation": "true"})
    assert newest(root)["target"] == "persistent://shop/orders/made-by-get"
    before = newest(root)
    root.request("GET", path)
    assert newest(root) == before


# -- listing -----------------------------------------------------------------------


def test_pages_hold_every_change_once(root: Admin) -> None:
    for number in range(7):
        root.topics.create(f"persistent://shop/bills/t{number}")
    whole = everything(root, 1000)
    assert len({each["id"] for each in whole}) == len(whole)
    assert all(each["outcome"] for each in whole)
    for most in (1, 3):
        assert everything(root, most) == whole
    with patch.object(reader, "SCAN_RECORDS", 2):
        assert everything(root, 1000) == whole
    with patch.object(reader, "AT_ONCE", 3):
        assert everything(root, 4) == whole
    bills = everything(root, 2, target="shop/bills/t", operation="put")
    assert [each["target"][-2:] for each in bills] == [f"t{number}" for number in range(6, -1, -1)]
    since = bills[3]["atMs"]
    assert all(each["atMs"] >= since for each in everything(root, 2, since_ms=since))


@pytest.mark.parametrize("page", ["x", "1:2", "1:2:-3", "1:2:3:4;a", f"{1 << 63}:0:0"])
def test_a_wrong_page_is_refused(root: Admin, page: str) -> None:
    with pytest.raises(AdminError, match="not a page of the audit log"):
        root.audit(page=page)


def test_only_superusers_read_the_log(cluster: LocalCluster, root: Admin) -> None:
    for role in ("boss", "stranger"):
        with pytest.raises(AdminError, match="not authorized to act as a superuser"):
            admin_of(cluster, role).audit()
    with pytest.raises(NotAllowed):  # not even superusers change it
        root.topics.delete(str(AUDIT))


def test_the_command_lists_changes(cluster: LocalCluster, root: Admin) -> None:
    root.topics.create("persistent://shop/bills/listed")
    environment = {"VELARAY_ADMIN_URL": cluster.admin_url, "VELARAY_TOKEN": token("root")}
    filters = {"since": "1h", "role": "root", "operation": "put", "target": "listed"}
    options = [text for name, value in filters.items() for text in (f"--{name}", value)]
    arguments = ["audit", "list", *options]
    shown = CliRunner(env=environment).invoke(main, arguments)
    assert shown.exit_code == 0, shown.output
    header, line = shown.output.splitlines()
    assert header.split()[:2] == ["TIME", "ROLE"]
    assert "persistent://shop/bills/listed" in line
    assert line.endswith("done")
    as_json = CliRunner(env=environment).invoke(main, [*arguments, "-o", "json", "--most", "1"])
    (record,) = json.loads(as_json.output)
    assert (record["role"], record["client"]) == ("root", newest(root)["client"])
    future = [*arguments[:2], "--since", "2999-01-01", "-o", "json"]
    assert json.loads(CliRunner(env=environment).invoke(main, future).output) == []


def test_the_log_has_the_retention_of_the_settings(cluster: LocalCluster, root: Admin) -> None:
    path = f"namespaces/{AUDIT.namespace_name}/topics"
    assert str(AUDIT) in root.request("GET", path)

    async def policies() -> Any:
        from velaray.broker.catalog.messages import Policies
        from velaray.events.ids import ActorKey

        asked = Policies(topic=str(AUDIT))
        return await cluster.actor_system.request(ActorKey.catalog(), asked)

    assert cluster.run(policies())["retention"] == {
        "retentionTimeInMinutes": 30 * 24 * 60,
        "retentionSizeInMB": 7,
    }


# -- without the log ---------------------------------------------------------------


def _refuse_appends(cluster: LocalCluster) -> Any:
    """Have the log refuse entries, as it does on a full disk, until the patch ends."""

    async def refused(partition: Any, request: Append) -> None:
        from velaray.actors.machine import Reason
        from velaray.topology.rpc import RemoteError

        raise RemoteError(Reason.STORAGE_FULL, "no space is left")

    return patch.dict(partition_actor.HANDLERS, {Append: refused})


def test_nothing_is_changed_while_the_log_is_away(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, audit=AuditSettings()) as cluster:
        admin = Admin(cluster.admin_url)
        admin.topics.create("before")
        with _refuse_appends(cluster), patch.object(auditing, "BEGIN_S", 2.0):
            with pytest.raises(Unavailable, match=r"nothing was changed: .* no space"):
                admin.topics.create("meanwhile")
            assert "persistent://public/default/meanwhile" not in admin.topics()
            admin.topics.stats("before")  # reading goes on
        # The refused attempt is recorded as soon as the log answers.
        (found,) = wait_until(lambda: admin.audit(target="meanwhile")["records"])
        found = wait_until(
            lambda: [each for each in admin.audit(target="meanwhile")["records"] if each["outcome"]]
        )[0]
        assert (found["outcome"], found["status"]) == ("failed", 503)
        admin.topics.create("after")
        assert newest(admin)["target"].endswith("after")


def test_the_outcome_is_recorded_when_the_log_is_back(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path, audit=AuditSettings()) as cluster,
        patch.object(auditing, "END_S", 0.2),
    ):
        admin = Admin(cluster.admin_url)
        admin.topics.create("before")
        begin = auditing.Audit.begin
        away = _refuse_appends(cluster)

        async def begin_and_lose(self: auditing.Audit, record: Any) -> None:
            await begin(self, record)
            away.start()

        with patch.object(auditing.Audit, "begin", begin_and_lose):
            admin.topics.create("meanwhile")  # it is answered all the same
        (found,) = admin.audit(target="meanwhile")["records"]
        assert (found["outcome"], found["role"], found["authentication"]) == (None, "", "none")
        away.stop()
        found = wait_until(
            lambda: [each for each in admin.audit(target="meanwhile")["records"] if each["outcome"]]
        )[0]
        assert found["outcome"] == "done"


def test_too_many_waiting_records_refuse_changes_at_once(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path, audit=AuditSettings()) as cluster,
        patch("velaray.broker.audit.writer.MOST_WAITING", 0),
        pytest.raises(Unavailable, match="nothing was changed"),
    ):
        Admin(cluster.admin_url).topics.create("t")


def test_records_survive_kills_of_the_log(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, audit=AuditSettings()) as cluster:
        admin = Admin(cluster.admin_url)
        for number in range(6):
            admin.topics.create(f"t{number}")
            for key in cluster.keys(ActorKind.PARTITION):
                if key.topic_name == AUDIT:
                    cluster.kill(key)
        found = everything(admin, 3)
        assert [each["target"][-2:] for each in found] == ["t5", "t4", "t3", "t2", "t1", "t0"]
        assert {each["outcome"] for each in found} == {"done"}
