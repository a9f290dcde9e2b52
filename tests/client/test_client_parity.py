"""The synchronous and the asyncio classes have the same methods, and close as context managers."""

import asyncio
import inspect

import pytest

import velaray
import velaray.aio
from velaray.client.closing import AsyncClosing, Closing
from velaray.client.commit_sequence import CommitSequence as AioCommitSequence
from velaray.sync.commit_sequence import CommitSequence

PAIRS = [
    (velaray.Client, velaray.aio.Client),
    (velaray.Producer, velaray.aio.Producer),
    (velaray.Consumer, velaray.aio.Consumer),
    (velaray.Reader, velaray.aio.Reader),
    (velaray.TableView, velaray.aio.TableView),
    (velaray.Transaction, velaray.aio.Transaction),
    (CommitSequence, AioCommitSequence),
]

# Methods of one face only. Those of the asyncio face are for the client, not for users.
ONLY_SYNCHRONOUS = {"send_async", "transaction", "listen", "abandon"}
ONLY_ASYNCIO = {
    "Client": {"abort", "adopt", "forget", "probe"},
    "Producer": {"start", "stop", "submit", "submit_in", "next_part"},
    "Consumer": {"start", "stop"},
    "Reader": {"start", "stop"},
    "TableView": {"start", "stop"},
    "Transaction": {
        *("belongs_to", "check", "check_open", "hold", "join_subscription", "join_topic", "lost"),
        *("release", "run", "send", "when_ended"),
    },
    "CommitSequence": set(),
}

# Parameters that differ: the name or the default of Pulsar's client of that kind.
DIFFERENT = {
    ("Client", "create_producer"),
    ("Client", "subscribe"),
    ("Client", "new_transaction"),
    ("Producer", "send"),
}

# Users implement these classes, and the client closes their objects.
IMPLEMENTED_BY_USERS = {
    velaray.ConsumerInterceptor,
    velaray.ProducerInterceptor,
    velaray.ServiceInfoProvider,
}


def methods(kind: type) -> dict[str, object]:
    return {
        name: value
        for name, value in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def parameters(method: object) -> list[tuple[str, object, object]]:
    found = inspect.signature(method).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


@pytest.mark.parametrize(("blocking", "aio"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_clients_have_the_same_methods(blocking: type, aio: type) -> None:
    mine, others = methods(blocking), methods(aio)
    assert set(mine) - set(others) <= ONLY_SYNCHRONOUS
    assert set(others) - set(mine) == ONLY_ASYNCIO[aio.__name__]
    for name in mine.keys() & others.keys():
        if (blocking.__name__, name) not in DIFFERENT:
            assert parameters(mine[name]) == parameters(others[name]), name


@pytest.mark.parametrize(("blocking", "aio"), PAIRS, ids=lambda kind: kind.__name__)
def test_every_method_is_documented_in_both_clients(blocking: type, aio: type) -> None:
    for kind in (blocking, aio):
        for name, method in methods(kind).items():
            assert inspect.getdoc(method), f"{kind}.{name}"


def test_no_method_of_the_synchronous_client_is_a_coroutine() -> None:
    for kind, _ in PAIRS:
        for name, method in methods(kind).items():
            assert not inspect.iscoroutinefunction(method), f"{kind}.{name}"


def test_closable_objects_are_context_managers() -> None:
    public = [getattr(velaray, name) for name in dir(velaray)]
    public += [getattr(velaray.aio, name) for name in velaray.aio.__all__]
    closable = {
        kind
        for kind in public
        if inspect.isclass(kind) and (hasattr(kind, "close") or hasattr(kind, "stop"))
    }
    assert closable >= {kind for pair in PAIRS[:5] for kind in pair} | {velaray.Cluster}
    ray_calls = {velaray.SubscriptionHandle}  # closes what other handles use, too
    for kind in closable - IMPLEMENTED_BY_USERS - ray_calls:
        opens = (
            "__aenter__"
            if inspect.iscoroutinefunction(getattr(kind, "close", None))
            else "__enter__"
        )
        assert hasattr(kind, opens), kind


class Door(Closing):
    closed = 0

    def close(self) -> None:
        self.closed += 1


class AsyncDoor(AsyncClosing):
    closed = 0

    async def close(self) -> None:
        self.closed += 1


def test_a_block_closes_its_object_also_after_an_exception() -> None:
    with Door() as door:
        assert not door.closed
    assert door.closed == 1
    with pytest.raises(ZeroDivisionError), Door() as door:
        raise ZeroDivisionError
    assert door.closed == 1


def test_an_asynchronous_block_closes_its_object_also_after_an_exception() -> None:
    async def blocks() -> None:
        async with AsyncDoor() as door:
            assert not door.closed
        assert door.closed == 1
        with pytest.raises(ZeroDivisionError):
            async with AsyncDoor() as door:
                raise ZeroDivisionError
        assert door.closed == 1

    asyncio.run(blocks())
