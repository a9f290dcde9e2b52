"""The table of rights: complete, and without rows for what doesn't exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.local_cluster import LocalCluster
from velaray.admin.api import routes_by_module
from velaray.admin.authorisation import HANDLE_CALLS, OPERATIONS, all_rules, right_of
from velaray.admin.handle_calls import _KINDS
from velaray.broker.authorisation.grants import Right
from velaray.broker.authorisation.rules import COMMANDS, no_demands
from velaray.broker.client_session import ClientSession
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.broker.proxy.proxy import ProxySession
from velaray.client.admin.operations import Operation
from velaray.events.ids import ActorKey, TopicName
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Send

BY_CLIENTS = {Right.CONNECT, Right.LOOKUP, Right.PRODUCE, Right.CONSUME, Right.OPENED}


def test_every_command_has_a_rule() -> None:
    kinds = {
        field.message_type.name
        for field in pb.BaseCommand.DESCRIPTOR.fields
        if field.message_type is not None
    }
    named = {kind.__name__ for kind in COMMANDS}
    assert kinds - {"CommandSend"} == named - {"Send"}
    assert "Send" in named


def test_commands_are_served_if_a_client_may_have_the_right(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        key = ActorKey.of_partition(TopicName.parse("t"), cluster.run(_created(cluster)))
        cluster.run(cluster.actor_system.address(key))
        partition = cluster.actor_system.actors[key]
        assert isinstance(partition, PartitionActor)

        async def handled() -> set[type]:
            sessions = ClientSession(partition.listener), ProxySession(cluster.proxy)
            return {kind for session in sessions for kind in session.handlers}

        found = cluster.run(handled())
    by_the_base = {Send, pb.CommandConnect, pb.CommandAuthResponse, pb.CommandPing, pb.CommandPong}
    allowed = {kind for kind, rule in COMMANDS.items() if rule.right in BY_CLIENTS}
    assert found | by_the_base == allowed


async def _created(cluster: LocalCluster) -> int:
    from velaray.broker.catalog.messages import EnsureTopic

    found = await cluster.actor_system.request(ActorKey.catalog(), EnsureTopic("t"))
    return int(found["incarnation"])


def test_rights_in_a_place_say_where() -> None:
    for command, rule in COMMANDS.items():
        somewhere = rule.right in (Right.LOOKUP, Right.PRODUCE, Right.CONSUME)
        # A transaction may begin with participants, and needs rights there.
        somewhere = somewhere or command is pb.CommandNewTxn
        assert somewhere == (rule.demands is not no_demands)


def test_every_operation_has_a_rule_and_every_rule_an_operation() -> None:
    names = {name for kind, name, _ in all_rules(routes_by_module()) if kind == "operation"}
    assert OPERATIONS.keys() <= names
    assert len(names) > 500


def test_an_operation_without_a_rule_is_not_served() -> None:
    with pytest.raises(LookupError):
        right_of(Operation("GET", "/admin/v2/new"), "velaray.admin.topics")
    with pytest.raises(LookupError):
        right_of(Operation("GET", "/admin/v2/new"), "velaray.admin.policies")


def test_every_call_of_a_handle_has_a_rule() -> None:
    assert {kind: set(calls.ALLOWED) for kind, calls in _KINDS.items()} == {
        kind: set(methods) for kind, methods in HANDLE_CALLS.items()
    }


@pytest.mark.parametrize("right", [Right.ADMINISTER, Right.LOOKUP, Right.PRODUCE, Right.CONSUME])
def test_rights_in_a_place_are_for_paths_with_a_tenant(right: Right) -> None:
    for name, needed in OPERATIONS.items():
        assert needed is not right or "{tenant}" in name
