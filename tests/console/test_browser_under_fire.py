"""Every action of the console in Chromium, while hosts of the cluster are killed again and again.

An action succeeds, or the page says plainly why not; then it is pressed again until it succeeds. No
page shows a traceback. The browser reports errors only of pages that say what is away.

`test_browser_faults.py` presses other actions without fire: those on deletions of ledgers that were
given up need a broken store, and the rollback of a migration needs a second cluster. Those on hosts
need Ray: `test_browser_under_fire_on_ray.py` presses them.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.console.browsing import IN_CHROMIUM
from tests.console.window import Refused, Request, Window
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray import Client
from velaray.client.admin import Admin, Conflict, Unavailable
from velaray.client.retention_marks import RETENTION_MARK, SPARK
from velaray.console.app import PAGES
from velaray.topology.config import AuditSettings

pytestmark = [pytest.mark.slow, IN_CHROMIUM]

HOSTS = 2
TRIES = 60
FIRE = "persistent://public/default/fire"
ENDED = "persistent://public/default/ended"
LETTERS = "fire-s-DLQ"
SCHEMA = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'


class Fire:
    """Kills the hosts of a cluster in turn."""

    def __init__(self, kill: Callable[[int], None], pause_s: float) -> None:
        """``kill`` kills the host with a number; ``pause_s`` is the time between two kills."""
        self._kill = kill
        self._pause_s = pause_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fire")
        self.kills = 0

    @contextmanager
    def burning(self) -> Iterator[None]:
        """Kill hosts in the block."""
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()

    def _run(self) -> None:
        for number in itertools.cycle(range(HOSTS)):
            self._kill(number)
            self.kills += 1
            if self._over.wait(self._pause_s):
                return


def killer_in_process(cluster: LocalCluster) -> Callable[[int], None]:
    """A function that ends a host of this process, as SIGKILL would."""

    async def end(number: int) -> None:
        cluster.actor_system.kill_host(number)

    return lambda number: cluster.run(end(number))


class Action(NamedTuple):
    """Something to press. ``over`` tells whether it has had its effect, where it can't be pressed
    again then: a try that was refused may have had it."""

    press: Callable[[Window, str], None]
    over: Callable[[Admin], bool] = lambda admin: False


def create(window: Window, fresh: str) -> None:
    window.open("/console/topics")
    window.press("/console/topics/create", topic=fresh)
    window.done("is created")


def publish(window: Window, fresh: str) -> None:
    window.open("/console/topic", topic="fire")
    window.press("/console/topic/publish", data="hello", key="k", properties=f"n={fresh}")
    window.done("is stored as")


def subscribe(window: Window, fresh: str) -> None:
    window.open("/console/topic", topic="fire")
    window.press("/console/topic/subscribe", name=fresh, start="earliest")
    window.done("is created")


def move(kind: str, to: str, told: str) -> Callable[[Window, str], None]:
    """Preview a move of a cursor, and apply it."""

    def press(window: Window, fresh: str) -> None:
        window.open("/console/subscription", topic="fire", name="s")
        which = f':has([name="move"][value="{kind}"])'
        window.press("/console/subscription/preview", which, to=to)
        window.shows("nothing is changed yet")
        window.press("/console/subscription/move")
        window.done(told)

    return press


def unsubscribe(window: Window, fresh: str) -> None:
    window.open("/console/subscription", topic="fire", name="ended")
    window.follow("/console/subscription/delete")
    window.press("/console/subscription/delete")
    window.done("is deleted")


def set_policy(window: Window, fresh: str) -> None:
    window.open("/console/policies", where=FIRE)
    row = window.page.locator("tr:has(b:text-is('messageTTL'))")
    row.locator("summary").click()
    with window.page.expect_navigation():
        row.locator("[name='value']").first.fill("1000000")
        row.locator("button:text-is('Set')").click()
    window.check()
    window.done("messageTTL is set")


def remove_policy(window: Window, fresh: str) -> None:
    window.open("/console/policies", where=FIRE)
    row = window.page.locator("tr:has(b:text-is('messageTTL'))")
    row.locator("summary").click()
    if row.locator("button:text-is('Remove here')").count() == 0:
        raise AssertionError("the policy isn't set here")
    with window.page.expect_navigation():
        row.locator("button:text-is('Remove here')").click()
    window.check()
    window.done("messageTTL is removed")


def check_schema(window: Window, fresh: str) -> None:
    window.open("/console/schemas", topic="fire")
    window.press("/console/schemas", type="AVRO", schema=SCHEMA)
    window.shows("It could be registered")


def unload(window: Window, fresh: str) -> None:
    window.open("/console/topic", topic="fire")
    window.press("/console/topic/unload")
    window.done("is unloaded")


def delete(window: Window, fresh: str) -> None:
    window.open("/console/topic/delete", topic="ended")
    window.press("/console/topic/delete")
    window.done("is deleted")


def undelete(window: Window, fresh: str) -> None:
    window.open("/console/topics")
    window.press("/console/topics/undelete", f':has([value="{ENDED}"])')
    window.done("is restored")


def republish(window: Window, fresh: str) -> None:
    window.open("/console/dead-letters")
    window.press("/console/dead-letters/republish")
    window.done("A copy is stored in fire")


def forget(window: Window, fresh: str) -> None:
    window.open("/console/dead-letters")
    window.follow("/console/dead-letters/forget-letter")
    window.press("/console/dead-letters/forget-letter")
    window.done("is forgotten")


def release(window: Window, fresh: str) -> None:
    window.open("/console/pipelines")
    window.follow("/console/pipelines/release")
    window.press("/console/pipelines/release")
    window.done("is released")


def abort(window: Window, fresh: str) -> None:
    window.open("/console/transactions")
    window.follow("/console/transaction?id=")
    window.follow("/console/transaction/abort")
    window.press("/console/transaction/abort")
    window.done("is aborted")


def look(*paths: str) -> Callable[[Window, str], None]:
    """Open pages."""

    def press(window: Window, fresh: str) -> None:
        for path in paths:
            window.open(path)

    return press


def search(path: str, told: str, **fields: str) -> Callable[[Window, str], None]:
    """Look for something with the form of a page."""

    def press(window: Window, fresh: str) -> None:
        window.open(path)
        window.press(path.partition("?")[0], **fields)
        window.shows(told)

    return press


def look_back(window: Window, fresh: str) -> None:
    window.open("/console/time", q="partition/public/default/fire/")
    window.follow("/console/time?actor=")
    which = ':has([name="event"][type="number"])'
    last = window.page.locator('[name="event"][type="number"]').input_value()
    window.press("/console/time", which, event=last)
    window.shows("values differ from now")


ACTIONS: dict[str, Action] = {
    "create a topic": Action(create),
    "publish": Action(publish),
    "create a subscription": Action(subscribe),
    "seek": Action(move("seek", "earliest", "moved to earliest")),
    "skip": Action(move("skip", "2", "2 entries are skipped")),
    "expire": Action(move("expire", "0", "are expired")),
    "undo": Action(move("undo", "", "partitions are as before")),
    "delete a subscription": Action(
        unsubscribe, lambda admin: "ended" not in admin.subscriptions("fire")
    ),
    "set a policy": Action(set_policy),
    "remove a policy": Action(remove_policy),
    "check a schema": Action(check_schema),
    "search messages": Action(search("/console/messages?topic=fire", "hello", key="k")),
    "look back": Action(look_back),
    "look at the cluster": Action(
        look(*(f"/console/{page}" for page in ("clusters", "hosts", "settings", "login")), "/")
    ),
    "look at a log": Action(look("/console/hosts/log?host=host/0")),
    "look at a subscription": Action(look("/console/subscription/moves?topic=fire&name=s")),
    "look at a message": Action(look("/console/message?topic=fire&id=latest")),
    "ask about a deletion": Action(look("/console/dead-letters/forget?id=0")),
    "search topics": Action(search("/console/topics", "public/default/fire", q="fire")),
    "search pipelines": Action(search("/console/pipelines", "All subscriptions", q="fire")),
    "search changes": Action(search("/console/audit", "public/default/fire", target="fire")),
    "unload": Action(unload),
    "delete a topic": Action(delete, lambda admin: ENDED not in admin.topics()),
    "restore a topic": Action(undelete, lambda admin: ENDED in admin.topics()),
    "republish a letter": Action(republish),
    "forget a letter": Action(forget),
    "release a mark": Action(release, lambda admin: "query" not in admin.subscriptions("fire")),
    "abort a transaction": Action(abort, lambda admin: admin.transactions()["total"] == 0),
}
ELSEWHERE: set[Request] = {
    ("POST", "/console/login"),
    ("POST", "/console/logout"),
    ("POST", "/console/theme"),
    ("POST", "/console/dead-letters/retry"),
    ("POST", "/console/dead-letters/forget"),
    ("GET", "/console/clusters/roll-back"),
    ("POST", "/console/clusters/roll-back"),
}
"""What isn't pressed under fire."""
ON_RAY: set[Request] = {("POST", "/console/hosts/change"), ("POST", "/console/hosts/move")}
_fresh = itertools.count(1)


