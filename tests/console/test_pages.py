"""The rules of all pages: headers, tokens, forms, other sites; and the REST interface."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import jwt
import pytest

from tests.console.visiting import Visitor
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.client.admin import Admin
from velaray.topology.config import AuthSettings

SECRET = b"the secret that the tests of the console use"
TOKEN = jwt.encode({"sub": "operator"}, SECRET, "HS256")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("data")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("data"), auth=AuthSettings(SECRET)) as cluster:
        yield cluster


def test_the_start_page_is_green_when_nothing_is_wrong(cluster: LocalCluster) -> None:
    visitor = Visitor(cluster.admin_url)
    assert visitor.get("/").status == 200
    wait_until(lambda: "Nothing needs attention." in visitor.get("/").text)


def test_a_page_allows_no_inline_scripts_and_no_frames(cluster: LocalCluster) -> None:
    shown = Visitor(cluster.admin_url).get("/")
    policy = shown.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert shown.headers["x-frame-options"] == "DENY"
    assert " style=" not in shown.html
    assert " on" not in "".join(part.partition(">")[0] for part in shown.html.split("<script"))


def test_cookies_are_closed_to_scripts_and_other_sites(locked: LocalCluster) -> None:
    place = urlsplit(locked.admin_url)
    connection = http.client.HTTPConnection(place.netloc)
    connection.request("GET", "/console/login")
    for cookie in connection.getresponse().headers.get_all("Set-Cookie", []):
        if "session" in cookie:
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            assert f"-{place.port}=" in cookie
            break
    else:
        pytest.fail("there is no session")


def test_the_rest_interface_answers_beside_the_console(cluster: LocalCluster) -> None:
    assert Admin(cluster.admin_url).health() is None
    visitor = Visitor(cluster.admin_url)
    assert json.loads(visitor.get("/openapi.json").html)["openapi"]
    assert "# HELP" in visitor.get("/metrics").html
    assert json.loads(visitor.get("/console/nothing").html)["reason"].startswith("Not Found")


@pytest.mark.parametrize("name", ["console.css", "console.js", "icon.svg"])
def test_files_are_served_from_the_package(cluster: LocalCluster, name: str) -> None:
    shown = Visitor(cluster.admin_url).get(f"/console/static/{name}")
    assert shown.status == 200
    assert len(shown.html) > 50


@pytest.mark.parametrize("name", ["missing.css", "..%2Fapp.py", "%2Fetc%2Fpasswd"])
def test_nothing_else_is_served(cluster: LocalCluster, name: str) -> None:
    assert Visitor(cluster.admin_url).get(f"/console/static/{name}").status == 404


def test_a_cluster_with_tokens_asks_for_one(locked: LocalCluster) -> None:
    visitor = Visitor(locked.admin_url)
    shown = visitor.get("/")
    assert shown.url.endswith("/console/login")
    assert "requires a token" in shown.text
    assert "Hosts" not in shown.text


def test_a_token_opens_the_console_until_the_visitor_logs_out(locked: LocalCluster) -> None:
    visitor = Visitor(locked.admin_url)
    refused = visitor.post("/console/login", {"token": "wrong"})
    assert "invalid token" in refused.text
    shown = visitor.post("/console/login", {"token": f" {TOKEN}\n", "next": "/?a=b"})
    assert shown.url == f"{locked.admin_url}/?a=b"
    assert "Log out operator" in shown.text
    wait_until(lambda: "Nothing needs attention." in visitor.get("/").text)
    assert TOKEN not in shown.html
    visitor.post("/console/logout", {})
    assert visitor.get("/").url.endswith("/console/login")


def test_an_expired_token_leads_to_the_login_with_the_reason(locked: LocalCluster) -> None:
    visitor = Visitor(locked.admin_url)
    port = urlsplit(locked.admin_url).port
    old = jwt.encode({"sub": "operator", "exp": 1}, SECRET, "HS256")
    shown = visitor.get("/", Cookie=f"velaray-token-{port}={old}")
    assert shown.url.endswith("/console/login")


@pytest.mark.parametrize(
    "place", ["//elsewhere.example", "https://elsewhere.example", "/\\x.example"]
)
def test_the_login_leads_to_no_other_site(locked: LocalCluster, place: str) -> None:
    shown = Visitor(locked.admin_url).post("/console/login", {"token": TOKEN, "next": place})
    assert shown.url == f"{locked.admin_url}/"


def test_a_form_needs_the_token_of_its_session(cluster: LocalCluster) -> None:
    visitor = Visitor(cluster.admin_url)
    visitor.get("/")
    for token in ("", "0" * 64, "ü"):
        shown = visitor.send("/console/theme", {"theme": "dark", "csrf": token})
        assert shown.status == 400
        assert "from another session" in shown.text
    other = Visitor(cluster.admin_url)
    assert other.send("/console/theme", {"theme": "dark"}).status == 400


def test_the_theme_is_kept(cluster: LocalCluster) -> None:
    visitor = Visitor(cluster.admin_url)
    assert 'data-theme="auto"' in visitor.get("/").html
    assert 'data-theme="dark"' in visitor.post("/console/theme", {"theme": "dark"}).html
    assert visitor.post("/console/theme", {"theme": "pink"}).status == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://elsewhere.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "elsewhere.example"},
    ],
    ids=str,
)
def test_other_sites_are_refused(cluster: LocalCluster, headers: dict[str, str]) -> None:
    visitor = Visitor(cluster.admin_url)
    assert visitor.get("/", **headers).status == 403
    shown = visitor.post("/console/theme", {"theme": "dark"}, **headers)
    assert shown.status == 403
    assert cluster.config.name not in visitor.get("/", Host="elsewhere.example").text


def test_a_link_of_another_site_may_open_a_page(cluster: LocalCluster) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    visitor = Visitor(cluster.admin_url)
    assert visitor.get("/", **link, **{"Sec-Fetch-Dest": "document"}).status == 200
    assert visitor.get("/", **link, **{"Sec-Fetch-Dest": "iframe"}).status == 403
