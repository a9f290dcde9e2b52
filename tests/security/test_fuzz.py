"""The short run of the fuzzer of rights, and proof that its judge condemns."""

from __future__ import annotations

import pytest

from tests.security.fuzz import Chance, Commands, judge_status, run
from tests.security.support import TOPIC
from velaray.wire import pulsar_pb2 as pb


@pytest.mark.slow
def test_nothing_does_more_than_its_role_may() -> None:
    counts = run(commands=600, rounds=1, seed=1)
    assert len(counts) > 18
    assert counts["requests"] > 1000


def test_the_judge_condemns_what_goes_too_far() -> None:
    for role, command in (
        ("nobody", pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)),
        ("reader", pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)),
        ("boss", pb.CommandLookupTopic(topic="persistent://other/things/t", request_id=1)),
    ):
        commands = Commands(role, Chance(1))
        commands.asked[1] = command
        commands.judge(pb.CommandError(request_id=1, error=pb.AuthorizationError, message=""))
        with pytest.raises(AssertionError):
            commands.judge(pb.CommandSuccess(request_id=1))
    with pytest.raises(AssertionError):
        judge_status("nobody", "GET", "/admin/v2/tenants", 200, "[]")
