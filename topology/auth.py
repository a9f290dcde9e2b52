"""Token authentication: JSON web tokens signed with HS256 or RS256. And two proofs that need no
tokens: that a client is an actor of this cluster, and that a producer is another one's replicator.
"""

from __future__ import annotations

import hmac
import json

from velaray.topology.config import AuthSettings

SYSTEM_METHOD = "velaray-system"
"""The method of authentication that only actors of the cluster can use."""


class AuthenticationFailed(PermissionError):
    """The token is missing, malformed, expired or signed with another key."""


def authenticate(settings: AuthSettings | None, token: str) -> str:
    """The role (``sub`` claim) that ``token`` proves; "" where authentication is off.

    White space around a token doesn't count: files of tokens end with a new line.

    Raises `AuthenticationFailed` with a text that may be shown to the client.
    """
    if settings is None:
        return ""
    import jwt  # brings a large library along: only where tokens are in use

    token = token.strip()
    if not token:
        raise AuthenticationFailed("this cluster requires a token: none was given")
    key: str | bytes
    if settings.secret is not None:
        key, algorithm = settings.secret, "HS256"
    else:
        assert settings.public_key is not None
        key, algorithm = settings.public_key, "RS256"
    try:
        claims = jwt.decode(token, key, algorithms=[algorithm], options={"require": ["sub"]})
    except jwt.InvalidTokenError as error:
        raise AuthenticationFailed(f"invalid token: {error}") from error
    return str(claims["sub"])


def system_proof(rpc_key: bytes) -> str:
    """What an actor of the cluster sends with `SYSTEM_METHOD`; the key can't be had from it."""
    return hmac.digest(rpc_key, b"velaray: a client that is an actor", "sha256").hex()


def check_system_proof(rpc_key: bytes, proof: str) -> None:
    """Raise `AuthenticationFailed` unless an actor of the cluster made ``proof``."""
    if not hmac.compare_digest(system_proof(rpc_key).encode(), proof.encode()):
        raise AuthenticationFailed("only actors of this cluster are the system")


def replicator_proof(secret: bytes, source: str, target: str, data_id: str) -> str:
    """What the replicators of cluster ``source``, whose data has this id, show to ``target``. The
    secret can't be had from it, and it proves nothing else."""
    said = json.dumps(["velaray: a replicator", source, target, data_id])
    return hmac.digest(secret, said.encode(), "sha256").hex()


def check_replicator_proof(
    secret: bytes, source: str, target: str, data_id: str, proof: str
) -> None:
    """Raise `AuthenticationFailed` unless a cluster with this ``secret`` made ``proof``; without a
    secret nothing is one."""
    if not secret:
        problem = f"cluster {target!r} has no replication secret"
    elif not proof:
        problem = "it shows no proof of the replication secret"
    elif not hmac.compare_digest(
        replicator_proof(secret, source, target, data_id).encode(), proof.encode()
    ):
        problem = f"its replication secret is not that of cluster {target!r}"
    else:
        return
    raise AuthenticationFailed(
        f"the replicator of cluster {source!r} is refused: {problem}. Start both clusters with "
        "--replication-secret and the same secret; from Apache Pulsar, pull with `velaray pulsar "
        "import`"
    )
