"""Every page of the console in Chromium, in both themes and widths, and pages while actors end.

axe-core must find nothing serious, and the browser must report no error. Without Playwright and
Chromium (Debian's package ``chromium``) these tests are skipped. With the variable
``CONSOLE_SCREENSHOTS`` set to a folder, pictures of the main pages are written there;
``make screenshots`` writes those of the documents.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest

from tests.console.browsing import IN_CHROMIUM, WIDTHS, Tab
from tests.console.scene import ORDERS, pages, scene
from tests.console.surroundings import surrounded
from tests.support.local_cluster import LocalCluster
from velaray import Client
from velaray.client.admin import Admin
from velaray.events.ids import ActorKind
from velaray.topology.config import AuthorisationSettings, AuthSettings

pytestmark = [pytest.mark.slow, IN_CHROMIUM]

PICTURES = {
    ("wide", "light"): (
        *("attention", "topics", "topic", "message", "subscription", "preview", "moment"),
        *("dead-letters", "transactions", "pipelines", "clusters", "hosts", "settings", "audit"),
    ),
    ("wide", "dark"): ("attention",),
    ("narrow", "light"): ("attention",),
}
RATE_OF = "name => looks.some((look) => look.rates[name] > 0)"
SECRET = b"the secret that the tests in a browser use"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with surrounded(tmp_path_factory.mktemp("data")) as cluster:
        yield cluster


@pytest.fixture
def tab(browser: Any, cluster: LocalCluster) -> Iterator[Tab]:
    tab = Tab(browser, cluster.admin_url)
    yield tab
    tab.close()
    assert tab.faults == []


def picture(tab: Tab, name: str) -> None:
    folder = os.environ.get("CONSOLE_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        if tab.page.locator("#chart").count():
            tab.page.wait_for_function("() => looks.length > 8")
        tab.page.wait_for_selector("text=Not known now", state="detached")
        tab.page.screenshot(path=str(Path(folder) / f"{name}.png"))


@pytest.mark.parametrize(
    ("width", "theme"),
    [
        ("wide", "light"),
        ("narrow", "dark"),
        pytest.param("wide", "dark", marks=pytest.mark.long),
        pytest.param("narrow", "light", marks=pytest.mark.long),
    ],
)
def test_every_page_is_sound(browser: Any, cluster: LocalCluster, width: str, theme: str) -> None:
    tab, faults = Tab(browser, cluster.admin_url, width, theme), []
    for name, path in pages(cluster).items():
        tab.open(path)
        assert tab.page.locator("h1").count() == 1, path
        faults += tab.serious()
        across = tab.page.evaluate("document.documentElement.scrollWidth")
        if across > WIDTHS[width]["width"]:
            faults.append(f"{path}: {across} pixels wide")
        if name in PICTURES.get((width, theme), ()):
            mark = "" if (width, theme) == ("wide", "light") else f"-{width}-{theme}"
            picture(tab, f"{name}{mark}")
    tab.close()
    assert faults + tab.faults == []


def test_the_theme_is_switched(tab: Tab) -> None:
    tab.open("/")
    page = tab.page
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(back)
    with page.expect_navigation():
        page.select_option("#theme", "dark")
    assert page.evaluate(back) != light
    tab.open("/console/topics")
    assert page.locator("html").get_attribute("data-theme") == "dark"


def test_the_keyboard_reaches_content_and_links(tab: Tab) -> None:
    tab.open("/")
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    tab.page.keyboard.press("Enter")
    assert tab.page.evaluate("document.activeElement.id") == "main"
    with tab.page.expect_navigation():
        tab.page.locator(".troubles a").first.focus()
        tab.page.keyboard.press("Enter")
    assert tab.page.locator("h1").count() == 1


def test_a_topic_is_created_filled_read_and_deleted(tab: Tab, cluster: LocalCluster) -> None:
    page = tab.page
    tab.open("/console/topics")
    page.fill('form[action="/console/topics/create"] [name="topic"]', "by-hand")
    page.click('form[action="/console/topics/create"] button')
    assert "is created" in page.locator(".flash").first.inner_text()
    page.fill('[name="data"]', "hello")
    page.fill('[name="key"]', "k")
    page.click("text=Publish >> nth=-1")
    assert "hello" in page.locator("table").inner_text()
    page.click("tbody a >> nth=0")
    assert "no durable subscription" in page.locator("main").inner_text()
    tab.open("/console/topic/delete?topic=by-hand")
    page.click('button:has-text("Delete the topic")')
    assert "is deleted" in page.locator(".flash").first.inner_text()
    assert "persistent://public/default/by-hand" not in Admin(cluster.admin_url).topics()


def test_a_seek_is_previewed_and_applied(tab: Tab, cluster: LocalCluster) -> None:
    admin, page = Admin(cluster.admin_url), tab.page
    admin.subscriptions.skip("orders", "billing", 5)
    tab.open(f"/console/subscription?topic={ORDERS}&name=billing")
    page.fill('form:has([value="seek"]) [name="to"]', "earliest")
    page.click("text=Preview the seek")
    assert "nothing is changed yet" in page.locator("main").inner_text()
    page.click("text=Apply")
    assert "moved to earliest" in page.locator(".flash").first.inner_text()
    (found,) = admin.subscriptions.describe("orders", "billing").values()
    assert found["backlog"] == 41


def test_the_slider_shows_another_event(tab: Tab, cluster: LocalCluster) -> None:
    tab.open(pages(cluster)["moment"])
    slider = tab.page.locator("#event")
    before = int(slider.input_value())
    with tab.page.expect_navigation():
        slider.press("ArrowLeft")
    assert int(tab.page.locator("#event").input_value()) == before - 1


def test_the_command_is_copied_where_browsers_have_no_clipboard_api(
    tab: Tab, cluster: LocalCluster
) -> None:
    """They have it only for https and for this machine."""
    page = tab.page
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    tab.open(pages(cluster)["moment"])
    page.click("[data-copy]")
    page.wait_for_selector("text=Copied")
    page.focus('[name="time"]')
    page.keyboard.press("Control+V")
    assert page.locator('[name="time"]').input_value() == page.locator("#command").inner_text()


def test_a_page_updates_itself_and_pauses(tab: Tab, cluster: LocalCluster) -> None:
    admin, page = Admin(cluster.admin_url), tab.page
    tab.open("/")
    admin.topics.create("late")
    admin.subscriptions.create("late", "nobody")
    admin.topics.publish("late", "x")
    page.wait_for_selector("text=public/default/late · nobody")
    page.click("#pause")
    assert page.locator("#pause").get_attribute("aria-pressed") == "true"
    page.click("#pause")
    admin.subscriptions.delete("late", "nobody")
    page.wait_for_selector("text=public/default/late · nobody", state="detached")


def test_rates_are_drawn_while_a_page_is_open(tab: Tab, cluster: LocalCluster) -> None:
    page = tab.page
    with Client(cluster.service_url) as client:
        producer = client.create_producer("drawn", block_if_queue_full=True)
        for path, name in (("/", "Published"), ("/console/topic?topic=drawn", "In")):
            tab.open(path)
            told = page.locator(f'[data-told="{name}"]')
            page.wait_for_selector(f'#chart [data-line="{name}"][d*="L"]', state="attached")
            for _ in range(100):
                producer.send_async(b"x")
            producer.flush()
            page.wait_for_function(RATE_OF, arg=name)
            assert re.fullmatch(rf"{name}: \S+/s now, \S+/s at most", told.inner_text())


def test_the_chart_is_broken_while_a_rate_is_not_known(tab: Tab, cluster: LocalCluster) -> None:
    """Looks at the page are simulated."""
    page = tab.page
    tab.open(f"/console/topic?topic={ORDERS}")
    page.click("#pause")
    path, told = page.locator('#chart [data-line="In"]'), page.locator('[data-told="In"]')
    page.evaluate("looks.length = 0")

    def looks(part: str | None) -> str:
        page.evaluate("part => looked(part)", part)
        return "".join(re.findall("[ML]", path.get_attribute("d") or ""))

    assert looks('<b data-rate="In" data-value="1234.56"></b>') == "M"
    assert looks(None) == "ML"
    assert told.inner_text() == "In: 1,234.6/s now, 1,234.6/s at most"
    assert looks("nothing is known") == "ML"
    assert told.inner_text() == "In: not known now, 1,234.6/s at most"
    assert looks('<b data-rate="In" data-value="0"></b>') == "MLM"
    page.evaluate("looks.forEach((each) => { each.at -= 2 * GAP_MS; })")
    assert looks(None) == "MLMM"  # the page had no updates meanwhile
    page.evaluate("for (let left = 2 * MOST_LOOKS; left > 0; left -= 1) looked(null)")
    assert page.evaluate("looks.length") == page.evaluate("MOST_LOOKS")


def test_pages_stay_while_actors_are_killed(tab: Tab, cluster: LocalCluster) -> None:
    paths = [f"/console/topic?topic={ORDERS}", f"/console/subscription?topic={ORDERS}&name=billing"]
    for path in ("/", *paths):
        for kind in (ActorKind.PARTITION, ActorKind.SUBSCRIPTION, ActorKind.COORDINATOR):
            for key in cluster.keys(kind):
                cluster.kill(key)
        tab.open(path)
        assert tab.page.locator("h1").count() == 1
        tab.page.wait_for_selector("main a:has-text('public/default/orders')")
        tab.page.wait_for_selector("text=Not known now", state="detached")
    with Client(cluster.service_url) as client:
        client.create_producer("clicks").send(b"still here")


def test_changes_are_filtered(tab: Tab, cluster: LocalCluster) -> None:
    Admin(cluster.admin_url).topics.create("seen-in-the-audit", properties={"a": "b"})
    tab.open("/")
    page = tab.page
    with page.expect_navigation():
        page.get_by_role("link", name="Audit", exact=True).click()
    page.fill('[name="target"]', "seen-in-the-audit")
    page.fill('[name="operation"]', "PUT")
    with page.expect_navigation():
        page.get_by_role("button", name="Search").click()
    rows = page.locator("tbody tr")
    assert rows.count() == 1
    assert "done" in rows.first.inner_text()
    rows.first.locator("summary").click()
    assert page.locator("tbody details pre").is_visible()


def test_a_viewer_sees_every_page_and_finds_nothing_to_press(browser: Any, tmp_path: Path) -> None:
    roles = AuthorisationSettings(frozenset({"root"}), viewers=frozenset({"viewer"}))
    root = jwt.encode({"sub": "root"}, SECRET)
    with scene(tmp_path, root, auth=AuthSettings(secret=SECRET), roles=roles) as cluster:
        tab = Tab(browser, cluster.admin_url)
        page = tab.page
        tab.open("/console/login")
        page.fill('[name="token"]', jwt.encode({"sub": "viewer"}, SECRET))
        with page.expect_navigation():
            page.get_by_role("button", name="Log in").click()
        paths = pages(cluster, root)
        del paths["login"], paths["problem"]
        checks = "/console/schemas"  # it registers nothing
        for path in paths.values():
            tab.open(path)
            assert page.locator("h1").inner_text() != "This didn't work", path
            assert page.locator("footer").inner_text().endswith("change nothing")
            posts = page.locator(f'main form[method="post"]:not([action="{checks}"])')
            assert posts.count() == 0, path
        tab.close()
        assert tab.faults == []
