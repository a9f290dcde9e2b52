"""The kit passes a sound machine and catches each way of being unsound."""

from collections.abc import Mapping

import pytest
from google.protobuf.message import Message
from hypothesis import given as examples
from hypothesis import strategies as st

from tests.actors.toy import Add, Drop, Look, Names, Toy
from velaray.actors.machine import Decision, InvariantViolation, Reason, Refusal
from velaray.actors.testing import drive, given
from velaray.events.codec import UnknownEventError
from velaray.events.events_pb2 import Event, TenantCreated, TenantDeleted

HERE = TenantCreated(tenant="a")


def test_a_history_chains_commands_and_expectations() -> None:
    (
        given(Toy(), HERE)
        .when(Add("b"), now_ms=7)
        .then(events=[TenantCreated(tenant="b")], reply=2, effects=["added b at 7"], blob=None)
        .when(Drop("a"))
        .then(events=[TenantDeleted(tenant="a")], reply=1, effects=[])
        .then_state(lambda state: state.names == ["b"])
        .when(Drop("a"))
        .then_refused(Reason.NOT_FOUND, "a")
        .when(Look())
        .then(events=[], reply=1)
    )


@pytest.mark.parametrize(
    "expectation",
    [
        lambda h: h.then(events=[]),
        lambda h: h.then(reply=3),
        lambda h: h.then(effects=[]),
        lambda h: h.then(blob=b"x"),
        lambda h: h.then_refused(Reason.NOT_FOUND),
        lambda h: h.then_state(lambda state: not state.names),
    ],
)
def test_a_wrong_expectation_fails_and_names_the_command(expectation) -> None:
    history = given(Toy(), HERE).when(Add("b"))
    with pytest.raises(AssertionError, match=r"after Add\(name='b'\)"):
        expectation(history)


def test_a_failure_shows_events_readably() -> None:
    with pytest.raises(AssertionError, match=r'expected: \[\]\s+actual: .*TenantCreated\(.*"b"'):
        given(Toy()).when(Add("b")).then(events=[])


def test_a_refusal_for_another_reason_fails() -> None:
    history = given(Toy(), HERE).when(Add("a"))
    with pytest.raises(AssertionError, match="expected a refusal NOT_FOUND"):
        history.then_refused(Reason.NOT_FOUND)
    with pytest.raises(AssertionError, match="expected a refusal ALREADY_EXISTS 'zzz'"):
        history.then_refused(Reason.ALREADY_EXISTS, "zzz")


def test_an_outcome_needs_a_command() -> None:
    with pytest.raises(AssertionError, match="call when"):
        given(Toy()).then(events=[])


class DecideWrites(Toy):
    def decide(self, state: Names, command: object, now_ms: int) -> Decision:
        state.names.append("leak")
        return Decision()


class SnapshotForgets(Toy):
    def snapshot(self, state: Names) -> Mapping[str, bytes]:
        return {"names": "\n".join(state.names[:1]).encode(), "ledgers": b""}


class RestoreForgets(Toy):
    def restore(self, segments: Mapping[str, bytes]) -> Names:
        return Names()


class Unchecked(Toy):
    def decide(self, state: Names, command: object, now_ms: int) -> Decision:
        assert isinstance(command, Add)
        return Decision((TenantCreated(tenant=command.name),))


class RefusesLoudly(Toy):
    def decide(self, state: Names, command: object, now_ms: int) -> Decision:
        return Decision(reply=Refusal(Reason.BUSY, "no"), effects=("bang",))


class WritesUnknown(Toy):
    def decide(self, state: Names, command: object, now_ms: int) -> Decision:
        return Decision((Event(),))


@pytest.mark.parametrize(
    ("machine", "error", "message"),
    [
        (DecideWrites(), AssertionError, "decide changed the state"),
        (SnapshotForgets(), AssertionError, r"restore\(snapshot\(state\)\) after"),
        (RestoreForgets(), AssertionError, "differs|differently|after restore"),
        (Unchecked(), InvariantViolation, "names are unique"),
        (RefusesLoudly(), AssertionError, "a refusal with"),
        (WritesUnknown(), UnknownEventError, "not a journaled event"),
    ],
)
def test_a_machine_that_breaks_an_invariant_is_caught(machine, error, message) -> None:
    with pytest.raises(error, match=message):
        drive(machine, [Add("a"), Add("b"), Add("a")])


class Opaque(Names):
    """A state that only its snapshots can be compared by."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Hides(Toy):
    """Keeps in the state what no snapshot carries, and lets ``shows`` depend on it."""

    def __init__(self, shows: str) -> None:
        self.shows = shows

    def initial(self) -> Names:
        return Opaque(ledgers=[-1])

    def snapshot(self, state: Names) -> Mapping[str, bytes]:
        return {"names": "\n".join(state.names).encode()}

    def restore(self, segments: Mapping[str, bytes]) -> Names:
        names = segments["names"].decode()
        return Opaque(names.split("\n") if names else [])

    def decide(self, state: Names, command: object, now_ms: int) -> Decision:
        if self.shows == "decide":
            return Decision(reply=len(state.ledgers))
        return super().decide(state, command, now_ms)

    def evolve(self, state: Names, event: Message) -> None:
        super().evolve(state, event)
        if self.shows == "evolve":
            state.names += ["hidden"] * len(state.ledgers)


@pytest.mark.parametrize(
    ("shows", "message"),
    [("decide", "after restore"), ("evolve", "a restored state evolves differently")],
)
def test_a_snapshot_that_misses_state_is_caught(shows, message) -> None:
    with pytest.raises(AssertionError, match=message):
        drive(Hides(shows), [Add("a")])


def test_an_event_that_reads_back_differently_is_caught(monkeypatch) -> None:
    monkeypatch.setattr("velaray.actors.testing.decode", lambda raw: TenantDeleted(tenant="a"))
    with pytest.raises(AssertionError, match="round trip"):
        given(Toy(), HERE)


def test_a_replay_that_diverges_is_caught() -> None:
    class Diverges(Toy):
        live = True

        def evolve(self, state: Names, event: Message) -> None:
            super().evolve(state, event)
            if not self.live:
                state.names.append("ghost")

    machine = Diverges()
    history = drive(machine, [Add("a"), Add("b")])
    machine.live = False
    with pytest.raises(AssertionError, match="replaying the first 1 events diverges"):
        history.verify_replay()


COMMANDS = st.lists(
    st.one_of(
        st.builds(Add, st.sampled_from("abc")),
        st.builds(Drop, st.sampled_from("abc")),
        st.just(Look()),
    ),
    max_size=30,
)


@examples(COMMANDS)
def test_random_histories_of_a_sound_machine_pass(commands) -> None:
    drive(Toy(), commands)
