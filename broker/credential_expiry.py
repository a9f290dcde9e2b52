"""The end of connections whose credentials expire."""

from __future__ import annotations

import asyncio
import time

from velaray.topology.auth import AuthenticationFailed, Credentials, Identity, authenticate
from velaray.topology.config import AuthSettings
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import PROTOCOL_VERSION
from velaray.wire.connection import WireConnection

REFRESH_S = 30.0
"""The time in which a client presents fresh credentials."""
_CHALLENGE = b"PulsarAuthRefresh"
"""What Pulsar's clients are sent for this purpose."""


class CredentialExpiry:
    """Closes a connection when its credentials expire, unless the client presents fresh ones.

    A client that can do so is asked when its credentials expire, and is served for up to
    `REFRESH_S` seconds longer. The connection of any other client is closed at once.
    """

    def __init__(
        self,
        settings: AuthSettings | None,
        connection: WireConnection,
        identity: Identity,
        connect: pb.CommandConnect,
    ) -> None:
        """``connect`` is the command by which the client proved its ``identity``."""
        self._settings = settings
        self._connection = connection
        self._identity = identity
        self._method = connect.auth_method_name
        self._refreshes = connect.feature_flags.supports_auth_refresh
        self._timer: asyncio.TimerHandle | None = None
        self._wait()

    def _wait(self) -> None:
        self.stop()
        if self._identity.expires_s is not None:
            left_s = max(self._identity.expires_s - time.time(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(left_s, self._expired)

    def stop(self) -> None:
        """Wait no longer: the connection is closed. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self) -> None:
        if not self._refreshes:
            self._close()
            return
        challenge = pb.AuthData(auth_method_name=self._method, auth_data=_CHALLENGE)
        self._connection.send(
            pb.CommandAuthChallenge(challenge=challenge, protocol_version=PROTOCOL_VERSION)
        )
        self._timer = asyncio.get_running_loop().call_later(REFRESH_S, self._close)

    def _close(self) -> None:
        self._connection.close(AuthenticationFailed("the client's credentials have expired"))

    def refresh(self, response: pb.CommandAuthResponse) -> None:
        """Take over the credentials with which a client answers AUTH_CHALLENGE.

        The connection is closed if they aren't valid, or if they prove another role: rights that
        were checked before belong to the first one.
        """
        given = response.response
        data = given.auth_data.decode("utf-8", errors="replace")
        try:
            identity = authenticate(self._settings, Credentials(given.auth_method_name, data))
            if identity.role != self._identity.role:
                raise AuthenticationFailed("fresh credentials must prove the same role")
        except AuthenticationFailed as error:
            self._connection.send(
                pb.CommandError(request_id=0, error=pb.AuthenticationError, message=str(error))
            )
            self._connection.close(error)
            return
        self._identity = identity
        self._wait()
