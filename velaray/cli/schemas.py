"""``velaray schemas``: the versions of a topic's schema, and checks of new ones."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from velaray.broker.history import PointInTime
from velaray.cli.common import (
    SERVICE,
    Command,
    Group,
    Output,
    TokenSource,
    client_options,
    connection,
    time_text,
    with_admin,
)
from velaray.cli.confirmation import destroys
from velaray.cli.history import PointInTimeType
from velaray.client.admin import Admin, NotFound
from velaray.schemas import SchemaInfo, SchemaType
from velaray.schemas.compatibility import Known, Rules, Strategy, producer_problems
from velaray.schemas.json_form import info_from_text

Found = Mapping[str, Any]
_PATIENCE_MS = 10_000

_topic = click.argument("topic")
_COLUMNS = {
    "version": "VERSION",
    "type": "TYPE",
    "at": "AT",
    "strategy": "UNDER",
    "predecessor": "AFTER",
    "role": "BY",
    "state": "STATE",
}


@click.group(cls=Group)
def schemas() -> None:
    """Inspect, register and delete schemas of topics."""


@schemas.command("list")
@_topic
@click.option("--deleted", is_flag=True, help="Include deleted versions and deletions.")
@click.option(
    "--as-of",
    type=PointInTimeType(),
    help="Show the versions at a time or after an event, by its number.",
)
@with_admin
def list_schemas(
    show: Output, admin: Admin, topic: str, deleted: bool, as_of: PointInTime | None
) -> None:
    """List the versions of TOPIC's schema.

    \b
    Example:
      velaray schemas list orders --deleted
    """
    found = _versions(admin, topic, deleted, as_of)
    if show.as_json:
        show.value(found)
        return
    gone = max((each["version"] for each in found if each["deleted"]), default=-1)
    show.rows(_COLUMNS, [_row(each, gone) for each in found])


def _versions(admin: Admin, topic: str, deleted: bool, as_of: Any) -> list[dict[str, Any]]:
    if as_of is None:
        return admin.schemas(topic, deleted=deleted)
    if not isinstance(as_of, PointInTime):
        raise click.BadParameter("give a time or the number of an event", param_hint="--as-of")
    return admin.schemas(topic, deleted=deleted, as_of_ms=as_of.at_ms, sequence=as_of.sequence)


def _row(found: Found, gone: int) -> dict[str, Any]:
    state = "deletion" if found["deleted"] else "deleted" if found["version"] <= gone else "live"
    return {
        **found,
        "at": time_text(found["timestamp"]),
        "role": found["role"] or None,
        "strategy": found["strategy"] or None,
        "state": state,
    }


@schemas.command("get")
@_topic
@click.argument("version", type=click.IntRange(min=0), required=False)
@with_admin
def get_schema(show: Output, admin: Admin, topic: str, version: int | None) -> None:
    """Show VERSION of TOPIC's schema, deleted or not; the latest by default.

    \b
    Example:
      velaray schemas get orders 1
    """
    found = admin.schema(topic, version)
    if show.as_json:
        show.value(found)
        return
    click.echo(f"version {found['version']}, {found['type']}, of {time_text(found['timestamp'])}")
    for name, value in found["properties"].items():
        click.echo(f"{name}: {value}")
    if found["data"]:
        click.echo(_pretty(found["data"]))


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


def _proposed(command: Command) -> Command:
    """Give ``command`` the arguments and options that describe a schema."""
    for option in (
        click.option(
            "--property", "pairs", multiple=True, help="A property, name=value; may be repeated."
        ),
        click.option(
            "--type",
            "kind",
            type=click.Choice([str(each) for each in SchemaType], case_sensitive=False),
            default="AVRO",
            show_default=True,
            help="Type of the schema.",
        ),
        click.argument(
            "file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
        ),
        _topic,
    ):
        command = option(command)
    return command


def _properties(pairs: tuple[str, ...]) -> dict[str, str]:
    split = [pair.partition("=") for pair in pairs]
    if not all(separator for _, separator, _ in split):
        raise click.BadParameter("write name=value", param_hint="--property")
    return {name: value for name, _, value in split}


def _text(file: Path | None) -> str:
    return "" if file is None else file.read_text(encoding="utf-8").strip()


@schemas.command("upload")
@_proposed
@with_admin
def upload_schema(
    show: Output, admin: Admin, topic: str, file: Path | None, kind: str, pairs: tuple[str, ...]
) -> None:
    """Register the schema in FILE (none for primitive types) for TOPIC.

    \b
    Example:
      velaray schemas upload orders order.avsc --type AVRO
    """
    version = admin.upload_schema(topic, kind, _text(file), _properties(pairs))
    show.done(f"version {version} of {topic}", topic=topic, version=version)


@schemas.command("delete")
@_topic
@click.option("--force", is_flag=True, help="Recorded with the deletion; has no other effect.")
@destroys("delete all versions of the schema of {topic}")
@with_admin
def delete_schema(show: Output, admin: Admin, topic: str, force: bool) -> None:
    """Delete all versions of TOPIC's schema; messages can still be decoded.

    \b
    Example:
      velaray schemas delete orders
    """
    version = admin.delete_schema(topic, force=force)
    show.done(f"deleted as version {version} of {topic}", topic=topic, version=version)


@schemas.command("diff")
@_topic
@click.argument("old", type=click.IntRange(min=0))
@click.argument("new", type=click.IntRange(min=0))
@with_admin
def diff_schemas(show: Output, admin: Admin, topic: str, old: int, new: int) -> None:
    """Show how version NEW of TOPIC's schema differs from OLD, and whether they are compatible.

    \b
    Example:
      velaray schemas diff orders 0 1
    """
    found = [admin.schema(topic, version) for version in (old, new)]
    before, after = (_pretty(each["data"]).splitlines() for each in found)
    names = f"version {old}", f"version {new}"
    lines = list(difflib.unified_diff(before, after, *names, lineterm=""))
    first, second = (_info(each) for each in found)
    problems = [
        str(each) for each in producer_problems(second, [Known(old, first)], Rules(Strategy.FULL))
    ]
    if show.as_json:
        show.value({"diff": lines, "problems": problems})
        return
    click.echo("\n".join(lines) or "the same text")
    click.echo("\n".join(problems) or "each can read the other")


def _info(found: Found) -> SchemaInfo:
    return info_from_text(found["type"], found["data"], found["properties"])


# -- checking a schema -------------------------------------------------------------


@schemas.command("check")
@_proposed
@click.option("--strategy", type=click.Choice([str(each) for each in Strategy]))
@click.option(
    "--against-history",
    is_flag=True,
    help="Compare with every version, deleted ones too, and read retained messages.",
)
@click.option(
    "--messages",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Number of messages to read per partition with --against-history, oldest first.",
)
@SERVICE.give
@click.option(
    "--service-token", envvar="VELARAY_TOKEN", help="JSON web token for reading messages."
)
@with_admin
def check_schema(
    show: Output,
    admin: Admin,
    topic: str,
    file: Path | None,
    kind: str,
    pairs: tuple[str, ...],
    strategy: str | None,
    against_history: bool,
    messages: int,
    service_url: str | None,
    service_token: str | None,
) -> None:
    """Check whether the schema in FILE could be registered for TOPIC. Changes nothing.

    The exit code is 1 if it couldn't be registered, or if messages couldn't be read.

    \b
    Example:
      velaray schemas check orders order.avsc --against-history
    """
    text, given = _text(file), _properties(pairs)
    found = admin.check_schema(
        topic, kind, text, given, strategy=strategy, every_version=against_history
    )
    trial = Trial(0, [])
    if against_history and messages:
        info = info_from_text(kind, text, given)
        source = partial(str, service_token) if service_token else None
        url, token = connection(SERVICE, service_url, source)
        trial = _try(admin, topic, info, messages, url, token)
    _told(show, found, trial, against_history)
    if not found["compatibility"] or trial.failures:
        raise click.exceptions.Exit(1)


@dataclass(frozen=True, slots=True)
class Trial:
    """The number of messages read, and those that couldn't be: id, version, reason."""

    read: int
    failures: list[dict[str, Any]]


