"""The asyncio version of `velaray`: the same classes with coroutine methods."""

from __future__ import annotations

from velaray.client.admin import AsyncioAdmin as Admin
from velaray.client.client import Client
from velaray.client.consumer import Consumer
from velaray.client.producer import Producer
from velaray.client.reader import Reader
from velaray.client.table_view import TableView
from velaray.client.transactions import Transaction

__all__ = ["Admin", "Client", "Consumer", "Producer", "Reader", "TableView", "Transaction"]
