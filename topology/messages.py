"""Typed messages between actors, and the codec that checks them.

A message is a class with typed fields. On the wire it is a msgpack array of its class name and its
field values. `Codec.decode` accepts the messages that one end of a connection handles. It
refuses anything else with a `MessageError` that names the message and the field.

    class Flow(Message):
        number: int
        permits: int

    class Unacked(Request[list[int]]):
        first: int
        end: int

    accepted = Codec(Flow, Unacked)
    accepted.decode(encode(Flow(1, 1000)))

All actors of a cluster run one version, so a message may change freely. Nothing stores messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any, Generic, TypeVar, Union, get_args

import msgspec
import msgspec.structs
from msgspec import Meta, field

__all__ = [
    "Codec",
    "Message",
    "MessageError",
    "Meta",
    "Request",
    "decode_reply",
    "encode",
    "field",
    "method_of",
    "requests_of",
]

ReplyT = TypeVar("ReplyT")

Encoded = msgspec.Raw
"""A value that is encoded already; it is decoded later, with another type."""

_FIELD = re.compile(r" - at `\$\[(\d+)\](.*)`$")


class MessageError(ValueError):
    """A message or a reply has the wrong shape; the text names the message and the field."""


class Value(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A value with typed fields inside messages and replies. Its text shows no token."""

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{name}=..." if name == "token" else f"{name}={getattr(self, name)!r}"
            for name in self.__struct_fields__
        )
        return f"{type(self).__name__}({fields})"


class Message(Value, tag=True, tag_field="$message"):
    """A message that has no answer. The class name is its name on the wire."""


class Request(Message, Generic[ReplyT]):
    """A message with one answer of type ``ReplyT``."""


class _Never(Message):
    """Takes the place of the messages of an end that accepts none."""


encode = msgspec.msgpack.Encoder().encode
"""The bytes of a message or a reply. Raises `TypeError` for values that msgpack can't express."""

_plain = msgspec.msgpack.Decoder()


class Codec:
    """The messages that one end of a connection accepts; ``Codec()`` accepts none."""

    def __init__(self, *types: type[Message]) -> None:
        """Raises `TypeError` if two types have the same name."""
        self._types = {each.__name__: each for each in types}
        self._fields = {each.__name__: each.__struct_fields__ for each in types}
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
            Union[types or (_Never,)]  # noqa: UP007
        )

    def plus(self, *types: type[Message]) -> Codec:
        """A codec that accepts these messages too. Raises `TypeError` as the constructor does."""
        return Codec(*self._types.values(), *types)

    def decode(self, data: bytes) -> Message:
        """The message in ``data``. Raises `MessageError` if it isn't one of the accepted shapes."""
        try:
            message: Message = self._decoder.decode(data)
        except msgspec.DecodeError as error:
            raise MessageError(self._explain(data, str(error))) from error
        return message

    def knows(self, method: str) -> bool:
        """Whether a message has this method's name: ``create_topic`` stands for ``CreateTopic``."""
        return _class_name(method) in self._types

    def from_call(self, method: str, args: Mapping[str, Any]) -> Message:
        """The message that stands for a call by name with named arguments.

        Raises `MessageError` if no message has the method's name, or if arguments are missing,
        unknown or of another type.
        """
        name = _class_name(method)
        if name not in self._types:
            raise MessageError(f"unknown call {method!r}")
        fields = _fields_of(self._types[name])
        if unknown := sorted(set(args) - {each.name for each in fields}):
            raise MessageError(f"message {name}: unknown field {unknown[0]!r}")
        return self.decode(encode([name, *(_value_of(each, name, args) for each in fields)]))

    def _explain(self, data: bytes, fault: str) -> str:
        """The fault with the names of the message and the field in place of positions."""
        try:
            found = _plain.decode(data)
        except msgspec.DecodeError:
            return f"a message is damaged: {fault}"
        name = found[0] if isinstance(found, list) and found else found
        fields = self._fields.get(name) if isinstance(name, str) else None
        if fields is None:
            return f"unknown message {name!r}; known: {', '.join(sorted(self._fields)) or '(none)'}"
        place = _FIELD.search(fault)
        if place is None:
            return f"message {name}: it has the fields {', '.join(fields) or '(none)'}: {fault}"
        where = fields[int(place[1]) - 1] + place[2]
        return f"message {name}, field {where}: {fault[: place.start()]}"


@cache
def _fields_of(message: type[Message]) -> tuple[msgspec.structs.FieldInfo, ...]:
    # msgspec looks the annotations up anew each time, which leaves reference cycles behind.
    return msgspec.structs.fields(message)


def _value_of(info: msgspec.structs.FieldInfo, message: str, args: Mapping[str, Any]) -> Any:
    if info.name in args:
        return args[info.name]
    if info.required:
        raise MessageError(f"message {message}: field {info.name!r} is missing")
    if info.default_factory is not msgspec.NODEFAULT:
        return info.default_factory()
    return info.default


@cache
def _class_name(method: str) -> str:
    return "".join(map(str.capitalize, method.split("_")))


@cache
def method_of(request: type[Message]) -> str:
    """The name of a request in calls by name: ``create_topic`` of ``CreateTopic``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", request.__name__).lower()


@cache
def _reply_decoder(request: type[Request[Any]]) -> msgspec.msgpack.Decoder[Any]:
    for base in request.__orig_bases__:  # type: ignore[attr-defined]
        for reply in get_args(base):
            return msgspec.msgpack.Decoder(reply)
    raise TypeError(f"{request.__name__} must name its reply type: Request[...]")


def decode_reply(request: Request[ReplyT], data: bytes | Encoded) -> ReplyT:
    """The answer to ``request``. Raises `MessageError` if it isn't of the request's reply type."""
    try:
        reply: ReplyT = _reply_decoder(type(request)).decode(data)
    except msgspec.DecodeError as error:
        raise MessageError(f"reply to {type(request).__name__}: {error}") from error
    return reply


def requests_of(module: ModuleType) -> list[type[Request[Any]]]:
    """The requests that a module defines."""
    return [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Request) and each is not Request
    ]
