"""PROTOBUF_NATIVE schemas: a message with all the files that describe it.

Pulsar compares only the name of the message. `native_problems` compares the fields by number, since
encoded messages contain numbers.
"""

from __future__ import annotations

import base64
import json

from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from velaray.schemas.avro import parse_json
from velaray.schemas.avro_reading import MOST_PROBLEMS, Problem
from velaray.schemas.info import InvalidSchemaError

_F = FieldDescriptor
_READS = {
    _F.TYPE_INT64: {_F.TYPE_INT32, _F.TYPE_UINT32, _F.TYPE_BOOL, _F.TYPE_ENUM},
    _F.TYPE_INT32: {_F.TYPE_BOOL, _F.TYPE_ENUM},
    _F.TYPE_UINT64: {_F.TYPE_UINT32, _F.TYPE_BOOL},
    _F.TYPE_UINT32: {_F.TYPE_BOOL},
    _F.TYPE_SINT64: {_F.TYPE_SINT32},
    _F.TYPE_BYTES: {_F.TYPE_STRING},
}
"""The other types that a type reads without loss."""


def native_schema(message: Descriptor) -> bytes:
    """The data of a PROTOBUF_NATIVE schema, as Pulsar's clients write it."""
    files = FileDescriptorSet()
    seen: set[str] = set()

    def add(file: FileDescriptor) -> None:
        if file.name in seen:
            return
        seen.add(file.name)
        for dependency in file.dependencies:
            add(dependency)
        file.CopyToProto(files.file.add())

    add(message.file)
    encoded = base64.b64encode(files.SerializeToString(deterministic=True)).decode()
    text = {
        "fileDescriptorSet": encoded,
        "rootMessageTypeName": message.full_name,
        "rootFileDescriptorName": message.file.name,
    }
    return json.dumps(text).encode()


def parse_native(data: bytes) -> Descriptor:
    """The message that a schema's data describes. Raises `InvalidSchemaError`."""
    found = parse_json(data)
    if not isinstance(found, dict):
        raise InvalidSchemaError("a PROTOBUF_NATIVE schema must be a JSON object")
    encoded, root = found.get("fileDescriptorSet"), found.get("rootMessageTypeName")
    if not isinstance(encoded, str) or not isinstance(root, str):
        raise InvalidSchemaError(
            "a PROTOBUF_NATIVE schema needs fileDescriptorSet and rootMessageTypeName"
        )
    try:
        files = FileDescriptorSet.FromString(base64.b64decode(encoded, validate=True))
    except (ValueError, DecodeError) as error:
        raise InvalidSchemaError(f"fileDescriptorSet can't be read: {error}") from error
    pool = DescriptorPool()
    try:
        for file in _in_order(list(files.file)):
            pool.AddSerializedFile(file.SerializeToString())
        return pool.FindMessageTypeByName(root)
    except (TypeError, KeyError) as error:
        raise InvalidSchemaError(
            f"{root!r} can't be made from fileDescriptorSet: {error}"
        ) from None


def _in_order(files: list[FileDescriptorProto]) -> list[FileDescriptorProto]:
    """The files, each after those that it imports; circular imports come last."""
    by_name = {file.name: file for file in files}
    placed: dict[str, FileDescriptorProto] = {}
    left = list(by_name.values())
    while left:
        ready = [
            file for file in left if all(n in placed or n not in by_name for n in file.dependency)
        ]
        placed.update((file.name, file) for file in ready or left)
        left = [file for file in left if file.name not in placed]
    return list(placed.values())


def native_problems(reader: Descriptor, writer: Descriptor) -> list[Problem]:
    """The reasons why ``reader`` can't read all data of ``writer``; empty if it can."""
    found: list[Problem] = []
    left, seen = [("", reader, writer)], {(reader.full_name, writer.full_name)}
    while left and len(found) < MOST_PROBLEMS:
        path, into, outof = left.pop()
        numbers = {each.number: each for each in outof.fields}
        labels = _labels(into), _labels(outof)
        for each in into.fields:
            here, other = f"{path}/{each.name}", numbers.get(each.number)
            if other is None:
                problem = _missing(each, outof, labels[0])
            else:
                problem = _types(each, other) or _values(each, other, *labels)
            if problem:
                found.append(Problem(here, problem))
            elif other is not None and each.message_type and other.message_type:
                names = each.message_type.full_name, other.message_type.full_name
                if names not in seen:
                    seen.add(names)
                    left.append((here, each.message_type, other.message_type))
    return found


_Labels = dict[int, int]


def _labels(message: Descriptor) -> _Labels:
    """The label of each field by its number."""
    proto = DescriptorProto()
    message.CopyToProto(proto)
    return {each.number: each.label for each in proto.field}


def _missing(each: FieldDescriptor, writer: Descriptor, labels: _Labels) -> str:
    renumbered = writer.fields_by_name.get(each.name)
    if renumbered is not None:
        return f"has number {each.number} in the reader and {renumbered.number} in the writer"
    if labels[each.number] == FieldDescriptorProto.LABEL_REQUIRED:
        return f"is required, and {writer.full_name} lacks it"
    return ""


def _types(reader: FieldDescriptor, writer: FieldDescriptor) -> str:
    """The incompatibility of the types of two fields with one number; "" if there is none."""
    if reader.type != writer.type and writer.type not in _READS.get(reader.type, ()):
        return f"of type {_type(reader)} can't read {_type(writer)} (number {reader.number})"
    into, outof = reader.enum_type, writer.enum_type
    if into and outof and into.is_closed:
        lost = [each.name for each in outof.values if each.number not in into.values_by_number]
        if lost:
            return f"lacks {', '.join(lost)} of the writer's enum"
    return ""


def _values(reader: FieldDescriptor, writer: FieldDescriptor, into: _Labels, outof: _Labels) -> str:
    """As `_types`, for the numbers of values."""
    number, labels = reader.number, FieldDescriptorProto
    if outof[number] == labels.LABEL_REPEATED != into[number]:
        return f"holds one value, the writer's field has many (number {number})"
    if into[number] == labels.LABEL_REQUIRED != outof[number]:
        return f"is required, but optional in the writer (number {number})"
    return ""


def _type(each: FieldDescriptor) -> str:
    kinds = FieldDescriptorProto.Type.DESCRIPTOR.values_by_number
    return str(kinds[each.type].name).removeprefix("TYPE_").lower()
