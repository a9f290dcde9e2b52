"""Which actor of a simulated host a callback belongs to.

Tasks and timers inherit the context in which they are made. So whatever enters an actor, a call
over RPC or a command of a client, is put into the context of its activation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.sim.hosts_store import watch_writers
from tests.sim.hosts_watch import Watch
from tests.sim.loop import NODE, Node, current_node, within
from velaray.broker.client_listener import ClientListener
from velaray.broker.client_session import ClientSession
from velaray.broker.coordinator.coordinator_handlers import CoordinatorHandlers
from velaray.broker.partition.session.producer import ConnectedProducer
from velaray.broker.policy_watch import PolicyWatch
from velaray.topology import hosted_actors
from velaray.topology.actor_system import Address
from velaray.topology.hosted_actors import HostedActors
from velaray.topology.rpc import RpcConnection
from velaray.topology.rpc_server import RpcListener, RpcServer
from velaray.wire.connection import WireConnection

Replace = Callable[[Any, str, Any], None]


def watch_hosts(replace: Replace, watch: Watch) -> None:
    """Give everything that an actor does its context, and have ``watch`` know of it."""
    _watch_lives(replace)
    _watch_rpc(replace, watch)
    _watch_sessions(replace)
    _watch_clients(replace, watch)
    watch_writers(replace)


def node_of(actor: Any) -> Node:
    """The activation of an actor."""
    node: Node = actor.sim_node
    return node


def _watch_lives(replace: Replace) -> None:
    start_actor, address = hosted_actors.start_actor, HostedActors.address
    opened, listened = ClientListener.open, RpcListener.open
    connection = PolicyWatch.connection

    async def started(actor: Any) -> Any:
        node: Any = node_of(actor)
        done = False
        try:
            found = await start_actor(actor)
            done = True
        finally:
            node.condemned = node.condemned or not done
        node.actor = actor
        return found

    async def activated(self: HostedActors, key: Any) -> Any:
        with within(current_node().process):
            return await address(self, key)

    async def client_listener_opened(self: ClientListener, address: Address) -> Address:
        with within(current_node().process):
            return await opened(self, address)

    async def policy_watch_connected(self: PolicyWatch, actor_system: Any) -> RpcConnection:
        with within(current_node().process):
            return await connection(self, actor_system)

    async def rpc_listener_opened(self: RpcListener, host: str) -> int:
        with within(current_node().process):
            return await listened(self, host)

    replace(hosted_actors, "start_actor", started)
    replace(HostedActors, "address", activated)
    replace(ClientListener, "open", client_listener_opened)
    replace(RpcListener, "open", rpc_listener_opened)
    replace(PolicyWatch, "connection", policy_watch_connected)


def _watch_rpc(replace: Replace, watch: Watch) -> None:
    made, served, hello = RpcConnection.__init__, RpcServer.__init__, RpcConnection._on_hello
    flush = RpcConnection._flush

    def connection_made(self: Any, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        node = current_node()
        self.sim_node = node if self._acceptor is None else node.process

    def server_made(self: Any, *arguments: Any) -> None:
        served(self, *arguments)
        self.sim_node = current_node()

    def greeted(self: Any, message: Any) -> None:
        hello(self, message)
        self.sim_node = self._served.sim_node

    def flushed(self: Any) -> None:
        transport = self._transport
        if self._outgoing and transport is not None and not transport.is_closing():
            watch.answers(self.sim_node, "sends over an RPC connection")
        flush(self)

    replace(RpcConnection, "__init__", connection_made)
    replace(RpcServer, "__init__", server_made)
    replace(RpcConnection, "_on_hello", greeted)
    replace(RpcConnection, "_flush", flushed)
    for name in (
        *("connection_made", "connection_lost", "_on_notice", "_on_request", "_on_response"),
        *("_look", "_send_frame"),
    ):
        replace(RpcConnection, name, _in_its_context(getattr(RpcConnection, name)))


def _in_its_context(method: Any) -> Any:
    def entered(self: Any, *arguments: Any) -> Any:
        with within(self.sim_node):
            return method(self, *arguments)

    return entered


def _watch_sessions(replace: Replace) -> None:
    frame, find, sibling = ClientSession.on_frame, ClientListener.find, ClientListener.find_sibling
    sends, run = ClientSession.on_sends, CoordinatorHandlers._run

    def target(session: Any, command: Any) -> Any:
        """The partition that a command is for, if the connection knows it."""
        if hasattr(command, "producer_id"):
            found = session._producer_table.connected.get(command.producer_id)
        elif hasattr(command, "consumer_id"):
            found = session._consumer_table.get(command.consumer_id)
        else:
            return None
        return None if found is None else found.partition.availability

    def on_frame(self: Any, connection: Any, command: Any, entry: Any) -> None:
        partition = target(self, command)
        if partition is None:
            frame(self, connection, command, entry)
            return
        with within(node_of(partition)):
            frame(self, connection, command, entry)

    def on_sends(self: Any, connection: Any, run: Any) -> bool:
        partition = target(self, run)
        if partition is None:
            return bool(sends(self, connection, run))
        with within(node_of(partition)):
            return bool(sends(self, connection, run))

    def found(find: Any) -> Any:
        def finding(self: Any, topic: Any) -> Any:
            partition = find(self, topic)
            NODE.set(node_of(partition.availability))  # for the rest of the request's task
            return partition

        return finding

    def ran(self: Any, work: Any, command: Any, number: int, answer: Any) -> None:
        coordinator = self._coordinators.find_coordinator(number)
        if coordinator is None:
            run(self, work, command, number, answer)
            return
        with within(node_of(coordinator)):
            run(self, work, command, number, answer)

    replace(ClientSession, "on_frame", on_frame)
    replace(ClientSession, "on_sends", on_sends)
    replace(ClientListener, "find", found(find))
    replace(ClientListener, "find_sibling", found(sibling))
    replace(CoordinatorHandlers, "_run", ran)


def _watch_clients(replace: Replace, watch: Watch) -> None:
    write, write_two = WireConnection.write, WireConnection.write_two
    stored, stored_run = ConnectedProducer.stored, ConnectedProducer.stored_run

    def closing(close: Any) -> Any:
        def closed(self: Any, error: Any = None) -> None:
            session = None if self.closed else self.handler
            if isinstance(session, ClientSession) and not session._registry.ended:
                watch.closes(session, error)
            close(self, error)

        return closed

    def wrote(self: Any, frame: Any) -> None:
        if not self.closed:
            watch.wrote("sends bytes to a client")
        write(self, frame)

    def wrote_two(self: Any, head: Any, rest: Any) -> None:
        if not self.closed:
            watch.wrote("sends an entry")
        write_two(self, head, rest)

    def receipt(self: Any, send: Any, position: Any) -> None:
        if not self.connection.closed:
            watch.answers(node_of(self.partition.availability), "sends a receipt")
        stored(self, send, position)

    def receipts(self: Any, run: Any, first: Any) -> None:
        if not self.connection.closed:
            watch.answers(node_of(self.partition.availability), "sends receipts")
        stored_run(self, run, first)

    replace(WireConnection, "close", closing(WireConnection.close))
    replace(WireConnection, "abort", closing(WireConnection.abort))
    replace(WireConnection, "write", wrote)
    replace(WireConnection, "write_two", wrote_two)
    replace(ConnectedProducer, "stored", receipt)
    replace(ConnectedProducer, "stored_run", receipts)
