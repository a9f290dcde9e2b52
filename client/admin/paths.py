"""The variables of paths of the REST interface, and the forms of ids."""

from __future__ import annotations

from collections.abc import Mapping

from velaray.client.admin.errors import AdminError, Invalid
from velaray.client.message_id import MessageId
from velaray.events.ids import TopicName


def of_namespace(namespace: str) -> dict[str, str]:
    """The variables that name a namespace. Raises `Invalid`."""
    tenant, separator, name = namespace.partition("/")
    if not separator:
        raise Invalid(422, f"not a namespace: {namespace!r}; write tenant/namespace")
    return {"tenant": tenant, "namespace": name}


def of_topic(topic: str) -> dict[str, str]:
    """The variables that name a topic or partition. Raises `AdminError` for a non-persistent one,
    `InvalidNameError` for what isn't a topic."""
    name = TopicName.parse(topic)
    if name.domain != "persistent":
        raise AdminError(501, f"velaray doesn't support non-persistent topics: {topic}")
    local = str(name).rpartition("/")[2]
    return {"tenant": name.tenant, "namespace": name.namespace, "topic": local}


def of_subscription(topic: str, subscription: str) -> dict[str, str]:
    """The variables that name a subscription. Raises as `of_topic` does."""
    return {**of_topic(topic), "subscription": subscription}


def message_id(found: Mapping[str, int]) -> MessageId:
    """The id that an answer contains."""
    return MessageId(found["partitionIndex"], found["ledgerId"], found["entryId"])


def id_body(found: MessageId) -> dict[str, int]:
    """An id as the body of a request."""
    return {
        "ledgerId": found.ledger_id(),
        "entryId": found.entry_id(),
        "partitionIndex": found.partition(),
    }
