"""The asyncio twin of `velaray`: the same classes with coroutine methods."""

from __future__ import annotations

from velaray.aio.client import Client
from velaray.aio.consumer import Consumer
from velaray.aio.producer import Producer
from velaray.aio.reader import Reader
from velaray.aio.table_view import TableView
from velaray.aio.transactions import Transaction

__all__ = ["Client", "Consumer", "Producer", "Reader", "TableView", "Transaction"]
