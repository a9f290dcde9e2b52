"""The messages of a schema registry.

A version is described by a dictionary (`velaray.broker.schema_registry.schema_registry_actor`'s
``described``): a deletion has no fields of a schema.
"""

from __future__ import annotations

from typing import Any, TypedDict

from velaray.broker.actor_messages import ACTOR_REQUESTS
from velaray.schemas import SchemaInfo
from velaray.schemas.compatibility import Strategy
from velaray.topology.messages import Codec, Request, Value

Row = dict[str, Any]


class SchemaPolicies(Value):
    """The effective policies under which a schema is registered or compared."""

    strategy: Strategy
    native_fields: bool
    legacy_json: bool
    auto_update: bool


class Registration(TypedDict):
    """The version of a schema; ``new`` if the request created it. None: it isn't live."""

    version: int | None
    new: bool


# -- requests ------------------------------------------------------------------------


class Follow(Request[None]):
    """Subscribe the connection to `DropVersions`."""


class Register(Request[Registration]):
    """The version of a producer's schema, which is registered if it is new.

    Refused INVALID_SCHEMA, INCOMPATIBLE_SCHEMA.
    """

    info: SchemaInfo
    policies: SchemaPolicies
    role: str = ""


class Attach(Request[Registration]):
    """Check a consumer's schema, or register it if there is none and the topic isn't ``active``.

    Refused as `Register`.
    """

    info: SchemaInfo
    active: bool
    policies: SchemaPolicies
    role: str = ""


class Delete(Request[int]):
    """Delete all versions up to ``through``; returns the number of the deletion.

    Then no partition uses a deleted schema from its cache.
    """

    through: int
    forced: bool = False
    role: str = ""


class Schema(Request[Row]):
    """One version, deleted or not; None: the latest live one. Refused NOT_FOUND."""

    version: int | None = None


class Schemas(Request[list[Row]]):
    """All live versions; ``all``: also deleted ones and the deletions."""

    all: bool = False


class Find(Request[int | None]):
    """The live version that equals a schema; None if there is none."""

    info: SchemaInfo
    policies: SchemaPolicies


class Check(Request[list[Row]]):
    """The reasons why a schema can't be registered now; empty if it can, or is registered.

    ``all`` compares the schema with deleted versions, too.
    """

    info: SchemaInfo
    policies: SchemaPolicies
    all: bool = False


TO_REGISTRY = Codec(
    *ACTOR_REQUESTS, *(Follow, Register, Attach, Delete, Schema, Schemas, Find, Check)
)
"""What a schema registry accepts."""

# -- requests of the registry ----------------------------------------------------------


class DropVersions(Request[None]):
    """Drop the cached versions of producers' schemas. The answer confirms it."""


TO_FOLLOWER = Codec(DropVersions)
"""What a partition's end of the connection accepts."""