def pressed(window: Window, admin: Admin, name: str, action: Action) -> None:
    """Press something until it succeeds."""
    for _ in range(TRIES):
        with suppress(Refused):
            return action.press(window, f"fresh-{next(_fresh)}")
        with suppress(Unavailable):
            if action.over(admin):
                return None
    raise AssertionError(f"{name}: {Counter(window.refusals)}")


def surely(create: Callable[..., None], *what: Any, **how: Any) -> None:
    """Create something, again and again while the cluster starts."""

    def exists() -> bool:
        try:
            create(*what, **how)
        except Unavailable:
            return False
        except Conflict:
            pass  # an earlier try had its effect
        return True

    wait_until(exists, 120)


def arrange(admin: Admin, client: Client) -> None:
    """What the actions change: topics, subscriptions, dead letters, a mark, a transaction."""
    for topic in ("fire", "ended", LETTERS):
        surely(admin.topics.create, topic)
    for topic, name in (("fire", "s"), ("fire", "ended"), (LETTERS, "repair")):
        surely(admin.subscriptions.create, topic, name)
    surely(admin.subscriptions.create, "fire", "query", properties={RETENTION_MARK: SPARK})
    for topic in ("fire", LETTERS):  # the producers stay connected, so that the topics run
        producer = client.create_producer(topic)
        for number in range(5):
            producer.send(b"%d" % number, {"REAL_TOPIC": "fire"})
    client.create_producer("paid").send(b"x", txn=client.new_transaction(600))


def every_route() -> set[Request]:
    """The pages and the forms of the console."""
    return {(method, path) for module in PAGES for method, path, _ in module.ROUTES}


def press_all(window: Window, admin: Admin, fire: Fire, actions: dict[str, Action]) -> None:
    """Press everything under fire."""
    with fire.burning():
        for name, action in actions.items():
            before = len(window.refusals)
            pressed(window, admin, name, action)
            print(f"{name}, after {fire.kills} kills: {Counter(window.refusals[before:])}")
    window.close()
    assert fire.kills >= 3
    assert window.faults == []


def test_actions_under_fire(browser: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"undelete_s": 3600, "audit": AuditSettings()}
    with (
        LocalCluster(tmp_path, hosts=HOSTS, **settings) as cluster,
        Client(cluster.service_url) as client,
    ):
        admin = Admin(cluster.admin_url)
        arrange(admin, client)
        fire = Fire(killer_in_process(cluster), 1.0)
        window = Window(browser, admin.url)
        press_all(window, admin, fire, ACTIONS)
        assert every_route() - window.asked == ELSEWHERE | ON_RAY
