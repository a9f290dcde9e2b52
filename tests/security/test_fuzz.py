"""The short run of the fuzzer of rights, and proof that its judge condemns."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.security.any_command import KINDS, any_command
from tests.security.fuzz import (
    TEXTS,
    Chance,
    Commands,
    guarded_process,
    judge_status,
    notice,
    run,
)
from tests.security.support import TOPIC
from velaray.broker.authorisation.rules import COMMANDS
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Send
from velaray.wire.commands import command as encoded


@pytest.mark.slow
def test_nothing_does_more_than_its_role_may() -> None:
    counts = run(commands=600, rounds=1, seed=1)
    assert len(counts) > 18
    assert counts["requests"] > 1000


@pytest.mark.slow
def test_a_neighbour_is_timed_under_a_flood() -> None:
    with guarded_process() as (server, bird):
        noticed = asyncio.run(notice(server, bird, commands_per_s=200, rounds=50))
    assert len(noticed.dummy_s) == len(noticed.cluster_s) == 50
    assert str(noticed).count("commands/s") == 2


def test_commands_of_every_kind_can_be_sent() -> None:
    chance = Chance(1)
    kinds = set()
    for number in range(2000):
        command = any_command(chance, number, TEXTS)
        assert encoded(command)
        kinds.add(type(command))
    assert kinds == set(KINDS)
    assert {kind for kind in COMMANDS if kind is not Send} == kinds


def test_the_judge_condemns_what_goes_too_far() -> None:
    for role, command in (
        ("nobody", pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)),
        ("reader", pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)),
        ("boss", pb.CommandLookupTopic(topic="persistent://other/things/t", request_id=1)),
    ):
        commands = Commands(role, Chance(1), Counter())
        commands.asked[1] = command
        commands.judge(pb.CommandError(request_id=1, error=pb.AuthorizationError, message=""))
        with pytest.raises(AssertionError):
            commands.judge(pb.CommandSuccess(request_id=1))
    with pytest.raises(AssertionError):
        judge_status("nobody", "GET", "/admin/v2/tenants", 200, "[]")
