"""The errors that may go away with another attempt; the delays between attempts are those of
`velaray.events.backoff`."""

from __future__ import annotations

from velaray.client.exceptions import (
    BrokerMetadataError,
    BrokerPersistenceError,
    ConnectError,
    NotConnected,
    ReadError,
    ServiceUnitNotReady,
    Timeout,
    TooManyLookupRequestException,
    UnknownError,
    VelarayError,
)

TRANSIENT: tuple[type[VelarayError], ...] = (
    BrokerMetadataError,
    BrokerPersistenceError,
    ConnectError,
    NotConnected,
    ReadError,
    ServiceUnitNotReady,
    Timeout,
    TooManyLookupRequestException,
    UnknownError,
)
"""The client's transient errors; all others are final."""
