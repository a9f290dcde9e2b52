"""Tokens of an OpenID provider."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest

from tests.support.local_cluster import LocalCluster
from tests.support.oidc_provider import EC, OTHER, RSA, Provider, published, running
from velaray import AuthenticationError, AuthenticationToken, Client
from velaray.client.admin import Admin, AdminError
from velaray.settings import SettingError, settings_of
from velaray.starting import configured
from velaray.topology import oidc
from velaray.topology.config import AuthSettings, OidcSettings
from velaray.topology.oidc import AGAIN_S, LIFE_S, KeySet

SECRET = b"a secret that is long enough for HS256"


@pytest.fixture
def provider() -> Iterator[Provider]:
    with running() as made:
        yield made


def lists(cluster: LocalCluster, token: str) -> bool:
    try:
        return bool(Admin(cluster.admin_url, token=token).tenants())
    except AdminError as error:
        assert error.status == 401
        return False


def test_tokens_of_the_provider_are_accepted(provider: Provider, tmp_path: Path) -> None:
    settings = AuthSettings(secret=SECRET, oidc=OidcSettings(provider.issuer, "velaray"))
    with LocalCluster(tmp_path, auth=settings) as cluster:
        for token in (provider.token(), provider.token(EC, "two", "ES256")):
            proof = AuthenticationToken(token)
            with Client(cluster.service_url, authentication=proof) as client:
                client.create_producer("t").send(b"x")
            assert lists(cluster, token)
        assert lists(cluster, jwt.encode({"sub": "ops"}, SECRET, algorithm="HS256"))
        for bad in (
            provider.token(OTHER),
            provider.token(OTHER, "unknown"),
            provider.token(iss="https://elsewhere"),
            provider.token(aud="another service"),
            provider.token(aud=None),
            provider.token(exp=1),
            provider.token(exp=None),
            provider.token(sub=None),
            provider.token(sub=""),
            provider.token(RSA, "two"),
            provider.token(SECRET, "one", "HS256"),
            provider.token(None, "one", "none"),
        ):
            assert not lists(cluster, bad)
            proof = AuthenticationToken(bad)
            with (
                pytest.raises(AuthenticationError),
                Client(cluster.service_url, authentication=proof) as client,
            ):
                client.create_producer("t")
        assert provider.reads == 1


def test_another_claim_may_have_the_role(provider: Provider, tmp_path: Path) -> None:
    settings = OidcSettings(provider.issuer, "velaray", "role", f"{provider.issuer}/keys")
    with LocalCluster(tmp_path, auth=AuthSettings(oidc=settings)) as cluster:
        assert lists(cluster, provider.token(role="ops"))
        assert not lists(cluster, provider.token(role=["ops"]))
        assert not lists(cluster, provider.token())
        assert not lists(cluster, jwt.encode({"sub": "ops"}, SECRET, algorithm="HS256"))


def test_new_keys_are_read_and_reads_are_bounded() -> None:
    now, reads, keys = [0.0], [0], [published(one=RSA)]

    def read(url: str) -> Any:
        reads[0] += 1
        if not keys:
            raise OSError
        return keys[0]

    found = KeySet(OidcSettings("i", "a", jwks_url="u"), read, lambda: now[0])
    first = jwt.encode({}, RSA, algorithm="RS256", headers={"kid": "one"})
    second = jwt.encode({}, OTHER, algorithm="RS256", headers={"kid": "two"})

    async def ask(token: str) -> int:
        if found.should_fetch(token):
            await asyncio.gather(found.fetch(), found.fetch())
        return reads[0]

    async def scenario() -> None:
        assert await ask(first) == 1
        keys[0] = published(one=RSA, two=OTHER)
        assert await ask(second) == 1
        now[0] += AGAIN_S + 1
        assert await ask(first) == 1
        assert await ask(second) == 2
        assert await ask(second) == 2
        now[0] += LIFE_S + 1
        keys.clear()
        assert await ask(first) == 3
        assert not found.should_fetch(first)  # the known keys stay

    asyncio.run(scenario())


def test_settings_of_a_provider(tmp_path: Path) -> None:
    given = {"oidc_issuer": "https://login.example.com", "oidc_audience": "velaray"}
    config = configured(str(tmp_path), settings_of({**given, "host": "127.0.0.1"}))
    assert config.auth is not None
    assert config.auth.oidc == OidcSettings("https://login.example.com", "velaray")
    assert config.roles is not None
    for wrong in (
        {"oidc_issuer": "https://login.example.com"},
        {"oidc_audience": "velaray"},
        {**given, "oidc_issuer": "http://login.example.com"},
        {**given, "oidc_jwks_url": "file:///etc/passwd"},
    ):
        with pytest.raises(SettingError):
            settings_of(wrong)
    with pytest.raises(ValueError, match="no URL"):
        oidc.read_json("file:///etc/passwd")
