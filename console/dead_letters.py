"""Dead letters: messages that consumers gave up, and deletions of ledgers that were given up."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from aiohttp import web

from velaray.client.message_id import MessageId as ClientMessageId
from velaray.console.attention import DEAD_LETTERS
from velaray.console.entries import Shown, messages_of
from velaray.console.messages import read_entry
from velaray.console.pages import Outcome, ask, change, page
from velaray.console.parts import Part, part
from velaray.console.topics import full_name, topic_names
from velaray.console.visit import FormError, Visit, link
from velaray.events.ids import MessageId

MOST_TOPICS = 50
NEWEST = 5
"""Dead letters of a topic that are shown."""
SEARCHED = 100
"""The number of newest dead letters of a partition in which a letter to forget is searched."""


class Letter(NamedTuple):
    """A dead letter: its id and partition, where it came from if its properties tell, and the
    subscriptions that haven't acknowledged it."""

    id: str
    topic: str
    message: Shown
    origin: str
    origin_id: str
    subscription: str
    holders: list[str]


class Row(NamedTuple):
    """A dead-letter topic: its statistics, and its newest letters."""

    topic: str
    stats: Part[dict[str, Any]]
    newest: Part[list[Letter]]


async def _letter(visit: Visit, found: dict[str, Any]) -> Letter:
    """A dead letter with its message. Raises `AdminError`."""
    at = MessageId.parse(found["id"])
    opened = messages_of(await read_entry(visit, found["topic"], at.position), None)
    message = next((each for each in opened if each.index == at.batch_index), opened[0])
    origin_id = found["originId"].strip("()")
    return Letter(
        found["id"],
        found["topic"],
        message,
        found["originTopic"],
        ":".join(each.strip() for each in origin_id.replace(",", ":").split(":")[:2]),
        found["originSubscription"],
        found["subscriptions"],
    )


async def _newest(visit: Visit, topic: str) -> list[Letter]:
    found = await visit.admin.dead_letters(topic, NEWEST)
    return await asyncio.gather(*(_letter(visit, each) for each in found))


async def show(visit: Visit) -> web.Response:
    """The page."""
    names, given_up = await asyncio.gather(topic_names(visit), part(visit.admin.ledgers.dead()))
    found = [name for name in names if name.endswith(DEAD_LETTERS)]
    wanted = found[:MOST_TOPICS]
    stats, newest = await asyncio.gather(
        asyncio.gather(*(part(visit.admin.topics.stats(name)) for name in wanted)),
        asyncio.gather(*(part(_newest(visit, name)) for name in wanted)),
    )
    rows = [Row(*each) for each in zip(wanted, stats, newest, strict=True)]
    return visit.render(
        "dead_letters.html", rows=rows, more=len(found) - len(rows), given_up=given_up
    )


def _place(visit: Visit) -> tuple[str, ClientMessageId]:
    """The topic and the id of the letter of a form or query. Raises `FormError`,
    `InvalidMessageIdError`."""
    letter = ClientMessageId.from_stored(MessageId.parse(visit.needed("id")))
    return full_name(visit.needed("topic")), letter


async def republish(visit: Visit) -> Outcome:
    """Publish a copy of a dead letter to the topic that it came from. The letter stays."""
    origin, sent = await visit.admin.dead_letters.republish(*_place(visit))
    told = f"{sent.ledger_id()}:{sent.entry_id()}"
    return Outcome(link("dead-letters"), f"A copy is stored in {origin} as {told}")


async def ask_to_forget(visit: Visit) -> web.Response:
    """A dead letter, and the form that confirms that it is forgotten."""
    topic, id = full_name(visit.needed("topic")), visit.needed("id")
    found = await visit.admin.dead_letters(topic, SEARCHED)
    for each in found:
        if each["id"] == id:
            letter = await _letter(visit, each)
            return visit.render("dead_letter_forget.html", letter=letter)
    raise FormError(f"{id} isn't among the newest dead letters of {topic}, or it is forgotten")


async def forget_letter(visit: Visit) -> Outcome:
    """Forget a dead letter: all subscriptions of its topic count it as acknowledged."""
    topic, letter = _place(visit)
    names = await visit.admin.dead_letters.forget(topic, letter)
    told = f"The dead letter {visit.needed('id')} is forgotten"
    return Outcome(link("dead-letters"), f"{told} in {', '.join(names)}" if names else told)


def _ids(visit: Visit) -> list[str] | None:
    chosen = visit.text("id")
    return [chosen] if chosen else None


async def retry(visit: Visit) -> Outcome:
    """Retry deletions of ledgers that were given up."""
    count = await visit.admin.ledgers.retry_dead(_ids(visit))
    return Outcome(link("dead-letters"), f"{count} deletions are retried")


async def ask_to_forget_deletion(visit: Visit) -> web.Response:
    """What is lost if a deletion that was given up is forgotten, and the form that confirms it."""
    id = visit.needed("id")
    return ask(
        visit,
        f"Forget the deletion {id}",
        "It disappears from the list. Its ledger stays stored and takes space, until `velaray "
        "ledgers audit --repair` deletes it.",
        {"id": id},
        "Forget the deletion",
        link("dead-letters"),
    )


async def forget(visit: Visit) -> Outcome:
    """Remove deletions of ledgers that were given up from the list."""
    count = await visit.admin.ledgers.forget_dead(_ids(visit))
    return Outcome(link("dead-letters"), f"{count} deletions are forgotten")


ROUTES = (
    ("GET", "/console/dead-letters", page(show)),
    ("POST", "/console/dead-letters/republish", change(republish)),
    ("GET", "/console/dead-letters/forget-letter", page(ask_to_forget)),
    ("POST", "/console/dead-letters/forget-letter", change(forget_letter)),
    ("POST", "/console/dead-letters/retry", change(retry)),
    ("GET", "/console/dead-letters/forget", page(ask_to_forget_deletion)),
    ("POST", "/console/dead-letters/forget", change(forget)),
)
