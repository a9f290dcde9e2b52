"""Schemas of single values, in the byte forms of Pulsar's Java client: numbers are big-endian."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, ClassVar

from velaray.client.exceptions import InvalidMessage, UndecodableMessage
from velaray.client.schema.base import Schema, T, undecodable
from velaray.schemas import SchemaInfo, SchemaType

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_ZERO = date(1970, 1, 1)
_MILLISECOND = timedelta(milliseconds=1)
_MICROSECOND = timedelta(microseconds=1)


def _refuse(schema: object, value: object, expected: str) -> InvalidMessage:
    name = type(schema).__name__
    return InvalidMessage(f"{name} takes {expected}, not {type(value).__name__} {value!r:.80}")


class StringSchema(Schema[str]):
    """Text, as UTF-8."""

    info = SchemaInfo(SchemaType.STRING, "STRING")

    def encode(self, value: str) -> bytes:
        """Return the text as UTF-8. Raises `InvalidMessage` for other types and lone surrogates."""
        if not isinstance(value, str):
            raise _refuse(self, value, "str")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidMessage(f"the text can't be encoded: {error}") from error

    def decode(self, data: bytes) -> str:
        """Return the text. Raises `UndecodableMessage`."""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise undecodable("UTF-8 text", error) from error


class _Packed(Schema[T]):
    """Values of a fixed number of bytes."""

    _form: ClassVar[struct.Struct]
    _expected: ClassVar[str]

    def encode(self, value: T) -> bytes:
        """Return the value's bytes. Raises `InvalidMessage`."""
        try:
            return self._form.pack(self._number(value))
        except (struct.error, OverflowError, TypeError) as error:
            raise _refuse(self, value, self._expected) from error

    def decode(self, data: bytes) -> T:
        """Return the value. Raises `UndecodableMessage`."""
        if len(data) != self._form.size:
            raise UndecodableMessage(f"{len(data)} bytes instead of {self._form.size}")
        try:
            value: T = self._value(self._form.unpack(data)[0])
        except (OverflowError, ValueError) as error:
            raise undecodable(self._expected, error) from error
        return value

    def _number(self, value: Any) -> Any:
        raise NotImplementedError

    def _value(self, number: Any) -> Any:
        return number


class _Integer(_Packed[int]):
    def _number(self, value: Any) -> Any:
        if isinstance(value, bool):
            raise TypeError
        return value


class Int8Schema(_Integer):
    """Integers of 8 bits."""

    info = SchemaInfo(SchemaType.INT8, "INT8")
    _form, _expected = struct.Struct(">b"), "an int of 8 bits"


class Int16Schema(_Integer):
    """Integers of 16 bits."""

    info = SchemaInfo(SchemaType.INT16, "INT16")
    _form, _expected = struct.Struct(">h"), "an int of 16 bits"


class Int32Schema(_Integer):
    """Integers of 32 bits."""

    info = SchemaInfo(SchemaType.INT32, "INT32")
    _form, _expected = struct.Struct(">i"), "an int of 32 bits"


class Int64Schema(_Integer):
    """Integers of 64 bits."""

    info = SchemaInfo(SchemaType.INT64, "INT64")
    _form, _expected = struct.Struct(">q"), "an int of 64 bits"


