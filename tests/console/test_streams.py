"""Updates of pages by server-sent events: what they send, to whom, how many, and when they end."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import jwt
import pytest

from tests.console.visiting import Visitor
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.client.admin import Admin
from velaray.console import streams
from velaray.topology.config import AuthSettings

SECRET = b"the secret of the tests of streams"


class Following:
    """A browser that follows a page."""

    def __init__(self, url: str, path: str, **headers: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
        self._connection.request("GET", path, headers={"Accept": streams.KIND, **headers})
        self.answer = self._connection.getresponse()

    def event(self) -> tuple[str, str]:
        """The next event: its name and its text."""
        name, lines = "", []
        for line in iter(lambda: self.answer.readline().decode().rstrip("\n"), None):
            kind, _, value = line.partition(": ")
            if kind == "event":
                name = value
            elif kind == "data":
                lines.append(value)
            elif not line and name:
                return name, "\n".join(lines)
        raise AssertionError("the stream ended")

    def event_with(self, text: str) -> str:
        """The text of the first event that has ``text``."""
        while text not in (found := self.event()[1]):
            pass
        return found

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "EVERY_S", 0.05)
        patch.setattr(streams, "SHARE", 0)
        patch.setattr("velaray.console.survey.FRESH_S", 0.05)
        with LocalCluster(tmp_path_factory.mktemp("data")) as cluster:
            yield cluster


def test_changes_arrive_without_a_request(cluster: LocalCluster) -> None:
    following = Following(cluster.admin_url, "/console/topics?q=streamed")
    assert following.answer.headers["Content-Type"] == streams.KIND
    assert following.answer.headers["Cache-Control"] == "no-store"
    name, part = following.event()
    assert name == "part"
    assert "There is no such topic" in part
    assert "<h1>" not in part
    Admin(cluster.admin_url).topics.create("streamed")
    assert "There is no such topic" not in following.event_with("public/default/streamed")
    following.close()


def test_a_page_that_stays_the_same_is_not_sent_again(cluster: LocalCluster) -> None:
    following = Following(cluster.admin_url, "/console/clusters")
    assert following.event()[0] == "part"
    assert following.event() == ("same", "")
    following.close()


def test_a_stream_ends_when_the_browser_leaves(cluster: LocalCluster) -> None:
    wait_until(lambda: open_streams(cluster) == 0)
    following = Following(cluster.admin_url, "/")
    following.event()
    assert open_streams(cluster) == 1
    following.close()
    wait_until(lambda: open_streams(cluster) == 0)


def test_what_happens_to_the_topic_is_told(cluster: LocalCluster) -> None:
    admin = Admin(cluster.admin_url)
    admin.topics.create("short-lived")
    following = Following(cluster.admin_url, "/console/topic?topic=short-lived")
    assert following.event()[0] == "part"
    admin.topics.delete("short-lived")
    name = "part"
    while name == "part":
        name, text = following.event()
    assert name == "problem"
    assert "short-lived" in text
    following.close()


def test_more_streams_than_the_limit_are_refused(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until(lambda: open_streams(cluster) == 0)
    monkeypatch.setattr(streams, "MOST", 1)
    first = Following(cluster.admin_url, "/")
    first.event()
    second = Following(cluster.admin_url, "/")
    assert second.answer.status == 503
    assert second.answer.headers["Retry-After"]
    second.close()
    first.close()
    wait_until(lambda: open_streams(cluster) == 0)
    third = Following(cluster.admin_url, "/")
    assert third.event()[0] == "part"
    third.close()


def test_a_page_without_a_live_part_is_not_followed(cluster: LocalCluster) -> None:
    following = Following(cluster.admin_url, "/console/settings")
    assert following.answer.status == 204
    following.close()


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://elsewhere.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_other_sites_cannot_follow(cluster: LocalCluster, headers: dict[str, str]) -> None:
    following = Following(cluster.admin_url, "/", **headers)
    assert following.answer.status == 403
    following.close()


def test_a_stop_of_the_cluster_does_not_wait_for_streams(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        following = Following(cluster.admin_url, "/")
        following.event()
    assert following.answer.read().count(b"event:") <= 1  # it ended
    following.close()


def test_a_revoked_token_ends_the_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "EVERY_S", 0.05)
    monkeypatch.setattr(streams, "SHARE", 0)
    with LocalCluster(tmp_path, auth=AuthSettings(secret=SECRET)) as cluster:
        refused = Following(cluster.admin_url, "/")
        assert refused.event() == ("leave", "/console/login")
        refused.close()
        visitor = Visitor(cluster.admin_url)
        token = jwt.encode({"sub": "operator"}, SECRET)
        visitor.post("/console/login", {"token": token})
        cookies = "; ".join(f"{each.name}={each.value}" for each in visitor.cookies)
        following = Following(cluster.admin_url, "/", Cookie=cookies)
        assert following.event()[0] == "part"
        object.__setattr__(cluster.config, "auth", AuthSettings(secret=b"another secret" * 3))
        name = "part"
        while name == "part":
            name, text = following.event()
        assert (name, text) == ("leave", "/console/login")
        following.close()


def open_streams(cluster: LocalCluster) -> int:
    app = cluster._admin.app
    assert app is not None
    return app[streams.STREAMS].open
