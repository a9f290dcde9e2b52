"""A machine of a few lines: an ordered set of tenant names, for tests of kit and runtime."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf.message import Message

from velaray.actors.machine import Decision, Reason, refuse, require
from velaray.events.events_pb2 import LedgerOpened, TenantCreated, TenantDeleted


@dataclass(frozen=True, slots=True)
class Add:
    name: str


@dataclass(frozen=True, slots=True)
class Drop:
    name: str


@dataclass(frozen=True, slots=True)
class Look:
    """Answers how many names there are; no events."""


@dataclass(frozen=True, slots=True)
class Explode:
    """A command whose decision raises."""


@dataclass(slots=True)
class Names:
    names: list[str] = field(default_factory=list)
    ledgers: list[int] = field(default_factory=list)


class Toy:
    def initial(self) -> Names:
        return Names()

    def decide(self, state: Names, command: object, now_ms: int) -> Decision:
        match command:
            case Add(name) if name in state.names:
                return refuse(Reason.ALREADY_EXISTS, name)
            case Add(name):
                count = len(state.names) + 1
                return Decision(
                    (TenantCreated(tenant=name),), count, (f"added {name} at {now_ms}",)
                )
            case Drop(name) if name not in state.names:
                return refuse(Reason.NOT_FOUND, name)
            case Drop(name):
                return Decision((TenantDeleted(tenant=name),), len(state.names) - 1)
            case Look():
                return Decision(reply=len(state.names))
        raise TypeError(f"the toy knows no {command!r}")

    def evolve(self, state: Names, event: Message) -> None:
        match event:
            case LedgerOpened(ledger_id=ledger_id):
                state.ledgers.append(ledger_id)
            case TenantCreated(tenant=name):
                state.names.append(name)
            case TenantDeleted(tenant=name):
                state.names.remove(name)

    def check(self, state: Names) -> None:
        require(len(set(state.names)) == len(state.names), "names are unique")

    def snapshot(self, state: Names) -> Mapping[str, bytes]:
        return {
            "names": "\n".join(state.names).encode(),
            "ledgers": " ".join(map(str, state.ledgers)).encode(),
        }

    def restore(self, segments: Mapping[str, bytes]) -> Names:
        names = segments["names"].decode()
        return Names(
            names.split("\n") if names else [],
            [int(number) for number in segments["ledgers"].decode().split()],
        )
