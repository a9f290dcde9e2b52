"""The records of the audit log: who asked for a change, from where, and with which parameters.

Secrets aren't recorded, and neither is the content of messages.
"""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

from aiohttp import web

from velaray.admin.changes import name_of
from velaray.admin.http import IDENTITY
from velaray.client.admin.audit import AuditRecord, Outcome
from velaray.client.admin.namespaces import ERASE
from velaray.client.admin.operations import Operation
from velaray.client.admin.topics import PUBLISH

ORIGINAL_PRINCIPAL = "X-Original-Principal"
"""The header in which a proxy names the role of its client, as Pulsar's proxy does."""
HIDDEN = "(hidden)"
_SECRET = re.compile(r"token|secret|password|passwd|credential|private|auth.*param", re.IGNORECASE)
_TEXT = 500
"""Characters of a value that are recorded."""
_PARAMETERS = 8192
"""Characters of all parameters, as JSON, that are recorded."""
_DEPTH = 8
_PLACE = ("tenant", "namespace", "topic")
_TARGETS = ("subscription", "cluster", "role", "policy")


async def record_of(operation: Operation, request: web.Request, now_ms: int) -> AuditRecord:
    """The record of a request, without its outcome. Raises what reading the body raises."""
    identity = request[IDENTITY]
    return {
        "id": secrets.token_hex(6),
        "atMs": now_ms,
        "role": identity.role,
        "originalRole": _short(request.headers.get(ORIGINAL_PRINCIPAL, "")),
        "authentication": identity.method.value,
        "address": request.remote or "",
        "client": _short(request.headers.get("User-Agent", "")),
        "operation": name_of(operation),
        "target": _target(request),
        "parameters": await _parameters(operation, request),
        "begun": True,
        "outcome": None,
        "status": None,
        "reason": "",
        "endedMs": None,
    }


def ended(record: AuditRecord, status: int, reason: str, now_ms: int) -> AuditRecord:
    """The record with the outcome of the request."""
    outcome = Outcome.DONE
    if status >= 500:
        outcome = Outcome.FAILED
    elif status >= 400:
        outcome = Outcome.REFUSED
    elif status >= 300:
        outcome = Outcome.ELSEWHERE
    return {
        **record,
        "outcome": outcome.value,
        "status": status,
        "reason": _short(reason),
        "endedMs": now_ms,
    }


def reason_in(response: web.StreamResponse) -> str:
    """The reason in an answer of the admin interface; "" without an error."""
    if response.status < 300 or not isinstance(response, web.Response):
        return ""
    try:
        found = json.loads(response.text or "")
    except ValueError:
        return ""
    return str(found.get("reason", "")) if isinstance(found, dict) else ""


def _target(request: web.Request) -> str:
    """What the path names: a topic, a namespace or a tenant, and what is changed in it."""
    found = dict(request.match_info)
    place = [found[each] for each in _PLACE if each in found]
    if len(place) == 3:
        named = f"persistent://{'/'.join(place)}"
    else:
        named = "/".join(place)
    rest = [found[each] for each in _TARGETS if each in found]
    return _short(" ".join([named, *rest] if named else rest))


async def _parameters(operation: Operation, request: web.Request) -> dict[str, Any]:
    path = {name: text for name, text in request.match_info.items() if name not in _PLACE}
    if "key" in path and "value" in path:
        path["value"] = _plain(path["key"], path["value"], 0)
    told = {name: _plain(name, text, 0) for name, text in (path | dict(request.query)).items()}
    raw = await request.read()
    if raw.strip() not in (b"", b"{}"):
        told["body"] = _body(operation, raw)
    size = len(json.dumps(told))
    return told if size <= _PARAMETERS else {"leftOut": f"{size} characters"}


def _body(operation: Operation, raw: bytes) -> Any:
    if operation is PUBLISH:
        return f"(a message, {len(raw)} bytes)"
    if operation is ERASE:
        return HIDDEN
    try:
        return _plain("", json.loads(raw), 0)
    except (ValueError, RecursionError):
        return f"(no JSON, {len(raw)} bytes)"


def _plain(name: str, value: Any, depth: int) -> Any:
    """A value as it is recorded: without secrets, and long texts cut."""
    if _SECRET.search(name) and value not in (None, "", True, False):
        return HIDDEN
    if isinstance(value, dict) and depth < _DEPTH:
        return {_short(str(key)): _plain(str(key), each, depth + 1) for key, each in value.items()}
    if isinstance(value, list) and depth < _DEPTH:
        return [_plain("", each, depth + 1) for each in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    if not isinstance(value, str):
        return f"(more than {_DEPTH} levels)"
    return HIDDEN if value.startswith("token:") else _short(value)


def _short(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}... ({len(text)} characters)"
