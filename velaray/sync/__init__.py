"""The synchronous client: the asyncio client on a background thread."""
