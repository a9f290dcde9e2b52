"""Viewers: roles that see everything through the admin interface, and can change nothing there."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests.console.visiting import Visitor
from tests.security.support import SECRET, SETTINGS, TOPIC, admin_of, client_of, token
from tests.security.test_audit import CHANGES, OPERATIONS
from tests.support.local_cluster import LocalCluster
from velaray import AuthorizationError
from velaray.admin.changes import CHANGING_GETS, READS, may_change, name_of
from velaray.client.admin import AdminError
from velaray.client.admin.operations import Operation
from velaray.settings import SettingError, settings_of
from velaray.topology.config import AuditSettings, AuthorisationSettings, AuthSettings

ROLES = AuthorisationSettings(SETTINGS.superusers, SETTINGS.proxy_roles, frozenset({"viewer"}))
PLACE = {"tenant": "shop", "namespace": "orders", "topic": "new"}
_POST = re.compile(r'<form[^>]*method="post" action="([^"]*)"')


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    path = tmp_path_factory.mktemp("viewed")
    auth = AuthSettings(secret=SECRET)
    with LocalCluster(path, auth=auth, roles=ROLES, audit=AuditSettings()) as running:
        root = admin_of(running, "root")
        # Not even a tenant's administrator changes anything if it is a viewer.
        root.tenants.create("shop", admin_roles=["viewer"], allowed_clusters=["standalone"])
        root.namespaces.create("shop/orders")
        root.topics.create(TOPIC)
        root.subscriptions.create(TOPIC, "billing")
        yield running


def sent(cluster: LocalCluster, operation: Operation, role: str, **headers: str) -> tuple[int, str]:
    """The status and the text of the answer."""
    variables = re.findall(r"{(\w+)}", operation.path)
    path = operation.target({name: PLACE.get(name, "1") for name in variables})
    flag = CHANGING_GETS.get(name_of(operation))
    request = urllib.request.Request(
        cluster.admin_url + path + (f"?{flag}=true" if flag else ""),
        method=operation.method,
        headers={"Authorization": f"Bearer {token(role)}", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status), answer.read().decode(errors="replace")
    except HTTPError as error:
        return error.code, error.read().decode(errors="replace")


def test_every_change_is_refused(cluster: LocalCluster) -> None:
    for operation in CHANGES:
        status, text = sent(cluster, operation, "viewer")
        assert (status, "change nothing" in text) == (403, True), (name_of(operation), text)


def test_a_proxy_lends_a_viewer_nothing(cluster: LocalCluster) -> None:
    operation = OPERATIONS["PUT /admin/v2/persistent/{tenant}/{namespace}/{topic}"]
    headers = {"X-Original-Principal": "viewer"}
    assert sent(cluster, operation, "gate-root", **headers)[0] == 403


def test_nothing_that_only_reads_is_refused(cluster: LocalCluster) -> None:
    reading = [each for each in OPERATIONS.values() if not may_change(each)]
    assert len(reading) > 100
    for operation in reading:
        status, text = sent(cluster, operation, "viewer")
        assert status not in (401, 403), (name_of(operation), text)
    assert {name_of(each) for each in reading} >= READS


def test_a_viewer_sees_what_the_superuser_sees(cluster: LocalCluster) -> None:
    root, viewer = admin_of(cluster, "root"), admin_of(cluster, "viewer")
    assert viewer.topics("shop/orders") == root.topics("shop/orders")
    assert viewer.policies.get_all(TOPIC) == root.policies.get_all(TOPIC)
    assert viewer.audit(target="shop/orders/new", role="root")["records"]


def test_a_refused_change_is_recorded(cluster: LocalCluster) -> None:
    with pytest.raises(AdminError, match="role 'viewer' may look at everything and change nothing"):
        admin_of(cluster, "viewer").topics.delete(TOPIC)
    root = admin_of(cluster, "root")
    assert TOPIC in root.topics("shop/orders")
    assert {each["outcome"] for each in root.audit(role="viewer")["records"]} == {"refused"}


def test_the_protocol_needs_grants(tmp_path: Path) -> None:
    auth = AuthSettings(secret=SECRET)
    with LocalCluster(tmp_path, auth=auth, roles=ROLES) as cluster:
        admin_of(cluster, "root").topics.create("t")
        with client_of(cluster, "viewer") as client:
            for use in (
                lambda: client.create_producer("t"),
                lambda: client.subscribe("t", "s"),
                lambda: client.get_topic_partitions("t"),
            ):
                with pytest.raises(AuthorizationError):
                    use()


def test_the_console_shows_no_forms_that_change_something(cluster: LocalCluster) -> None:
    viewer, root = Visitor(cluster.admin_url), Visitor(cluster.admin_url)
    viewer.post("/console/login", {"token": token("viewer")})
    root.post("/console/login", {"token": token("root")})
    place = f"topic={TOPIC}"
    paths = [
        "/",
        *(f"/console/{name}" for name in ("topics", "dead-letters", "transactions", "pipelines")),
        *(f"/console/{name}" for name in ("clusters", "hosts", "time", "audit", "settings")),
        f"/console/topic?{place}",
        f"/console/policies?where={TOPIC}",
        f"/console/messages?{place}",
        f"/console/schemas?{place}",
        f"/console/subscription?{place}&name=billing",
        f"/console/subscription/preview?{place}&name=billing&move=seek&to=earliest",
        f"/console/topic/delete?{place}",
    ]
    # The form of the schemas' page checks a schema, and registers nothing.
    everybodys = {"/console/theme", "/console/logout", "/console/schemas"}
    changing = set()
    for path in paths:
        shown = viewer.get(path)
        assert shown.status == 200, (path, shown.text)
        assert set(_POST.findall(shown.html)) <= everybodys, path
        assert "you may look at everything and change nothing" in shown.text
        changing |= set(_POST.findall(root.get(path).html)) - everybodys
    assert len(changing) >= 7
    for path in changing:
        refused = viewer.post(path, {"topic": TOPIC, "name": "billing"})
        assert refused.status == 403, path
        assert "change nothing" in refused.text


@pytest.mark.parametrize("other", ["superusers", "proxy_roles", "anonymous_role"])
def test_a_viewer_has_no_other_special_rights(other: str) -> None:
    eve = "eve" if other == "anonymous_role" else ("eve",)
    with pytest.raises(SettingError, match=r"viewers|anonymous_role"):
        settings_of({"viewers": ("eve",), other: eve})
