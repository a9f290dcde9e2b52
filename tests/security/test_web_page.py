"""A web page in a real Chromium that tries to change a local cluster through its admin port.

The page is at another origin of this machine. As a second way it is at a name that resolves to the
admin port itself, as after a change of the name's address (DNS rebinding). Without Playwright and
Chromium (Debian's package ``chromium``) these tests are skipped.
"""

from __future__ import annotations

import json
import shutil
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from velaray import LocalCluster, MessageId
from velaray.client.admin import Admin

playwright = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"),
]

TOPICS = "/admin/v2/persistent/public/default"
REQUESTS: list[tuple[str, str, dict[str, str] | None]] = [
    ("PUT", "/admin/v2/namespaces/public/page", {}),
    ("PUT", f"{TOPICS}/page", {}),
    ("POST", f"{TOPICS}/orders/subscription/s/skip_all", {}),
    ("POST", "/admin/v2/namespaces/public/default/messageTTL", {}),
    ("DELETE", f"{TOPICS}/orders/subscription/s?force=true", None),
    ("GET", "/lookup/v2/topic/persistent/public/default/looked-up", None),
    ("GET", f"{TOPICS}/asked/partitions?checkAllowAutoCreation=true", None),
]
"""Requests of a page. Each changes the cluster, if a client without a browser sends it."""

LIMIT_MS = 15_000
SEND = """
async ([requests, limit]) => {
  const types = ["text/plain", "application/x-www-form-urlencoded", "application/json"];
  const answered = {fetch: [], form: [], image: []};
  const byFetch = async (url, method, body, mode, type) => {
    const options = {method, mode, headers: {"Content-Type": type}, credentials: "include"};
    if (body !== null && method !== "GET") options.body = body;
    try {
      const answer = await fetch(url, options);
      return answer.type === "opaque" ? "opaque" : String(answer.status);
    } catch (error) {
      return "refused by the browser";
    }
  };
  // A frame has its name before it is in the document: a later one is no target of forms.
  const byForm = (url, method, body, enctype, number) => new Promise((sent) => {
    const frame = document.createElement("iframe");
    frame.name = `answer${number}`;
    document.body.append(frame);
    const form = document.body.appendChild(document.createElement("form"));
    const field = form.appendChild(document.createElement("input"));
    // As text/plain, the name and the value with "=" between them are the body: it is JSON.
    field.name = body.slice(0, -1) + (body === "{}" ? '"x":"' : ',"x":"');
    field.value = '"}';
    Object.assign(form, {action: url, method, enctype, target: frame.name});
    frame.onload = () => sent("loaded");
    form.submit();
  });
  const byImage = (url) => new Promise((sent) => {
    const image = document.body.appendChild(document.createElement("img"));
    image.onload = () => sent("loaded");
    image.onerror = () => sent("no image");
    image.src = url;
  });
  const send = async () => {
    let number = 0;
    for (const [url, method, body] of requests) {
      for (const mode of ["no-cors", "cors"])
        for (const type of types) answered.fetch.push(await byFetch(url, method, body, mode, type));
      if (method === "GET") answered.image.push(await byImage(url));
      if (method === "PUT" || method === "DELETE") continue;  // no methods of forms
      for (const type of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
        answered.form.push(await byForm(url, method, body ?? "{}", type, number++));
    }
    return answered;
  };
  const late = new Promise((_, fail) => setTimeout(() => fail(new Error("no answer")), limit));
  return Promise.race([send(), late]);
}
"""


class Elsewhere(BaseHTTPRequestHandler):
    """The server of the page."""

    def do_GET(self) -> None:
        """An empty page."""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><body>free kittens")

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[int]:
    """The port of the page's server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.start() as cluster:
        with Admin(cluster.admin_url) as admin:
            admin.create_topic("orders")
            admin.create_subscription("orders", "s", MessageId.earliest)
            admin.topics.publish("orders", "an order")
        yield cluster


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """A page of a browser for which every name of example is this machine."""
    rules = "--host-resolver-rules=MAP *.example 127.0.0.1"
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", rules])
        yield browser.new_page()
        browser.close()


def state(cluster: LocalCluster) -> dict[str, Any]:
    """What the requests would change."""
    with Admin(cluster.admin_url) as admin:
        subscriptions = admin.stats("orders")["subscriptions"]
        return {
            "namespaces": admin.namespaces("public"),
            "topics": admin.topics("public/default"),
            "backlog": {name: each["msgBacklog"] for name, each in subscriptions.items()},
            "policies": admin.request("GET", "namespaces/public/default"),
        }


def sent_by(page: Any, admin_url: str) -> dict[str, list[str]]:
    """Send every request in each way that a page has; returns what the page learns."""
    requests = [
        [admin_url + path, method, None if content is None else json.dumps(content)]
        for method, path, content in REQUESTS
    ]
    found: dict[str, list[str]] = page.evaluate(SEND, [requests, LIMIT_MS])
    return found


@pytest.mark.parametrize("name", ["evil.example", "localhost"])
def test_a_page_of_another_origin_changes_nothing(
    cluster: LocalCluster, page: Any, elsewhere: int, name: str
) -> None:
    before = state(cluster)
    page.goto(f"http://{name}:{elsewhere}/")
    learnt = sent_by(page, cluster.admin_url)
    assert set(learnt["fetch"]) == {"opaque", "refused by the browser"}  # opaque: it was sent
    assert set(learnt["form"]) == {"loaded"}
    assert set(learnt["image"]) == {"no image"}
    assert state(cluster) == before


def test_a_page_under_a_name_of_the_attacker_for_the_admin_port_changes_nothing(
    cluster: LocalCluster, page: Any
) -> None:
    before = state(cluster)
    rebound = f"http://rebound.example:{urlsplit(cluster.admin_url).port}"
    page.goto(rebound)
    assert "is not a name of this cluster" in page.content()
    # For the browser this is the same origin: the page sees each answer. Without CORS it may send
    # neither PUT nor DELETE.
    assert set(sent_by(page, rebound)["fetch"]) == {"403", "refused by the browser"}
    assert state(cluster) == before


def test_the_same_requests_of_a_client_without_a_browser_are_answered(
    cluster: LocalCluster,
) -> None:
    changed = 0
    for method, path, content in REQUESTS:
        before = state(cluster)
        body = {"messageTTL": "60"}.get(path.rpartition("/")[2], json.dumps(content))
        request = urllib.request.Request(cluster.admin_url + path, method=method)
        if content is not None:
            request.data = body.encode()
            request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status < 300
        changed += state(cluster) != before
    assert changed == len(REQUESTS)
