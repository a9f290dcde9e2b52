"""Requests that web pages make a browser send to the admin port, and those of tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import jwt
import pytest

from tests.support.local_cluster import LocalCluster
from velaray.client.admin import Admin
from velaray.topology.config import AuthSettings

V2 = "/admin/v2"
LOOKUP = "/lookup/v2/topic/persistent/public/default"
PARTITIONS = f"{V2}/persistent/public/default"
JSON = {"Content-Type": "application/json"}
SECRET = b"a secret that is long enough for HS256"


def send(
    url: str, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
) -> tuple[int, str]:
    """Exactly these headers, and the length of the body."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    listeners = {"outside": "pulsar://bus.example.com:6650,pulsar://bus2.example.com:6650"}
    with LocalCluster(tmp_path_factory.mktemp("listening"), listeners=listeners) as running:
        yield running


PAGES = {
    "form": {"Origin": "https://evil.example", "Content-Type": "text/plain"},
    "sandboxed frame": {"Origin": "null", **JSON},
    "other port of this machine": {"Origin": "http://localhost:3000", **JSON},
    "cross-site": {"Sec-Fetch-Site": "cross-site", **JSON},
    "other page of this machine": {"Sec-Fetch-Site": "same-site", **JSON},
    "rebound name": {"Host": "evil.example:8080", **JSON},
    "rebound name and origin": {
        "Host": "evil.example:8080",
        "Origin": "http://evil.example:8080",
        "Sec-Fetch-Site": "same-origin",
        **JSON,
    },
}


@pytest.mark.parametrize("headers", PAGES.values(), ids=PAGES.keys())
def test_web_pages_change_nothing(cluster: LocalCluster, headers: dict[str, str]) -> None:
    status, text = send(cluster.admin_url, "PUT", f"{V2}/namespaces/public/page", headers, b"{}")
    assert status == 403
    assert "reason" in text
    assert "public/page" not in Admin(cluster.admin_url).namespaces("public")


@pytest.mark.parametrize("headers", PAGES.values(), ids=PAGES.keys())
@pytest.mark.parametrize(
    "path",
    [f"{LOOKUP}/by-page", f"{PARTITIONS}/by-page/partitions?checkAllowAutoCreation=true"],
    ids=["look-up", "partitions"],
)
def test_requests_of_web_pages_create_no_topic(
    cluster: LocalCluster, headers: dict[str, str], path: str
) -> None:
    kept = {name: value for name, value in headers.items() if name != "Content-Type"}
    assert send(cluster.admin_url, "GET", path, kept)[0] == 403
    assert not [t for t in Admin(cluster.admin_url).topics("public/default") if "by-page" in t]


@pytest.mark.parametrize("path", ["/metrics", f"{V2}/clusters", "/nowhere"])
def test_web_pages_see_nothing(cluster: LocalCluster, path: str) -> None:
    status, text = send(cluster.admin_url, "GET", path, {"Host": "evil.example"})
    assert status == 403
    assert "'evil.example' is not a name of this cluster" in text
    assert "--listener" in text


@pytest.mark.parametrize(
    "kind", [{}, {"Content-Type": "text/plain"}, {"Content-Type": "multipart/form-data"}]
)
def test_a_body_that_is_not_json_is_refused(cluster: LocalCluster, kind: dict[str, str]) -> None:
    where = f"{V2}/namespaces/public/plain"
    status, text = send(cluster.admin_url, "PUT", where, kind, b"{}")
    assert status == 415
    assert "application/json" in text
    assert "public/plain" not in Admin(cluster.admin_url).namespaces("public")


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "[::1]:9000", "127.1.2.3:80"])
def test_tools_on_this_machine_need_no_set_up(cluster: LocalCluster, host: str) -> None:
    assert send(cluster.admin_url, "GET", f"{V2}/clusters", {"Host": host})[0] == 200
    assert send(cluster.admin_url, "GET", "/metrics", {"Host": host})[0] == 200


def test_a_page_of_this_server_and_a_typed_address_are_served(cluster: LocalCluster) -> None:
    origin = {"Host": "localhost:8080", "Origin": "http://localhost:8080"}
    for headers in ({"Sec-Fetch-Site": "none"}, {**origin, "Sec-Fetch-Site": "same-origin"}):
        assert send(cluster.admin_url, "GET", f"{V2}/clusters", headers)[0] == 200


def test_pulsar_admins_type_of_partitioned_topics_is_json(cluster: LocalCluster) -> None:
    kind = {"Content-Type": "application/vnd.partitioned-topic-metadata+json; charset=UTF-8"}
    path = f"{PARTITIONS}/by-tool/partitions"
    assert send(cluster.admin_url, "PUT", path, kind, b'{"partitions": 2}')[0] == 204


def test_lookups_create_only_topics_that_policy_allows(cluster: LocalCluster) -> None:
    admin = Admin(cluster.admin_url)
    admin.create_namespace("public/closed")
    admin.request(
        "POST", "namespaces/public/closed/autoTopicCreation", {"allowAutoTopicCreation": False}
    )
    for path in (
        "/lookup/v2/topic/persistent/public/closed/t",
        f"{V2}/persistent/public/closed/t/partitions?checkAllowAutoCreation=true",
    ):
        assert send(cluster.admin_url, "GET", path, {})[0] in (404, 412)
    assert not admin.topics("public/closed")


def test_host_names_of_listeners_are_accepted(listening: LocalCluster) -> None:
    for host in ("bus.example.com:8080", "BUS2.example.com"):
        assert send(listening.admin_url, "GET", f"{V2}/clusters", {"Host": host})[0] == 200
    assert (
        send(listening.admin_url, "GET", f"{V2}/clusters", {"Host": "bus3.example.com"})[0] == 403
    )


def test_a_token_allows_any_host_name_but_no_web_page(tmp_path: Path) -> None:
    token = jwt.encode({"sub": "tool"}, SECRET, algorithm="HS256")
    bearer = {"Authorization": f"Bearer {token}"}
    with LocalCluster(tmp_path, auth=AuthSettings(secret=SECRET)) as cluster:
        path = f"{V2}/clusters"
        proxied = {"Host": "bus.example.com"}
        assert send(cluster.admin_url, "GET", path, proxied | bearer)[0] == 200
        assert send(cluster.admin_url, "GET", path, proxied)[0] == 401
        page = {"Origin": "https://evil.example"}
        assert send(cluster.admin_url, "GET", path, bearer | page)[0] == 403
