"""The values and keys of a ``send_many``: validation, division into entries, encoding. No I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol

from velaray.client.arrow import (
    KEY_LIMIT,
    binary_array,
    is_array,
    is_text,
    pack_array,
    sizes_of,
    text_array,
)
from velaray.client.exceptions import InvalidMessage, MessageTooBig, OperationNotSupported
from velaray.client.schema.base import BYTES, Schema
from velaray.client.schema.primitives import StringSchema
from velaray.wire.batches import pack, pack_plain

ENTRY_SIZE = 512 * 1024
"""Target size of an entry's payload in ``send_many``, in bytes."""

ENTRY_MESSAGES = 16_384
"""Limit of messages in an entry."""

_HEAD = 24
"""Largest overhead of a message, besides its value and key, in bytes."""


class Values(Protocol):
    """Values with their keys."""

    def __len__(self) -> int: ...

    def room(self, row: int) -> int:
        """Upper bound of the bytes that a value needs in a batch."""

    def largest(self) -> int:
        """The row of the value that needs the most bytes."""

    def cuts(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield consecutive rows that fit into entries of ``size`` bytes of payload."""

    def pack(self, first: int, end: int) -> bytes | memoryview:
        """Encode these rows as the payload of a batch."""

    def key(self, row: int) -> str | None:
        """The key of a row, None if it has none."""

    def keys(self) -> Sequence[str | None]:
        """The keys of all rows, None where there is none."""

    @property
    def longest_key(self) -> int:
        """Bytes of the longest key."""

    def value(self, row: int) -> bytes | None:
        """The value of a row, None for a tombstone."""

    def select(self, rows: Sequence[int]) -> Values:
        """Return these rows only."""

    @property
    def keyed(self) -> bool:
        """Whether keys were given."""


class ListValues:
    """Values and keys in lists."""

    def __init__(
        self, values: Sequence[bytes | None], keys: Sequence[str | None] | None, plain: bool
    ) -> None:
        self._values = values
        self._keys = keys
        self._plain = plain and keys is None
        if self._plain:
            self._sizes = list(map(len, values))  # type: ignore[arg-type]
        else:
            self._sizes = [len(value or b"") for value in values]
        if keys is not None:
            pairs = zip(self._sizes, keys, strict=True)
            self._sizes = [size + (2 + len(key.encode()) if key else 0) for size, key in pairs]

    def __len__(self) -> int:
        return len(self._values)

    def room(self, row: int) -> int:
        """Upper bound of the bytes that a value needs in a batch."""
        return self._sizes[row] + _HEAD

    def largest(self) -> int:
        """The row of the value that needs the most bytes."""
        return self._sizes.index(max(self._sizes))

    def cuts(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield consecutive rows that fit into entries of ``size`` bytes of payload."""
        sums = list(accumulate(self._sizes))
        return _cuts(len(sums), size, lambda row: sums[row], lambda s: bisect_right(sums, s))

    def pack(self, first: int, end: int) -> bytes:
        """Encode these rows as the payload of a batch."""
        values = self._values[first:end]
        if self._plain:
            return pack_plain(values)  # type: ignore[arg-type]
        return pack(values, None if self._keys is None else self._keys[first:end])

    def key(self, row: int) -> str | None:
        """The key of a row, None if it has none."""
        return (self._keys[row] or None) if self._keys is not None else None

    def keys(self) -> Sequence[str | None]:
        """The keys of all rows, None where there is none."""
        return [key or None for key in self._keys or [None] * len(self)]

    @property
    def longest_key(self) -> int:
        """Bytes of the longest key."""
        return max((len(key.encode()) for key in set(self._keys or ()) if key), default=0)

    def value(self, row: int) -> bytes | None:
        """The value of a row, None for a tombstone."""
        return self._values[row]

    def select(self, rows: Sequence[int]) -> ListValues:
        """Return these rows only."""
        keys = None if self._keys is None else [self._keys[row] for row in rows]
        return ListValues([self._values[row] for row in rows], keys, self._plain)

    @property
    def keyed(self) -> bool:
        """Whether keys were given."""
        return self._keys is not None


class ArrowValues:
    """Values and keys in Arrow arrays without nulls; no key is empty."""

    def __init__(self, values: Any, keys: Any | None) -> None:
        self._values = values
        self._keys = keys
        self._sizes = sizes_of(values)
        if keys is not None:
            self._sizes = self._sizes + sizes_of(keys) + 2

    def __len__(self) -> int:
        return len(self._values)

    def room(self, row: int) -> int:
        """Upper bound of the bytes that a value needs in a batch."""
        return int(self._sizes[row]) + _HEAD

    def largest(self) -> int:
        """The row of the value that needs the most bytes."""
        return int(self._sizes.argmax())

    def cuts(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield consecutive rows that fit into entries of ``size`` bytes of payload."""
        sums = self._sizes.cumsum()
        return _cuts(
            len(sums),
            size,
            lambda row: int(sums[row]),
            lambda s: int(sums.searchsorted(s, "right")),
        )

    def pack(self, first: int, end: int) -> bytes | memoryview:
        """Encode these rows as the payload of a batch."""
        keys = None if self._keys is None else self._keys[first:end]
        return pack_array(self._values[first:end], keys)

    def key(self, row: int) -> str | None:
        """The key of a row, None if it has none."""
        return None if self._keys is None else self._keys[row].as_py().decode()

    def keys(self) -> Sequence[str | None]:
        """The keys of all rows, None where there is none."""
        if self._keys is None:
            return [None] * len(self)
        return [key.decode() for key in self._keys.to_pylist()]

    @property
    def longest_key(self) -> int:
        """Bytes of the longest key."""
        return 0 if self._keys is None else int(sizes_of(self._keys).max())

    def value(self, row: int) -> bytes:
        """The value of a row."""
        value: bytes = self._values[row].as_py()
        return value

    def select(self, rows: Sequence[int]) -> ArrowValues:
        """Return these rows only."""
        keys = None if self._keys is None else self._keys.take(list(rows))
        return ArrowValues(self._values.take(list(rows)), keys)

    @property
    def keyed(self) -> bool:
        """Whether keys were given."""
        return self._keys is not None


def _cuts(
    count: int, size: int, total: Callable[[int], int], within: Callable[[int], int]
) -> Iterator[tuple[int, int]]:
    # `total(row)`: bytes of all rows up to it; `within(sum)`: number of rows with that total.
    first = 0
    while first < count:
        before = total(first - 1) if first else 0
        end = min(first + ENTRY_MESSAGES, within(before + size), count)
        # Heads count as well: they can reduce the number of rows.
        while end - first > 1 and total(end - 1) - before + (end - first) * _HEAD > size:
            rows = end - first
            average = (total(end - 1) - before) / rows + _HEAD
            end = first + max(min(int(size / average), rows - 1), 1)
        end = max(end, first + 1)
        yield first, end
        first = end


def values_of(values: Any, keys: Any | None) -> Values:
    """Validate the arguments of ``send_many``.

    Raises `InvalidMessage` for values other than bytes, None or text, and for a number of keys that
    differs from the number of values.
    """
    if keys is not None and len(keys) != len(values):
        raise InvalidMessage(f"{len(values)} values and {len(keys)} keys: give one for each")
    if is_array(values):
        array = binary_array(values, "values")
        if not array.null_count:
            if keys is None:
                return ArrowValues(array, None)
            if is_array(keys) and (usable := _key_array(keys, array.type)) is not None:
                return ArrowValues(array, usable)
        values = array.to_pylist()
    if keys is not None and is_array(keys):
        keys = keys.to_pylist()
    return _lists_of(values, keys)


def encoded_values(values: Any, schema: Schema[Any]) -> Any:
    """Encode each value with ``schema``; None stays None. All values are encoded, or none.

    Raises `InvalidMessage`, whose text names the wrong value, and `OperationNotSupported` for a
    schema whose values include their keys.
    """
    if schema.separate_key:
        raise OperationNotSupported("send_many: a SEPARATED KeyValue brings its key; use send")
    if is_array(values):
        if isinstance(schema, StringSchema) and is_text(values):
            return values
        values = values.to_pylist()
    if isinstance(values, str | bytes | bytearray | memoryview | Mapping):
        raise InvalidMessage("values must be a sequence; send one message with send()")
    encode = schema.encode
    items: Sequence[Any] = values if isinstance(values, list | tuple) else list(values)
    try:
        return [None if value is None else encode(value) for value in items]
    except InvalidMessage:
        for number, value in enumerate(items):
            try:
                None if value is None else encode(value)
            except InvalidMessage as error:
                raise InvalidMessage(f"value {number}: {error}; nothing was sent") from error
        raise


def _key_array(keys: Any, kind: Any) -> Any | None:
    array = text_array(keys, "keys").cast(kind)
    if array.null_count or not len(array):
        return None
    sizes = sizes_of(array)
    return array if sizes.min() > 0 and sizes.max() <= KEY_LIMIT else None


def _lists_of(values: Any, keys: Any | None) -> ListValues:
    if isinstance(values, str | bytes | bytearray | memoryview):
        raise InvalidMessage("values must be a sequence of bytes; send one message with send()")
    items: Sequence[bytes | None] = values if isinstance(values, list | tuple) else list(values)
    kinds = set(map(type, items))
    if not kinds <= {bytes, type(None)}:
        items = [value if value is None else BYTES.encode(value) for value in items]
    if keys is not None:
        keys = list(keys)
        wrong = [key for key in keys if not isinstance(key, str | None)]
        if wrong:
            raise InvalidMessage(f"keys must be str or None: {wrong[0]!r}")
        try:
            "".join(filter(None, set(keys))).encode()
        except UnicodeEncodeError as error:
            raise InvalidMessage(f"a key can't be encoded: {error}") from error
    return ListValues(items, keys, type(None) not in kinds)


def check_sizes(values: Values, limit: int) -> None:
    """Raise `MessageTooBig` if a value doesn't fit into a batch of ``limit`` bytes."""
    row = values.largest()
    needed = values.room(row)
    if needed > limit:
        raise MessageTooBig(
            f"value {row} of {len(values)} needs {needed} bytes, an entry has room for {limit};"
            " nothing was sent. Send smaller values, or this one alone with send() and"
            " chunking_enabled=True"
        )
