"""Authentication: from a client's credentials to its role.

Tokens are JSON web tokens signed with HS256 or RS256. Other proofs show that a client belongs to
this cluster, and that a producer is another cluster's replicator.
"""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from velaray.topology.config import AuthSettings, OidcSettings
from velaray.topology.key_files import KeyFileError
from velaray.topology.oidc import KeySet, is_issued_by, key_set
from velaray.topology.tls_settings import ACTORS_NAME
from velaray.topology.token_keys import verified_claims

logger = logging.getLogger("velaray")

TLS_METHOD = "tls"
"""Pulsar's method of authentication by the certificate of a TLS connection."""
TUNNEL_METHOD = "velaray-tunnel"
"""The method of authentication of a proxy for a client whose certificate it has checked."""
SYSTEM_METHOD = "velaray-system"
"""The method of authentication of the cluster's own actors."""
HANDLES_METHOD = "velaray-handles"
"""The method of authentication of the client that serves Ray handles. Grants don't limit it, since
whoever can call Ray could read this key."""
HANDLES_ROLE = "ray-handles"
_PROVEN = {
    SYSTEM_METHOD: b"velaray: a client that is an actor",
    HANDLES_METHOD: b"velaray: the client that serves handles",
}


MOST_PROOFS = 8
"""The proofs of one replicator that are looked at, which bounds what the check costs."""


class Method(StrEnum):
    """How a client proves its role."""

    NONE = "none"
    """Not at all: authentication is off."""
    ANONYMOUS = "anonymous"
    TOKEN = "token"
    OIDC = "oidc"
    """A token of an OpenID provider."""
    CERTIFICATE = "certificate"


class AuthenticationFailed(PermissionError):
    """The token is missing, malformed, expired or signed with another key."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client presents: the name of a method of authentication, and data for it."""

    method: str = ""
    data: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """What credentials prove: a role ("" where authentication is off) until a time (seconds since
    1970; None: for ever). ``method`` is how they prove it."""

    role: str = ""
    expires_s: float | None = None
    method: Method = field(default=Method.NONE, compare=False)


def authenticate(settings: AuthSettings | None, credentials: Credentials) -> Identity:
    """The identity that the credentials prove.

    Raises `AuthenticationFailed` with a text that may be shown to the client.
    """
    if settings is None:
        return Identity()
    # White space around a token doesn't count: files of tokens end with a new line.
    token = credentials.data.strip()
    if not token and settings.anonymous_role:
        return Identity(settings.anonymous_role, method=Method.ANONYMOUS)
    if not token:
        raise AuthenticationFailed(
            "this cluster requires a token: give --token to commands, authentication to clients"
        )
    return _of_token(settings, token)


def _of_token(settings: AuthSettings, token: str) -> Identity:
    import jwt  # loads a large library: imported only where tokens are in use

    if settings.oidc is not None and is_issued_by(settings.oidc, token):
        return _of_provider(settings.oidc, token)
    try:
        claims = verified_claims(settings, token)
    except jwt.ExpiredSignatureError as error:
        raise AuthenticationFailed(
            f"invalid token: {error}; make a new one with `velaray tokens create`"
        ) from error
    except jwt.InvalidTokenError as error:
        raise AuthenticationFailed(f"invalid token: {error}") from error
    except (KeyFileError, OSError) as error:
        # The text is shown to clients, and the name of the file is not for them.
        logger.error("no token can be checked on this node: %s", error)
        raise AuthenticationFailed(
            "this node can't read the keys of tokens; its log names the file"
        ) from error
    return _identity(claims, "sub", Method.TOKEN)


def _of_provider(provider: OidcSettings, token: str) -> Identity:
    import jwt

    try:
        claims = key_set(provider).claims(token)
    except jwt.InvalidTokenError as error:
        raise AuthenticationFailed(f"invalid token: {error}") from error
    return _identity(claims, provider.role_claim, Method.OIDC)


