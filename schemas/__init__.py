"""Schemas and their compatibility. Pure: nothing here does I/O."""

from velaray.schemas.info import InvalidSchemaError, KeyValueEncoding, SchemaInfo, SchemaType

__all__ = ["InvalidSchemaError", "KeyValueEncoding", "SchemaInfo", "SchemaType"]