def _told(show: Output, found: Found, trial: Trial, against_history: bool) -> None:
    if show.as_json:
        show.value({**found, "messagesRead": trial.read, "unreadable": trial.failures})
        return
    verdict = "compatible" if found["compatibility"] else "not compatible"
    click.echo(f"{verdict} under {found['schemaCompatibilityStrategy']}")
    for each in found["problems"]:
        click.echo(f"  {each['message']}")
    if against_history:
        click.echo(f"read {trial.read} retained messages, {len(trial.failures)} can't be decoded")
    for failure in trial.failures[:20]:
        click.echo(f"  {failure['id']} (version {failure['version']}): {failure['reason']}")


def _try(
    admin: Admin,
    topic: str,
    info: SchemaInfo,
    messages: int,
    service_url: str,
    token: TokenSource | None,
) -> Trial:
    from velaray.offline.schema_trial import reading_fails
    from velaray.sync.client import Client

    writers: dict[int, SchemaInfo | None] = {}
    read, failures = 0, []
    with Client(service_url, **client_options(token)) as client:
        for message in _oldest(admin, client, topic, messages):
            raw = message.schema_version()
            version = int.from_bytes(raw, "big") if raw else None
            if version is not None and version not in writers:
                writers[version] = _writer(admin, topic, version)
            writer = None if version is None else writers[version]
            key = message.partition_key_bytes()
            reason = reading_fails(info, writer, message.data(), key)
            read += 1
            if reason is not None:
                told = {"id": str(message.message_id()), "version": version, "reason": reason}
                failures.append(told)
    return Trial(read, failures)


def _writer(admin: Admin, topic: str, version: int) -> SchemaInfo | None:
    try:
        return _info(admin.schema(topic, version))
    except NotFound:
        return None


def _oldest(admin: Admin, client: Any, topic: str, most: int) -> Iterator[Any]:
    """The oldest messages of every partition."""
    from velaray import MessageId

    count = admin.partitions(topic)
    names = [f"{topic}-partition-{number}" for number in range(count)] if count else [topic]
    for name in names:
        with client.create_reader(name, MessageId.earliest) as reader:
            for _ in range(most):
                if not reader.has_message_available():
                    break
                yield reader.read_next(_PATIENCE_MS)