def _identity(claims: Mapping[str, Any], role_claim: str, method: Method) -> Identity:
    role = claims[role_claim]
    if not (isinstance(role, str) and role):
        raise AuthenticationFailed(f"invalid token: its claim {role_claim} is no role")
    return Identity(role, claims.get("exp"), method)


def before(settings: AuthSettings | None, credentials: Credentials) -> KeySet | None:
    """The keys to `fetch` before these credentials can be judged; None if there are none."""
    token = credentials.data.strip()
    if settings is None or settings.oidc is None or not is_issued_by(settings.oidc, token):
        return None
    keys = key_set(settings.oidc)
    return keys if keys.should_fetch(token) else None


def own_proof(rpc_key: bytes, method: str) -> str:
    """The proof of a client that belongs to the cluster, sent with `SYSTEM_METHOD` or
    `HANDLES_METHOD`; it doesn't reveal the key."""
    return hmac.digest(rpc_key, _PROVEN[method], "sha256").hex()


def check_own_proof(rpc_key: bytes, method: str, proof: str) -> None:
    """Raise `AuthenticationFailed` unless ``proof`` was made with this key for this method."""
    if not hmac.compare_digest(own_proof(rpc_key, method).encode(), proof.encode()):
        raise AuthenticationFailed("the proof isn't that of an actor of this cluster")


def certificate_role(certificate: Mapping[str, Any] | None) -> str:
    """The role that a client's certificate names: its common name, as in Pulsar.

    ``certificate`` is what `ssl` says of it after it has checked it. "" if there is none, and for
    actors, which prove themselves otherwise.
    """
    names: Sequence[Any] = (certificate or {}).get("subject", ())
    found = dict(pair for relative in names for pair in relative).get("commonName", "")
    return "" if found == ACTORS_NAME else str(found)


def tunnel_proof(rpc_key: bytes, role: str) -> str:
    """The proof of a proxy that a client has this role; it doesn't reveal the key."""
    said = json.dumps(["velaray: the role of a client behind a tunnel", role])
    return hmac.digest(rpc_key, said.encode(), "sha256").hex()


def check_tunnel_proof(rpc_key: bytes, role: str, proof: str) -> None:
    """Raise `AuthenticationFailed` unless a proxy of this cluster made ``proof`` for the role."""
    if not role or not hmac.compare_digest(tunnel_proof(rpc_key, role).encode(), proof.encode()):
        raise AuthenticationFailed("the proof isn't that of a proxy of this cluster")


def replicator_proof(secret: bytes, source: str, target: str, data_id: str) -> str:
    """The proof that the replicators of cluster ``source``, whose data has this id, show to
    ``target``. It doesn't reveal the secret, and it is valid for nothing else."""
    said = json.dumps(["velaray: a replicator", source, target, data_id])
    return hmac.digest(secret, said.encode(), "sha256").hex()


def check_replicator_proof(
    keys: Sequence[bytes], source: str, target: str, data_id: str, proofs: str
) -> None:
    """Raise `AuthenticationFailed` unless one of these ``keys`` made one of the ``proofs``, which
    are separated by commas; without a key every proof is invalid."""
    if not keys:
        problem = f"cluster {target!r} has no replication secret for it"
    elif not proofs:
        problem = "it gives no proof of the replication secret"
    elif not _is_one_valid(
        [replicator_proof(key, source, target, data_id) for key in keys], proofs
    ):
        problem = f"its replication secret is not that of cluster {target!r}"
    else:
        return
    raise AuthenticationFailed(
        f"the replicator of cluster {source!r} is refused: {problem}. Give both clusters the same "
        "key for each other by --replication-secret; from Apache Pulsar, pull with `velaray pulsar "
        "import`"
    )


def _is_one_valid(valid: Sequence[str], proofs: str) -> bool:
    """Whether a proof is valid. A cluster has as many proofs as keys, so more are ignored."""
    shown = proofs.encode().split(b",", MOST_PROOFS)[:MOST_PROOFS]
    return any(hmac.compare_digest(one.encode(), each) for one in valid for each in shown)
