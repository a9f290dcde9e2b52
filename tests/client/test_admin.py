"""The administration client: its resources, and the methods of `Admin` that call theirs."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from velaray.client.admin import Admin

RESOURCES = [
    *("clusters", "tenants", "migrations", "pulls", "failovers", "namespaces", "policies"),
    *("topics", "subscriptions", "schemas", "transactions", "ledgers", "hosts"),
]


class Recorded(Admin):
    """Records requests instead of sending them."""

    def __init__(self) -> None:
        super().__init__("http://nowhere:1")
        self.sent: list[tuple[str, str, Any]] = []

    def _send(self, method: str, target: str, body: Any) -> tuple[Any, bytes]:
        self.sent.append((method, target, body))
        return Answer(), b""


class Answer:
    """An answer without content."""

    status = 204


def _methods(resource: object) -> list[Any]:
    members = inspect.getmembers(type(resource), inspect.isfunction)
    return [method for name, method in members if not name.startswith("_")]


@pytest.mark.parametrize("resource", RESOURCES)
def test_each_method_of_a_resource_is_declared_on_admin(resource: str) -> None:
    declared = {inspect.unwrap(each) for _, each in inspect.getmembers(Admin, inspect.isfunction)}
    methods = _methods(getattr(Admin("http://nowhere:1"), resource))
    assert methods
    assert set(methods) <= declared


def test_both_ways_send_the_same_requests() -> None:
    first, second = Recorded(), Recorded()
    first.topics.create("flights", partitions=4)
    first.subscriptions.delete("flights", "counting", force=True)
    second.create_topic("flights", partitions=4)
    second.delete_subscription("flights", "counting", force=True)
    assert first.sent == second.sent
    assert [method for method, _, _ in first.sent] == ["PUT", "DELETE"]


def test_the_declared_methods_have_signatures_and_documentation() -> None:
    signature = inspect.signature(Admin("http://nowhere:1").create_topic)
    assert list(signature.parameters) == ["topic", "partitions", "properties"]
    assert "Raises `Conflict`" in (Admin.create_topic.__doc__ or "")
