"""`AuthenticationOauth2`: tokens that a client fetches from a provider on loopback."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import velaray
import velaray.aio
from tests.support.local_cluster import LocalCluster
from tests.support.oidc_provider import Provider, running
from tests.support.waiting import wait_until
from velaray.cli.app import main
from velaray.client import oauth2
from velaray.client.admin import Unauthorized, Unavailable
from velaray.client.exceptions import (
    ConnectError,
    ErrorGettingAuthenticationData,
    InvalidConfiguration,
)
from velaray.topology.config import AuthSettings, OidcSettings

WAIT_MS = 20_000
CREDENTIALS = {"client_id": Provider.ID, "client_secret": Provider.SECRET}


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running() as made:
        yield made


@pytest.fixture(autouse=True)
def at_first(provider: Provider) -> None:
    provider.life_s = 600.0
    provider.forms.clear()
    provider.answers.clear()


@pytest.fixture(scope="module")
def guarded(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster that takes the provider's tokens, and no others."""
    auth = AuthSettings(oidc=OidcSettings(provider.issuer, "velaray"))
    with LocalCluster(tmp_path_factory.mktemp("guarded"), auth=auth, hosts=1) as cluster:
        yield cluster


def proof(provider: Provider, **given: Any) -> velaray.AuthenticationOauth2:
    given = {"issuer_url": provider.issuer, "audience": "velaray"} | (given or CREDENTIALS)
    return velaray.AuthenticationOauth2(json.dumps(given))


def in_file(folder: Path, **given: Any) -> Path:
    path = folder / "credentials of alice.json"
    path.write_text(json.dumps(CREDENTIALS | given))
    return path


def test_a_client_fetches_one_token_for_all_connections(guarded, provider, tmp_path):
    path = in_file(tmp_path, issuer_url="ignored")
    for name, key in (
        ("plain", str(path)),
        ("url", path.as_uri()),
        ("short", f"file:{path}"),
        (
            "data",
            "data:application/json;base64," + base64.b64encode(path.read_bytes()).decode(),
        ),
    ):
        provider.forms.clear()
        found = proof(provider, private_key=key, scope="a b", type="client_credentials")
        topic = f"persistent://public/default/{name}"
        with velaray.Client(guarded.service_url, authentication=found) as client:
            consumer = client.subscribe(topic, "s")
            client.create_producer(topic).send(b"hello")
            assert consumer.receive(WAIT_MS).data() == b"hello"
        assert provider.forms == [
            {
                "grant_type": "client_credentials",
                **CREDENTIALS,
                "audience": "velaray",
                "scope": "a b",
            }
        ]


def test_the_asyncio_client_and_admin_clients_share_it(guarded, provider):
    found = pickle.loads(pickle.dumps(proof(provider)))

    async def work() -> None:
        async with velaray.aio.Client(guarded.service_url, authentication=found) as client:
            producer = await client.create_producer("persistent://public/default/aio")
            await producer.send(b"x")
        async with velaray.aio.Admin(guarded.admin_url, authentication=found) as admin:
            assert "persistent://public/default/aio" in await admin.topics("public/default")

    asyncio.run(work())
    with velaray.Admin(guarded.admin_url, authentication=found) as admin:
        assert admin.tenants()
    assert len(provider.forms) == 1
    with velaray.Admin(guarded.admin_url) as admin, pytest.raises(Unauthorized):
        admin.tenants()


def test_a_challenge_fetches_a_fresh_token(guarded, provider):
    """A token that the client takes for fresh isn't sent again when the service has asked."""
    provider.life_s = 2.0
    found = proof(provider)
    with velaray.Client(guarded.service_url, authentication=found) as client:
        producer = client.create_producer("persistent://public/default/challenged")
        sessions = set(guarded.proxy.sessions)
        wait_until(lambda: len(provider.forms) >= 4, 30)
        producer.send(b"after")
        assert sessions <= set(guarded.proxy.sessions)


def test_a_token_is_kept_until_shortly_before_its_end(provider, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(oauth2.time, "monotonic", lambda: now[0])
    found = proof(provider)
    first = found.data()
    now[0] += 600 - oauth2.MARGIN_S - 1
    assert found.data() == first
    now[0] += 2
    second = found.data()
    assert second != first and len(provider.forms) == 2
    assert asyncio.run(found.fetch(first)) == second
    third = asyncio.run(found.fetch(second))
    assert third != second and len(provider.forms) == 3
    provider.life_s = 100
    fourth = asyncio.run(found.fetch(third))
    now[0] += 89
    assert found.data() == fourth
    now[0] += 2
    assert found.data() != fourth


def test_threads_share_one_request(provider):
    found = proof(provider)
    with ThreadPoolExecutor(8) as pool:
        tokens = {each.result() for each in [pool.submit(found.data) for _ in range(8)]}
    assert len(tokens) == len(provider.forms) == 1


def test_a_token_of_unknown_life_is_not_kept(provider):
    token = provider.token()
    provider.answers += [(200, {"access_token": token})] * 2
    found = proof(provider)
    assert found.data() == found.data() == token.encode()
    assert len(provider.forms) == 2


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        ((400, {"error": "invalid_scope"}), ErrorGettingAuthenticationData, "400: invalid_scope"),
        ((302, {}), ErrorGettingAuthenticationData, "status 302"),
        ((200, {"token": "x"}), ErrorGettingAuthenticationData, "without an access_token"),
        ((200, ["x"]), ErrorGettingAuthenticationData, "no JSON object"),
        ((503, {}), ConnectError, "status 503"),
        ((429, {}), ConnectError, "status 429"),
    ],
)
def test_refusals_of_the_provider(provider, answer, error, text):
    provider.answers.append(answer)
    with pytest.raises(error, match=text) as caught:
        proof(provider).data()
    assert Provider.SECRET not in str(caught.value)