class _Real(_Packed[float]):
    def _number(self, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError
        return value


class FloatSchema(_Real):
    """Numbers of single precision; more precise values are rounded."""

    info = SchemaInfo(SchemaType.FLOAT, "FLOAT")
    _form, _expected = struct.Struct(">f"), "a number of single precision"


class DoubleSchema(_Real):
    """Numbers of double precision."""

    info = SchemaInfo(SchemaType.DOUBLE, "DOUBLE")
    _form, _expected = struct.Struct(">d"), "a number"


class BooleanSchema(_Packed[bool]):
    """True and False: one byte, 0 or not."""

    info = SchemaInfo(SchemaType.BOOLEAN, "BOOLEAN")
    _form, _expected = struct.Struct(">?"), "bool"

    def _number(self, value: Any) -> Any:
        if not isinstance(value, bool):
            raise TypeError
        return value


class _Moment(_Packed[datetime]):
    _form, _expected = struct.Struct(">q"), "a datetime with a time zone"

    def _number(self, value: Any) -> Any:
        if not isinstance(value, datetime) or value.tzinfo is None:
            raise TypeError
        return (value - _EPOCH) // _MILLISECOND

    def _value(self, number: Any) -> Any:
        return _EPOCH + number * _MILLISECOND


class DateSchema(_Moment):
    """Points in time, in milliseconds since 1970: Java's ``java.util.Date``.

    Decoded values are in UTC.
    """

    info = SchemaInfo(SchemaType.DATE, "Date")


class TimestampSchema(_Moment):
    """Points in time, in milliseconds since 1970: Java's ``java.sql.Timestamp``."""

    info = SchemaInfo(SchemaType.TIMESTAMP, "Timestamp")


class TimeSchema(_Packed[time]):
    """Times of day, in milliseconds since midnight: Java's ``java.sql.Time``, in UTC."""

    info = SchemaInfo(SchemaType.TIME, "Time")
    _form, _expected = struct.Struct(">q"), "a time of day without a time zone"

    def _number(self, value: Any) -> Any:
        return _since_midnight(value) // _MILLISECOND

    def _value(self, number: Any) -> Any:
        return (_EPOCH + number * _MILLISECOND).time()


class InstantSchema(Schema[datetime]):
    """Points in time, in seconds and nanoseconds since 1970: Java's ``Instant``.

    Python's datetime has microseconds: decoding truncates the rest.
    """

    info = SchemaInfo(SchemaType.INSTANT, "Instant")
    _form = struct.Struct(">qi")

    def encode(self, value: datetime) -> bytes:
        """Return twelve bytes. Raises `InvalidMessage`."""
        if not isinstance(value, datetime) or value.tzinfo is None:
            raise _refuse(self, value, "a datetime with a time zone")
        seconds, micros = divmod((value - _EPOCH) // _MICROSECOND, 1_000_000)
        return self._form.pack(seconds, micros * 1000)

    def decode(self, data: bytes) -> datetime:
        """Return the point in time, in UTC. Raises `UndecodableMessage`."""
        try:
            seconds, nanos = self._form.unpack(data)
            return _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
        except (struct.error, OverflowError) as error:
            raise undecodable("an Instant", error) from error


class LocalDateSchema(_Packed[date]):
    """Days, counted from 1970-01-01: Java's ``LocalDate``."""

    info = SchemaInfo(SchemaType.LOCAL_DATE, "LocalDate")
    _form, _expected = struct.Struct(">q"), "a date"

    def _number(self, value: Any) -> Any:
        if not isinstance(value, date) or isinstance(value, datetime):
            raise TypeError
        return (value - _DAY_ZERO).days

    def _value(self, number: Any) -> Any:
        return _DAY_ZERO + timedelta(days=number)


class LocalTimeSchema(_Packed[time]):
    """Times of day, in nanoseconds since midnight: Java's ``LocalTime``."""

    info = SchemaInfo(SchemaType.LOCAL_TIME, "LocalTime")
    _form, _expected = struct.Struct(">q"), "a time of day without a time zone"

    def _number(self, value: Any) -> Any:
        return _since_midnight(value) // _MICROSECOND * 1000

    def _value(self, number: Any) -> Any:
        return (_EPOCH + timedelta(microseconds=number // 1000)).time()


class LocalDateTimeSchema(Schema[datetime]):
    """A day and a time of day without time zone: Java's ``LocalDateTime``."""

    info = SchemaInfo(SchemaType.LOCAL_DATE_TIME, "LocalDateTime")
    _form = struct.Struct(">qq")

    def encode(self, value: datetime) -> bytes:
        """Return sixteen bytes. Raises `InvalidMessage`."""
        if not isinstance(value, datetime) or value.tzinfo is not None:
            raise _refuse(self, value, "a datetime without a time zone")
        micros = _since_midnight(value.time()) // _MICROSECOND
        return self._form.pack((value.date() - _DAY_ZERO).days, micros * 1000)

    def decode(self, data: bytes) -> datetime:
        """Return the date and time. Raises `UndecodableMessage`."""
        try:
            days, nanos = self._form.unpack(data)
            day = _DAY_ZERO + timedelta(days=days)
            return datetime.combine(day, time()) + timedelta(microseconds=nanos // 1000)
        except (struct.error, OverflowError) as error:
            raise undecodable("a LocalDateTime", error) from error


def _since_midnight(value: Any) -> timedelta:
    if not isinstance(value, time) or value.tzinfo is not None:
        raise TypeError
    return timedelta(
        hours=value.hour,
        minutes=value.minute,
        seconds=value.second,
        microseconds=value.microsecond,
    )


PRIMITIVES: dict[SchemaType, Schema[Any]] = {
    schema.info.type: schema
    for schema in (
        StringSchema(),
        Int8Schema(),
        Int16Schema(),
        Int32Schema(),
        Int64Schema(),
        FloatSchema(),
        DoubleSchema(),
        BooleanSchema(),
        DateSchema(),
        TimeSchema(),
        TimestampSchema(),
        InstantSchema(),
        LocalDateSchema(),
        LocalTimeSchema(),
        LocalDateTimeSchema(),
    )
}
"""The schemas of these types; there is one instance of each."""
