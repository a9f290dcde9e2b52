"""The paths of resources below the REST interface, and the forms of ids."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from velaray.client.admin.errors import Invalid
from velaray.client.message_id import MessageId
from velaray.events.ids import TopicName


def path_of(*parts: str) -> str:
    """Return a path of quoted parts."""
    return "/".join(quote(part, safe="") for part in parts)


def split(namespace: str) -> tuple[str, str]:
    """Return tenant and name of a namespace. Raises `Invalid`."""
    tenant, separator, name = namespace.partition("/")
    if not separator:
        raise Invalid(422, f"not a namespace: {namespace!r}; write tenant/namespace")
    return tenant, name


def namespace_path(namespace: str, *parts: str) -> str:
    """Return the path of ``tenant/namespace``, or below it."""
    return path_of("namespaces", *split(namespace), *parts)


def local_path(topic: str) -> str:
    """Return ``tenant/namespace/name`` of a topic, quoted."""
    name = TopicName.parse(topic)
    return path_of(name.tenant, name.namespace, str(name).rpartition("/")[2])


def topic_path(topic: str) -> str:
    """Return the path of a topic."""
    return f"{path_of(TopicName.parse(topic).domain)}/{local_path(topic)}"


def subscription_path(topic: str, subscription: str) -> str:
    """Return the path of a subscription."""
    return f"{topic_path(topic)}/{path_of('subscription', subscription)}"


def message_id(found: Mapping[str, int]) -> MessageId:
    """Return the id that an answer contains."""
    return MessageId(found["partitionIndex"], found["ledgerId"], found["entryId"])


def id_body(found: MessageId) -> dict[str, int]:
    """Return an id as the body of a request."""
    return {
        "ledgerId": found.ledger_id(),
        "entryId": found.entry_id(),
        "partitionIndex": found.partition(),
    }


def force_query(force: bool) -> dict[str, str] | None:
    """Return the query of a deletion."""
    return {"force": "true"} if force else None