def test_a_wrong_secret_ends_the_attempt_at_once(guarded, provider):
    wrong = proof(provider, client_id=Provider.ID, client_secret="wrong")
    began = time.monotonic()
    with (
        velaray.Client(guarded.service_url, authentication=wrong) as client,
        pytest.raises(ErrorGettingAuthenticationData, match="invalid_client: unknown"),
    ):
        client.create_producer("persistent://public/default/wrong")
    assert time.monotonic() - began < 20
    with (
        velaray.Admin(guarded.admin_url, authentication=wrong) as admin,
        pytest.raises(Unauthorized, match="invalid_client"),
    ):
        admin.tenants()


def test_a_client_waits_for_a_provider_that_does_not_answer(guarded, provider):
    provider.answers += [(503, {})] * 2
    with velaray.Client(guarded.service_url, authentication=proof(provider)) as client:
        client.create_producer("persistent://public/default/patient").send(b"x")
    assert len(provider.forms) == 3
    provider.answers += [(503, {})]
    with (
        velaray.Admin(guarded.admin_url, authentication=proof(provider)) as admin,
        pytest.raises(Unavailable, match="status 503"),
    ):
        admin.tenants()


def test_the_secret_is_not_sent_without_tls(provider, monkeypatch):
    answers = {"token_endpoint": "http://issuer.example/token"}
    monkeypatch.setattr(oauth2, "_ask", lambda *_: answers)
    found = proof(provider, issuer_url="https://issuer.example", **CREDENTIALS)
    with pytest.raises(ErrorGettingAuthenticationData, match="isn't sent without TLS"):
        found.data()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "needs issuer_url"),
        ({"issuer_url": "issuer"}, "needs issuer_url"),
        ({"issuer_url": "http://i"}, "either private_key or both"),
        ({"issuer_url": "http://i", "client_id": "a"}, "either private_key or both"),
        ({"issuer_url": "http://i", "private_key": "/p", **CREDENTIALS}, "either private_key or"),
        ({"issuer_url": "http://i", "type": "password", **CREDENTIALS}, "only be client_cred"),
        ({"issuer_url": "http://i", "private_key": "/absent/file"}, "/absent/file: No such file"),
        ({"issuer_url": "http://i", "private_key": "https://h/file"}, "must be the path"),
        ({"issuer_url": "http://i", "private_key": "data:application/json;base64,?"}, "base64"),
        ({"issuer_url": "http://i", "issuerUrl": "x", **CREDENTIALS}, "has issuerUrl: known"),
        ({"issuer_url": "http://i", "scope": 5, **CREDENTIALS}, "scope must be a text"),
    ],
)
def test_parameters_that_cannot_work_are_refused(given, problem):
    with pytest.raises(InvalidConfiguration, match=problem):
        velaray.AuthenticationOauth2(json.dumps(given))


def test_parameters_are_an_object_of_json(tmp_path):
    for given in ("no JSON", "[]", None):
        with pytest.raises(InvalidConfiguration, match="JSON"):
            velaray.AuthenticationOauth2(given)
    path = tmp_path / "key.json"
    for content in ("[]", "{}", '{"client_id": "a", "client_secret": ""}'):
        path.write_text(content)
        given = {"issuer_url": "http://i", "private_key": str(path)}
        with pytest.raises(InvalidConfiguration, match="file of private_key"):
            velaray.AuthenticationOauth2(json.dumps(given))


def test_admin_clients_take_tokens_only(tmp_path):
    for admin in (velaray.Admin, velaray.aio.Admin):
        with pytest.raises(InvalidConfiguration, match="not both"):
            admin(token="t", authentication=velaray.AuthenticationToken("t"))
        with pytest.raises(InvalidConfiguration, match="must provide tokens"):
            admin(authentication="t")


def test_commands_take_the_parameters_in_a_file(guarded, provider, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    parameters = tmp_path / "provider.json"
    given = {"issuer_url": provider.issuer, "audience": "velaray", **CREDENTIALS}
    parameters.write_text(json.dumps(given))
    source = ["--token", f"oauth2:{parameters}"]
    runner = CliRunner()
    urls = ["--service-url", guarded.service_url, "--admin-url", guarded.admin_url]
    for words in (
        ["tenants", "list", "--admin-url", guarded.admin_url, *source],
        ["produce", "by-command", "-m", "x", "--service-url", guarded.service_url, *source],
        ["context", "add", "here", *urls, *source],
        ["context", "use", "here"],
        ["topics", "list", "public/default"],
    ):
        result = runner.invoke(main, words)
        assert result.exit_code == 0, (words, result.output)
    assert "by-command" in result.output
    assert len(provider.forms) == 1
    absent = ["tenants", "list", "--admin-url", guarded.admin_url, "--token", "oauth2:/absent"]
    refused = runner.invoke(main, absent)
    assert refused.exit_code == 1 and "/absent" in refused.output
