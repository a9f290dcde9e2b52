"""The synchronous client: the asyncio client on a thread of its own."""
