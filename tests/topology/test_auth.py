"""Which tokens are good."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.certificates import replace_file
from velaray.geo.replication.replicator_settings import Remote
from velaray.topology.auth import AuthenticationFailed, Credentials, Identity, authenticate
from velaray.topology.config import (
    AuthSettings,
    ClusterConfig,
    UnsafeBindingError,
    check_binding,
)
from velaray.topology.key_files import KeyFileError
from velaray.topology.token_keys import check_token_keys

SECRET = b"a secret that is long enough for HS256"


def _pair() -> tuple[str, str]:
    """A private and its public key, as PEM text."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return (
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode(),
        private.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode(),
    )


def _role(settings: AuthSettings, token: str) -> str:
    return authenticate(settings, Credentials("token", token)).role


def test_without_settings_clients_have_no_role() -> None:
    assert authenticate(None, Credentials()) == Identity("", None)


def test_the_end_of_a_token_is_that_of_the_identity() -> None:
    token = jwt.encode({"sub": "alice", "exp": 1 << 40}, SECRET, algorithm="HS256")
    found = authenticate(AuthSettings(secret=SECRET), Credentials("token", token))
    assert found == Identity("alice", 1 << 40)


def test_a_shared_secret() -> None:
    token = jwt.encode({"sub": "alice"}, SECRET, algorithm="HS256")
    assert _role(AuthSettings(secret=SECRET), token) == "alice"


def test_white_space_around_a_token_does_not_count() -> None:
    token = jwt.encode({"sub": "alice"}, SECRET, algorithm="HS256")
    assert _role(AuthSettings(secret=SECRET), f" {token}\n") == "alice"
    with pytest.raises(AuthenticationFailed, match="requires a token"):
        _role(AuthSettings(secret=SECRET), " \n")


def test_a_node_without_the_keys_refuses_tokens_and_logs_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An `OSError` would close the connection without an answer, and asyncio doesn't log it."""
    token = jwt.encode({"sub": "alice"}, SECRET, algorithm="HS256")
    path = str(tmp_path / "missing.key")
    with pytest.raises(AuthenticationFailed, match="can't read the keys") as refused:
        _role(AuthSettings(secret_path=path), token)
    assert path not in str(refused.value)
    assert path in caplog.text


def test_a_public_key() -> None:
    private, public = _pair()
    token = jwt.encode({"sub": "alice"}, private, algorithm="RS256")
    assert _role(AuthSettings(public_key=public), token) == "alice"
    other, _ = _pair()
    forged = jwt.encode({"sub": "alice"}, other, algorithm="RS256")
    with pytest.raises(AuthenticationFailed, match="invalid token"):
        _role(AuthSettings(public_key=public), forged)


def test_a_public_key_is_no_shared_secret() -> None:
    """The old trick: sign with HS256 and the key that everybody knows."""
    _, public = _pair()
    body = jwt.encode({"sub": "mallory"}, "x" * 32, algorithm="HS256").rsplit(".", 1)[0]
    mac = hmac.new(public.encode(), body.encode(), hashlib.sha256).digest()
    forged = f"{body}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
    with pytest.raises(AuthenticationFailed, match="invalid token"):
        _role(AuthSettings(public_key=public), forged)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "no token",
        jwt.encode({"sub": "alice"}, b"another secret that is long enough", algorithm="HS256"),
        jwt.encode({"sub": "alice", "exp": 1}, SECRET, algorithm="HS256"),
        jwt.encode({"name": "alice"}, SECRET, algorithm="HS256"),
        jwt.encode({"sub": ""}, SECRET, algorithm="HS256"),
        jwt.encode({"sub": "alice"}, None, algorithm="none"),
    ],
    ids=["none", "garbage", "other secret", "expired", "no subject", "empty", "unsigned"],
)
def test_bad_tokens(token: str) -> None:
    with pytest.raises(AuthenticationFailed):
        _role(AuthSettings(secret=SECRET), token)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    check_binding(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "example.org"])
def test_other_addresses_need_one(host: str) -> None:
    with pytest.raises(UnsafeBindingError, match="no token is configured"):
        check_binding(host, None)
    check_binding(host, AuthSettings(secret=SECRET))


def test_settings_show_no_secret() -> None:
    secret, rpc_key, token = b"signs every token", b"opens every link", "lets a cluster in"
    config = ClusterConfig("d", 1, rpc_key, auth=AuthSettings(secret=secret))
    remote = Remote("south", "pulsar://south:6650", token=token)
    for shown in (repr(config), str(config.auth), repr(remote)):
        assert not any(str(part) in shown for part in (secret, rpc_key, token))


# -- several keys, and their rotation ----------------------------------------------


def signed(key: bytes, subject: str = "alice") -> str:
    return jwt.encode({"sub": subject}, key, algorithm="HS256")


def test_each_key_of_a_directory_is_valid_while_it_is_there(tmp_path: Path) -> None:
    first, second = b"the key of the first month, 32 bytes", b"the key of the second month, 32 by."
    (tmp_path / "2026-11").write_bytes(first)
    settings = AuthSettings(secret_path=str(tmp_path))
    assert _role(settings, signed(first)) == "alice"
    with pytest.raises(AuthenticationFailed, match="Signature verification failed"):
        _role(settings, signed(second))
    (tmp_path / "2026-12").write_bytes(second)
    (tmp_path / ".hidden").write_bytes(b"no key")
    assert _role(settings, signed(second)) == "alice"
    assert _role(settings, signed(first)) == "alice"
    (tmp_path / "2026-11").unlink()
    assert _role(settings, signed(second)) == "alice"
    with pytest.raises(AuthenticationFailed):
        _role(settings, signed(first))


def test_a_key_file_that_cannot_be_used_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    private, public = _pair()
    file = tmp_path / "public.pem"
    file.write_text(public)
    settings = AuthSettings(public_key_path=str(file))
    token = jwt.encode({"sub": "alice"}, private, algorithm="RS256")
    assert _role(settings, token) == "alice"
    replace_file(file, b"half written")
    assert _role(settings, token) == "alice"
    assert f"{file} isn't in use" in caplog.text
    file.unlink()
    assert _role(settings, token) == "alice"
    other, public = _pair()
    replace_file(file, public.encode())
    assert _role(settings, jwt.encode({"sub": "bob"}, other, algorithm="RS256")) == "bob"
    with pytest.raises(AuthenticationFailed):
        _role(settings, token)


def test_keys_that_cannot_be_used_at_the_start_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "short").write_bytes(b"x")
    for name, told in {"empty": "has no file with a key", "short": "holds 1 bytes"}.items():
        with pytest.raises(KeyFileError, match=told):
            check_token_keys(AuthSettings(secret_path=str(tmp_path / name)))
