"""Open transactions, their coordinators, and one transaction with its participants."""

from __future__ import annotations

import asyncio

from aiohttp import web

from velaray.console.pages import Outcome, ask, change, page
from velaray.console.parts import part
from velaray.console.visit import FormError, Visit, link

MOST = 100


def id_of(text: str) -> tuple[int, int]:
    """The id of a transaction, ``coordinator:sequence`` or as Pulsar writes it,
    ``(coordinator,sequence)``. Raises `FormError`."""
    parts = text.strip("()").replace(",", ":").split(":")
    if len(parts) != 2 or not all(each.isascii() and each.isdigit() for each in parts):
        raise FormError(f"write a transaction as coordinator:sequence, not {text[:40]!r}")
    return int(parts[0]), int(parts[1])


async def show(visit: Visit) -> web.Response:
    """The list of open transactions, and the coordinators."""
    found, coordinators = await asyncio.gather(
        part(visit.admin.transactions(most=MOST)), part(visit.admin.transactions.coordinators())
    )
    return visit.render("transactions.html", found=found, coordinators=coordinators)


async def show_one(visit: Visit) -> web.Response:
    """One transaction."""
    text = visit.needed("id")
    found = await visit.admin.transactions.get(id_of(text))
    return visit.render("transaction.html", id=text, found=found)


async def ask_to_abort(visit: Visit) -> web.Response:
    """What the abort of a transaction would lose, and the form that confirms it."""
    text = visit.needed("id")
    found = await visit.admin.transactions.get(id_of(text))
    return ask(
        visit,
        f"Abort transaction {found['txnId']}",
        f"It is {found['status'].lower()}. Its messages never appear, and its acknowledgements "
        "don't count. This can't be undone.",
        {"id": found["txnId"]},
        "Abort the transaction",
        link("transaction", id=text),
    )


async def abort(visit: Visit) -> Outcome:
    """Abort a transaction."""
    text = visit.needed("id")
    done = await visit.admin.transactions.abort(id_of(text))
    told = "is aborted" if done else "is aborted; some participants haven't applied it yet"
    return Outcome(link("transaction", id=text), f"Transaction {text} {told}")


ROUTES = (
    ("GET", "/console/transactions", page(show)),
    ("GET", "/console/transaction", page(show_one)),
    ("GET", "/console/transaction/abort", page(ask_to_abort)),
    ("POST", "/console/transaction/abort", change(abort)),
)
