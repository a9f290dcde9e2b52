"""``velaray transactions``: open transactions, their participants, and coordinators."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import click

from velaray.cli.common import Group, Output, time_text, with_admin
from velaray.cli.confirmation import destroys
from velaray.client.admin import Admin
from velaray.events.ids import TransactionId

Found = Mapping[str, Any]


class TransactionIdType(click.ParamType):
    """``coordinator:sequence``, or the printed form ``(coordinator,sequence)``."""

    name = "transaction"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> TransactionId:
        """Parse the argument."""
        if isinstance(value, TransactionId):
            return value
        found = re.fullmatch(r"(\d+)[:,](\d+)|\((\d+), ?(\d+)\)", value, re.ASCII)
        if found is None:
            self.fail(f"{value!r} is not coordinator:sequence, such as 0:7", param, ctx)
        most, least = (part for part in found.groups() if part is not None)
        return TransactionId(int(most), int(least))


@click.group(cls=Group)
def transactions() -> None:
    """Inspect and abort transactions."""


_most = click.option(
    "--most",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Show at most this many, oldest first.",
)
_coordinator = click.option(
    "--coordinator", type=click.IntRange(min=0), help="Only transactions of this coordinator."
)
_COLUMNS = {
    "coordinator": "COORDINATOR",
    "txnId": "ID",
    "status": "STATE",
    "age": "AGE",
    "timeLeft": "TIME LEFT",
    "producedPartitions": "PARTITIONS",
    "ackedPartitions": "SUBSCRIPTIONS",
    "owner": "OWNER",
}


@transactions.command("list")
@click.option(
    "--state",
    type=click.Choice(["OPEN", "COMMITTING", "ABORTING"], case_sensitive=False),
    help="Only transactions in this state.",
)
@_coordinator
@_most
@with_admin
def list_transactions(
    show: Output, admin: Admin, state: str | None, coordinator: int | None, most: int
) -> None:
    """List the open transactions, oldest first.

    \b
    Example:
      velaray transactions list --state OPEN
    """
    _list(show, admin.transactions(status=state, coordinator=coordinator, most=most))


@transactions.command("slow")
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="Minimum age in seconds.",
)
@_coordinator
@_most
@with_admin
def slow(show: Output, admin: Admin, older_than: float, coordinator: int | None, most: int) -> None:
    """List the transactions that have been open for long.

    \b
    Example:
      velaray transactions slow --older-than 60
    """
    older_ms = round(older_than * 1000)
    _list(show, admin.transactions(older_than_ms=older_ms, coordinator=coordinator, most=most))


def _list(show: Output, found: Found) -> None:
    if show.as_json:
        show.value(found)
        return
    show.rows(_COLUMNS, [_row(known) for known in found["transactions"]])
    left_out = found["total"] - len(found["transactions"])
    if left_out:
        click.echo(f"and {left_out} younger ones")


def _row(known: Found) -> dict[str, Any]:
    left = known["timeLeft"]
    return {
        **known,
        "coordinator": int(known["txnId"].strip("()").split(",")[0]),
        "age": _seconds(known["age"]),
        "timeLeft": None if left is None else _seconds(left),
        "owner": _begun_by(known) or None,
    }


def _begun_by(known: Found) -> str:
    """The role and the program that began a transaction, as far as they are known."""
    return " with ".join(filter(None, (known["owner"], known["client"])))


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.1f} s"


@transactions.command("describe")
@click.argument("transaction", type=TransactionIdType())
@with_admin
def describe(show: Output, admin: Admin, transaction: TransactionId) -> None:
    """Describe what TRANSACTION (coordinator:sequence) holds, and what its completion waits for.

    The outcome of an ended transaction is kept for ever.

    \b
    Example:
      velaray transactions describe 0:7
    """
    found = admin.transaction(transaction)
    if show.as_json:
        show.value(found)
        return
    click.echo("\n".join(_lines(found)))


def _lines(found: Found) -> Iterator[str]:
    owner = f", begun by {begun_by}" if (begun_by := _begun_by(found)) else ""
    late = ", by its timeout" if found["timedOut"] else ""
    yield f"transaction {found['txnId']}: {found['status']}{late}{owner}"
    if found["age"] is None:
        return  # it has ended
    yield f"begun: {time_text(found['openTimestamp'])}, {_seconds(found['age'])} ago"
    if found["timeLeft"] is not None:
        yield f"aborted in {_seconds(found['timeLeft'])} unless it ends earlier"
    for topic, held in found["producedPartitions"].items():
        yield f"messages in {topic}: {_held(held, _entries(held))}"
    for topic, subscriptions in found["ackedPartitions"].items():
        for name, held in subscriptions.items():
            yield f"acknowledgements in {name} of {topic}: {_held(held, _acks(held))}"
    for one in found["waitsFor"]:
        yield f"waits for {_participant(one)}, since {time_text(one['since'])}{_failures(one)}"


def _held(held: Found, text: str) -> str:
    return text if held["error"] is None else f"not known now: {held['error']}"


def _entries(held: Found) -> str:
    if not held["entries"]:
        return "none"
    return f"{held['entries']} entries, the first at {held['startPosition']}"


def _acks(held: Found) -> str:
    texts = [f"{held['entries']} entries"] if held["entries"] else []
    if held["batches"]:
        texts.append(f"parts of {held['batches']} batches")
    if held["cumulativeAckPosition"]:
        texts.append(f"everything up to {held['cumulativeAckPosition']}")
    return ", ".join(texts) or "none"


def _participant(one: Found) -> str:
    topic = str(one["topic"])
    return topic if one["subscription"] is None else f"{one['subscription']} of {topic}"


def _failures(one: Found) -> str:
    if not one["failures"]:
        return ""
    return f"; {one['failures']} attempts failed, the last one: {one['lastError']}"


@transactions.command("abort")
@click.argument("transaction", type=TransactionIdType())
@destroys("abort a transaction with everything that it published")
@with_admin
def abort(show: Output, admin: Admin, transaction: TransactionId) -> None:
    """Abort TRANSACTION (coordinator:sequence) of any client.

    Aborting an aborted transaction has no effect. A committed one can't be aborted.

    \b
    Example:
      velaray transactions abort 0:7
    """
    finished = admin.abort_transaction(transaction)
    text = f"({transaction.coordinator},{transaction.sequence})"
    rest = "" if finished else "; `velaray transactions describe` shows which participants are left"
    show.done(f"aborted {text}{rest}", aborted=text, finished=finished)


@transactions.command("coordinators")
@click.option(
    "--scale", type=click.IntRange(min=1), help="Increase the number of coordinators to this."
)
@with_admin
def coordinators(show: Output, admin: Admin, scale: int | None) -> None:
    """Show the transaction coordinators and their statistics, or add some.

    \b
    Example:
      velaray transactions coordinators --scale 4
    """
    if scale is not None:
        admin.scale_coordinators(scale)
    found = admin.coordinators()
    if show.as_json:
        show.value({str(number): stats for number, stats in found.items()})
        return
    columns = {
        "coordinator": "COORDINATOR",
        "state": "STATE",
        "openTxnSize": "OPEN",
        "endingTxnSize": "ENDING",
        "committedTxnCount": "COMMITTED",
        "abortedTxnCount": "ABORTED",
        "timedOutTxnCount": "TIMED OUT",
        "leastSigBits": "LAST SEQUENCE",
        "lowWaterMark": "LOW WATER",
    }
    show.rows(columns, [{"coordinator": number, **stats} for number, stats in found.items()])
