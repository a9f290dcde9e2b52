"""The check of a connection's commands before their handlers see them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from velaray.actors.catalog.state import Scope
from velaray.broker.authorisation.grant_watch import GrantWatch
from velaray.broker.authorisation.grants import Demand, Right
from velaray.broker.authorisation.rules import COMMANDS, Rule, no_demands
from velaray.broker.wire_errors import code_of
from velaray.events.ids import InvalidNameError, TopicName
from velaray.topology.auth import AuthenticationFailed
from velaray.topology.config import AuthorisationSettings
from velaray.topology.rpc import reason_of
from velaray.topology.transient import TRANSIENT_OR_STORE
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.connection import WireConnection

_CHECKING = "authorisation"
"""The reason for which the connection isn't read while the catalog is asked."""


class Client(Protocol):
    """The connection, and the tasks of its requests."""

    connection: WireConnection

    def spawn(self, work: Coroutine[Any, Any, None]) -> Any:
        """Run work until it ends or the connection is closed."""
        ...


def roles_of(settings: AuthorisationSettings, role: str, original: str) -> tuple[str, ...]:
    """The roles that must all have a right: the client's own, and the ``original`` one that a proxy
    names ("": none).

    Raises `AuthenticationFailed` if a proxy names none, or a client that is no proxy names one.
    """
    if role in settings.proxy_roles:
        if not original or original in settings.proxy_roles:
            raise AuthenticationFailed(f"proxy role {role!r} must name the role of its client")
        return role, original
    if original and original != role:
        raise AuthenticationFailed(f"role {role!r} is no proxy: it can't speak for {original!r}")
    return (role,)


class Gate:
    """Lets the commands of one connection pass to their handlers if its roles have the rights.

    While the catalog is asked, the connection isn't read, so commands keep their order. SEND and
    other commands about what the connection has opened are never held up.
    """

    def __init__(self, client: Client, watch: GrantWatch, roles: tuple[str, ...]) -> None:
        self._client = client
        self._watch = watch
        self.roles = roles

    def pass_on(self, command: Any, handle: Callable[[Any], object]) -> None:
        """Handle a command, or refuse it."""
        rule = COMMANDS[type(command)]
        if rule.demands is no_demands:
            handle(command)
            return
        try:
            demands = list(rule.demands(command))
        except InvalidNameError:
            handle(command)  # which refuses the name
            return
        roles = self._roles(command)
        for demand in demands:
            decision = self._watch.decide(roles, demand)
            if decision is None:
                self._client.connection.pause_reading(_CHECKING)
                self._client.spawn(self._ask(rule, roles, command, handle))
                return
            if not decision:
                self._refuse(rule, command, roles, demand)
                return
        handle(command)

    def _roles(self, command: Any) -> tuple[str, ...]:
        """The connection's roles. A proxy may name another client in each look-up."""
        original: str = getattr(command, "original_principal", "")
        if original and len(self.roles) > 1:
            return self.roles[0], original
        return self.roles

    async def _ask(
        self, rule: Rule, roles: tuple[str, ...], command: Any, handle: Callable[[Any], object]
    ) -> None:
        try:
            lacking = await self._lacking(roles, rule.demands(command))
        except TRANSIENT_OR_STORE as error:
            self._client.connection.send(rule.refuse(command, code_of(error), reason_of(error)))
        else:
            if lacking is None:
                handle(command)
            else:
                self._refuse(rule, command, roles, lacking)
        finally:
            self._client.connection.resume_reading(_CHECKING)

    async def _lacking(self, roles: tuple[str, ...], demands: Iterable[Demand]) -> Demand | None:
        for demand in demands:
            if not await self._watch.ask(roles, demand):
                return demand
        return None

    def _refuse(self, rule: Rule, command: Any, roles: tuple[str, ...], demand: Demand) -> None:
        text = demand.refusal(roles)
        self._client.connection.send(rule.refuse(command, pb.AuthorizationError, text))

    async def may_produce(self, topic: TopicName) -> bool:
        """Whether an open producer's right still exists. Raises what calls of actors raise."""
        return await self._watch.ask(self.roles, Demand(Right.PRODUCE, Scope.of_topic(topic)))

    async def may_consume(self, topic: TopicName, subscription: str) -> bool:
        """Whether an open consumer's right still exists. Raises what calls of actors raise."""
        demand = Demand(Right.CONSUME, Scope.of_topic(topic), subscription)
        return await self._watch.ask(self.roles, demand)
