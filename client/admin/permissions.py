"""Administration of what roles may do."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from annotated_types import MinLen

from velaray.client.admin.calls import call
from velaray.client.admin.connection import ModeT, Resource
from velaray.client.admin.namespaces import NAMESPACE, TOPIC
from velaray.client.admin.operations import Operation, reads
from velaray.client.admin.paths import of_namespace, of_topic

Names = Annotated[list[str], MinLen(1)]
ByRole = dict[str, list[str]]

_SUBSCRIPTIONS = f"{NAMESPACE}/permissions/subscription"

OF_NAMESPACE = reads(f"{NAMESPACE}/permissions", ByRole)
GRANT_ON_NAMESPACE = Operation("POST", f"{NAMESPACE}/permissions/{{role}}", body=Names)
REVOKE_ON_NAMESPACE = Operation("DELETE", f"{NAMESPACE}/permissions/{{role}}")
OF_TOPIC = reads(f"{TOPIC}/permissions", ByRole)
GRANT_ON_TOPIC = Operation("POST", f"{TOPIC}/permissions/{{role}}", body=Names)
REVOKE_ON_TOPIC = Operation("DELETE", f"{TOPIC}/permissions/{{role}}")
OF_SUBSCRIPTIONS = reads(_SUBSCRIPTIONS, ByRole)
GRANT_ON_SUBSCRIPTION = Operation("POST", f"{_SUBSCRIPTIONS}/{{subscription}}", body=Names)
REVOKE_ON_SUBSCRIPTION = Operation("DELETE", f"{NAMESPACE}/permissions/{{subscription}}/{{role}}")


class Permissions(Resource[ModeT]):
    """What roles may do in namespaces and topics.

    ``where`` is ``tenant/namespace`` or a topic. Actions are produce and consume; Pulsar's other
    ones (functions, packages, sinks, sources) are kept without effect.
    """

    @call
    async def __call__(self, where: str) -> ByRole:
        """Return the actions by role. Those of a topic include those of its namespace."""
        if _is_topic(where):
            return dict(await self._ask(OF_TOPIC, of_topic(where)))
        return dict(await self._ask(OF_NAMESPACE, of_namespace(where)))

    @call
    async def grant(self, where: str, role: str, actions: Collection[str]) -> None:
        """Let a role take these actions in ``where``, in place of earlier ones."""
        body = list(actions)
        if _is_topic(where):
            await self._ask(GRANT_ON_TOPIC, {**of_topic(where), "role": role}, body=body)
        else:
            await self._ask(GRANT_ON_NAMESPACE, {**of_namespace(where), "role": role}, body=body)

    @call
    async def revoke(self, where: str, role: str) -> None:
        """Let a role take no action in ``where``. Its producers and consumers are closed.

        Raises `PreconditionFailed` if nothing was granted to it on a topic itself.
        """
        if _is_topic(where):
            await self._ask(REVOKE_ON_TOPIC, {**of_topic(where), "role": role})
        else:
            await self._ask(REVOKE_ON_NAMESPACE, {**of_namespace(where), "role": role})

    @call
    async def of_subscriptions(self, namespace: str) -> ByRole:
        """Return the only roles that may use a subscription, by subscription."""
        return dict(await self._ask(OF_SUBSCRIPTIONS, of_namespace(namespace)))

    @call
    async def grant_subscription(
        self, namespace: str, subscription: str, roles: Collection[str]
    ) -> None:
        """Let only these roles, and those of earlier grants, use a subscription."""
        variables = {**of_namespace(namespace), "subscription": subscription}
        await self._ask(GRANT_ON_SUBSCRIPTION, variables, body=list(roles))

    @call
    async def revoke_subscription(self, namespace: str, subscription: str, role: str) -> None:
        """Take a role off the list of a subscription. The last one ends the list."""
        variables = {**of_namespace(namespace), "subscription": subscription, "role": role}
        await self._ask(REVOKE_ON_SUBSCRIPTION, variables)


def _is_topic(where: str) -> bool:
    return "://" in where or where.count("/") != 1
