"""The errors between actors after which another attempt makes sense.

`velaray.client.retry.TRANSIENT` is the set for the client's errors.
"""

from __future__ import annotations

from velaray.journal.errors import JournalError
from velaray.topology.rpc import RemoteError

NO_ANSWER: tuple[type[Exception], ...] = (ConnectionError, TimeoutError)
"""The other actor didn't answer. `Unreachable` and `RpcConnectionClosed` are connection errors."""

TRANSIENT: tuple[type[Exception], ...] = (*NO_ANSWER, RemoteError)
"""A call of another actor failed, or the actor refused it."""

TRANSIENT_OR_STORE: tuple[type[Exception], ...] = (*TRANSIENT, JournalError)
"""A call of another actor, or an access to another actor's journal, failed."""
