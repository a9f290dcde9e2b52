"""What a schema is, and which schemas get along: pure, nothing here reads or writes anything."""

from velaray.schemas.info import InvalidSchemaError, KeyValueEncoding, SchemaInfo, SchemaType

__all__ = ["InvalidSchemaError", "KeyValueEncoding", "SchemaInfo", "SchemaType"]
