"""Administration of namespaces, and of the policies of every level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from typing_extensions import TypedDict

from velaray.client.admin.calls import call
from velaray.client.admin.connection import ModeT, Resource
from velaray.client.admin.operations import APPLIED, FORCE, V2, AnyObject, Operation, reads
from velaray.client.admin.paths import of_namespace, of_topic

NAMESPACE = f"{V2}/namespaces/{{tenant}}/{{namespace}}"
TOPIC = f"{V2}/persistent/{{tenant}}/{{namespace}}/{{topic}}"

LIST = reads(f"{V2}/namespaces/{{tenant}}", list[str])
GET = reads(NAMESPACE, AnyObject)
CREATE = Operation("PUT", NAMESPACE, body=AnyObject)
DELETE = Operation("DELETE", NAMESPACE, (FORCE,))


class Erased(TypedDict):
    """An erasure: the HMAC that stands for the key or the subject, and whether there was one."""

    digest: str
    existed: bool


ERASE = Operation("POST", f"{NAMESPACE}/erasures", body=AnyObject, answers={200: Erased})


@dataclass(frozen=True, slots=True)
class PolicyOperations:
    """The operations of the policies of one level, below the path of a namespace or a topic."""

    base: str

    @property
    def all(self) -> Operation:
        """Answer the policies that are set there, by name."""
        return reads(f"{self.base}/policies", AnyObject, APPLIED)

    @property
    def get(self) -> Operation:
        """Answer one of them."""
        return Operation("GET", self._one, answers={200: Any, 204: None})

    def set(self, method: str = "PUT") -> Operation:
        """Set one of them. PUT and POST do the same."""
        return Operation(method, self._one, body=Any)

    @property
    def remove(self) -> Operation:
        """Remove one of them."""
        return Operation("DELETE", self._one)

    @property
    def _one(self) -> str:
        return f"{self.base}/policies/{{policy}}"


LEVELS = {
    "cluster": PolicyOperations(V2),
    "namespace": PolicyOperations(NAMESPACE),
    "topic": PolicyOperations(TOPIC),
}


def get_policy(base: str, path: str) -> Operation:
    """Read a policy of a namespace or topic by Pulsar's path for it."""
    return Operation("GET", f"{base}/{path}", (APPLIED,), answers={200: Any, 204: None})


def set_policy(base: str, path: str, method: str = "POST") -> Operation:
    """Set such a policy. PUT and POST do the same."""
    return Operation(method, f"{base}/{path}", body=Any)


def remove_policy(base: str, path: str) -> Operation:
    """Remove such a policy."""
    return Operation("DELETE", f"{base}/{path}")


class Namespaces(Resource[ModeT]):
    """The namespaces of tenants."""

    @call
    async def __call__(self, tenant: str) -> list[str]:
        """Return a tenant's namespaces, as ``tenant/namespace``."""
        return list(await self._ask(LIST, {"tenant": tenant}))

    @call
    async def create(self, namespace: str) -> None:
        """Create ``tenant/namespace``."""
        await self._ask(CREATE, of_namespace(namespace))

    @call
    async def delete(self, namespace: str, *, force: bool = False) -> None:
        """Delete ``tenant/namespace``. Raises `Conflict` while it has topics, unless ``force``.

        With ``force`` all its topics are deleted at once, even while clients are connected.
        """
        await self._ask(DELETE, of_namespace(namespace), {FORCE: force})

    @call
    async def erase(
        self, namespace: str, *, key: str | None = None, subject: str | None = None
    ) -> dict[str, Any]:
        """Erase all messages of a key, or of a subject, in an erasable ``tenant/namespace``.

        It takes some seconds. After it, no process can read them, nor any ledger, archive or
        backup. ``existed`` of the answer is false if there were none. It can be repeated, and can't
        be undone. Raises `Conflict` if messages of the namespace can't be erased by this.
        """
        if (key is None) == (subject is None):
            raise ValueError("give a key or a subject")
        body = {"subject": subject} if key is None else {"key": key}
        return dict(await self._ask(ERASE, of_namespace(namespace), body=body))


class Policies(Resource[ModeT]):
    """The policies of the cluster, of namespaces and of topics."""

    @call
    async def __call__(self, namespace: str) -> dict[str, Any]:
        """Return the policies that are set on ``tenant/namespace``, in the fields of Pulsar's
        namespace document."""
        return dict(await self._ask(GET, of_namespace(namespace)))

    @call
    async def get(self, namespace: str, name: str, *, applied: bool = False) -> Any:
        """Return a policy of ``tenant/namespace``; None if it isn't set there.

        With ``applied`` return the value in effect, whichever level sets it.
        """
        operation = get_policy(NAMESPACE, name)
        return await self._ask(operation, of_namespace(namespace), {APPLIED: applied})

    @call
    async def set(self, namespace: str, name: str, value: Any) -> None:
        """Set a policy by its name in Pulsar's REST interface, such as ``retention``."""
        await self._ask(set_policy(NAMESPACE, name), of_namespace(namespace), body=value)

    @call
    async def remove(self, namespace: str, name: str) -> None:
        """Remove a policy, so that the value of the wider level applies."""
        await self._ask(remove_policy(NAMESPACE, name), of_namespace(namespace))

    @call
    async def get_all(self, where: str, *, applied: bool = False) -> dict[str, Any]:
        """Return the policies that are set on ``where``, by name; with ``applied`` those in effect.

        ``where`` is "cluster", ``tenant/namespace`` or a topic.
        """
        operations, variables = _level(where)
        return dict(await self._ask(operations.all, variables, {APPLIED: applied}))

    @call
    async def set_on(self, where: str, name: str, value: Any) -> None:
        """Set a policy of ``where`` (see `get_all`). Running topics apply it at once."""
        operations, variables = _level(where)
        await self._ask(operations.set(), {**variables, "policy": name}, body=value)

    @call
    async def remove_from(self, where: str, name: str) -> None:
        """Remove a policy of ``where``, so that the value of the wider level applies."""
        operations, variables = _level(where)
        await self._ask(operations.remove, {**variables, "policy": name})


def _level(where: str) -> tuple[PolicyOperations, dict[str, str]]:
    if where == "cluster":
        return LEVELS["cluster"], {}
    if "://" in where or where.count("/") != 1:
        return LEVELS["topic"], of_topic(where)
    return LEVELS["namespace"], of_namespace(where)
