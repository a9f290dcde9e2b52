"""The OpenAPI document of the admin interface, and the page that shows it."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.support.local_cluster import LocalCluster
from tests.topology.test_admin_api import Http
from velaray.admin.api import admin_app, groups
from velaray.admin.openapi import Description
from velaray.client.admin.operations import V2


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return Description(groups()).document


@pytest.fixture(scope="module")
def http(cluster: LocalCluster) -> Http:
    return Http(cluster.admin_url)


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    assert [each.message for each in OpenAPIV31SpecValidator(document).iter_errors()] == []
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_a_wrong_document_is_found(document: dict[str, Any]) -> None:
    wrong = {**document, "paths": {"/{tenant}": {"get": {"responses": {"default": {}}}}}}
    assert [*OpenAPIV31SpecValidator(wrong).iter_errors()]


def test_every_route_is_in_the_document(cluster: LocalCluster, document: dict[str, Any]) -> None:
    app = admin_app(cluster.actor_system)
    served = {
        (route.method.lower(), str(resource.canonical))
        for resource in app.router.resources()
        if isinstance(resource, web.Resource)
        for route in resource
    }
    told = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert served == told


def test_every_operation_is_described(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            name = f"{method} {path}"
            assert operation["summary"], name
            assert all(each["description"] for each in operation["parameters"]), name
            assert {"default"} < set(operation["responses"]), name


def test_the_document_and_the_page_are_served(http: Http, document: dict[str, Any]) -> None:
    assert http("GET", "/openapi.json").body == document
    page = http("GET", "/docs")
    assert page.status == 200 and page.headers["Content-Type"].startswith("text/html")
    text = page.body.decode()
    assert "https://" not in text and "http://" not in text  # it works without a network
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]


TENANT, TOPIC = f"{V2}/tenants/t", f"{V2}/persistent/public/default/t"


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("PUT", TENANT, [], "the body must be a JSON object, not a list"),
        ("PUT", TENANT, {"adminRoles": "me"}, "adminRoles must be a list, not a text"),
        ("PUT", TENANT, {"adminRoles": [1]}, "adminRoles[0] must be a text, not 1"),
        ("POST", f"{TENANT}/home", {}, "cluster is missing"),
        ("POST", f"{TENANT}/home", {"cluster": ""}, "cluster must be a text that isn't empty"),
        ("PUT", TOPIC, {"owner": None}, "owner must be a text, not null"),
        ("PUT", f"{TOPIC}/partitions", "2", "the body must be a whole number, not a text"),
        ("PUT", f"{TOPIC}/partitions", {"partitions": True}, "partitions must be a whole number"),
        ("PUT", f"{TOPIC}/partitions", {"partitions": 2, "properties": 3}, "properties must be"),
        ("PUT", f"{TOPIC}/subscription/s", {"ledgerId": -2}, "ledgerId must be at least -1"),
        ("DELETE", f"{TOPIC}?force=yes", None, "force must be true or false, not 'yes'"),
        ("GET", "/admin/v3/transactions?most=-1", None, "most must be a whole number, not '-1'"),
        ("GET", "/admin/v3/transactions?status=NEW", None, "status must be OPEN, COMMITTING or"),
    ],
)
def test_wrong_requests_are_refused(
    http: Http, method: str, path: str, body: Any, said: str
) -> None:
    refused = http(method, path, body)
    assert refused.status == 400
    assert said in refused.body["reason"]


def test_null_fields_are_absent_and_unknown_fields_ignored(http: Http) -> None:
    body = {"adminRoles": None, "allowedClusters": ["standalone"], "later": {"version": 2}}
    assert http("PUT", f"{V2}/tenants/of-nulls", body).status == 204
    assert http("GET", f"{V2}/tenants/of-nulls").body["adminRoles"] == []
