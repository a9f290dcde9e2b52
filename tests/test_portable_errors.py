"""Errors reach another process, say over Ray, with their class, text and attributes."""

from __future__ import annotations

import importlib
import inspect
import os
import pickle
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import velaray
from velaray.client.exceptions import NotAllStored, Timeout, UndecodableMessage
from velaray.events.events_pb2 import LedgerOpened
from velaray.events.segments import StoredSegment
from velaray.journal import errors
from velaray.journal.errors import JournalError, StorageFull
from velaray.journal.objects.object_store import StoredObject
from velaray.journal.objects.probe import Check
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.errors import CorruptEntryError, ServerError

_NEEDS = ("pyspark",)
"""What a module may need that isn't installed with velaray."""


def _modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(velaray.__path__, "velaray."):
        try:
            yield importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] not in _NEEDS:
                raise


def _classes() -> list[type[BaseException]]:
    found = {
        each
        for module in _modules()
        for each in vars(module).values()
        if inspect.isclass(each)
        and issubclass(each, BaseException)
        and each.__module__ == module.__name__
    }
    return sorted(found, key=lambda each: (each.__module__, each.__name__))


_VALUES: dict[str, Any] = {
    "str": "text of its own",
    "int": 7,
    "bytes": b"\x01\x02",
    "ServerError": ServerError.ChecksumError,
}


def _example(kind: type[BaseException]) -> BaseException:
    """An error made as its constructor asks for it."""
    own = next(each for each in kind.__mro__ if "__init__" in vars(each))
    if own.__module__ == "builtins":
        return kind("text of its own")
    values = []
    for name, parameter in list(inspect.signature(kind.__init__).parameters.items())[1:]:
        if parameter.default is not inspect.Parameter.empty:
            break
        match name:
            case "command":
                value: Any = pb.CommandFlow(consumer_id=1, messagePermits=2)
            case "event":
                value = LedgerOpened(ledger_id=1)
            case "cause" if parameter.annotation != "str":
                value = StorageFull("/data/1.ledger", "No space left on device")
            case "error":
                value = ValueError("text of its own")
            case "found":
                value = StoredObject(b"content", "tag")
            case "check":
                value = Check.READ
            case "delay_s":
                value = 0.5
            case "problems":
                value = ["one", "two"]
            case "stored":
                value = []
            case "place":
                value = StoredSegment("acked/0", 1, 2, 3, b"digest")
            case "behind":
                value = ()
            case _:
                value = _VALUES[parameter.annotation]
        values.append(value)
    return kind(*values)


@pytest.mark.parametrize("kind", _classes(), ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_error_survives_pickling(kind: type[BaseException]) -> None:
    error = _example(kind)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert vars(copy).keys() == vars(error).keys()
    for name, value in vars(error).items():
        if not isinstance(value, BaseException):
            assert getattr(copy, name) == value


def test_the_attributes_of_an_error_survive() -> None:
    error = pickle.loads(pickle.dumps(UndecodableMessage("bad", "topic", None, 3)))
    assert (error.topic, error.schema_version) == ("topic", 3)
    command = pb.CommandFlow(consumer_id=1, messagePermits=2)
    assert pickle.loads(pickle.dumps(CorruptEntryError("bad", command))).command == command


def test_the_cause_of_an_error_survives_where_it_is_needed() -> None:
    error = NotAllStored("some", [], 0)  # type: ignore[arg-type]
    error.__cause__ = Timeout("late")
    assert pickle.loads(pickle.dumps(error)).error() == Timeout.result


_TEXTS = [
    errors.StorageFull("/srv/data/1.ledger", "No space left on device"),
    errors.SyncFailed("/srv/data/1.ledger", "Input/output error"),
    errors.CorruptJournal("/srv/data/1.ledger", 17, "a damaged frame"),
    errors.UnsupportedFormat("/srv/data/1.ledger", 99),
    errors.LedgerExists("/srv/data/1.ledger"),
    errors.NotStored("/srv/data/1.ledger"),
    errors.Contended("/srv/data/+manifest", 3),
    errors.NotStored("topic a: entry 1:2"),
]


@pytest.mark.parametrize("error", _TEXTS, ids=lambda error: type(error).__name__)
def test_errors_for_clients_contain_no_path(error: JournalError) -> None:
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert "/srv" not in each.told
        assert os.path.basename(each.file) in each.told
