"""Conversion between Arrow arrays and batches.

pyarrow and numpy are optional: only this module needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from velaray.client.exceptions import InvalidMessage, OperationNotSupported
from velaray.wire.batches import plain_head

if TYPE_CHECKING:
    from velaray.client.blocks import Segment

_LARGEST_ARRAY: Final = (1 << 31) - 1
"""Largest key, in bytes, whose head has the common form; longer keys are handled as lists."""

KEY_LIMIT = 112
"""Largest size of keys whose heads have one form; larger ones are handled as lists."""


def is_array(values: object) -> bool:
    """Whether ``values`` is a pyarrow Array or ChunkedArray, without importing pyarrow."""
    return type(values).__module__.partition(".")[0] == "pyarrow"


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.compute
    except ImportError as error:
        raise OperationNotSupported(
            "Arrow arrays need pyarrow and numpy: pip install 'velaray[arrow]'"
        ) from error
    return pyarrow


def binary_array(values: Any, what: str) -> Any:
    """Convert a pyarrow array to a ``BinaryArray`` or ``LargeBinaryArray`` that shares its bytes.

    Raises `InvalidMessage` for an array of anything but bytes or text.
    """
    pa = _pyarrow()
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
        if isinstance(values, pa.ChunkedArray):  # no chunk or several, depending on the version
            values = (
                pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], "binary")
            )
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return values
    if pa.types.is_large_string(kind):
        return values.cast(pa.large_binary())
    if pa.types.is_string(kind) or pa.types.is_fixed_size_binary(kind):
        return values.cast(pa.binary())
    raise InvalidMessage(f"{what} must be an array of bytes, not of {kind}; encode it first")


def text_array(values: Any, what: str) -> Any:
    """Convert a pyarrow array of text as `binary_array` does.

    Raises `InvalidMessage` for an array of anything else.
    """
    pa = _pyarrow()
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return binary_array(values, what)
    raise InvalidMessage(f"{what} must be an array of text, not of {values.type}")


def is_text(values: Any) -> bool:
    """Whether a pyarrow array holds text."""
    pa = _pyarrow()
    return bool(pa.types.is_string(values.type) or pa.types.is_large_string(values.type))


def sizes_of(array: Any) -> Any:
    """The length of each value, as a numpy array of 64 bit integers."""
    pa = _pyarrow()
    return pa.compute.binary_length(array).to_numpy(zero_copy_only=False).astype("int64")


def pack_array(values: Any, keys: Any | None) -> bytes | memoryview:
    """Encode a binary array without nulls, and optionally its keys, as the payload of a batch.

    No key is empty or longer than `KEY_LIMIT` bytes.
    """
    pa = _pyarrow()
    import numpy as np

    sizes = sizes_of(values)
    first = int(sizes[0])
    if keys is None and (sizes == first).all():
        return _pack_equal(np, values, first)
    unique, codes = np.unique(sizes, return_inverse=True)
    kind = values.type
    heads = [plain_head(int(size)) for size in unique]
    nothing = pa.scalar(b"", kind)
    join = pa.compute.binary_join_element_wise
    if keys is None:
        joined = join(pa.array(heads, kind).take(pa.array(codes)), values, nothing)
    else:
        tails = [head[4:] for head in heads]
        fixed = _key_heads(np, sizes_of(keys), np.array(list(map(len, tails)))[codes])
        front = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(6), len(values), [None, pa.py_buffer(fixed)]
        ).cast(kind)
        back = pa.array(tails, kind).take(pa.array(codes))
        joined = join(front, keys.cast(kind), back, values, nothing)
    return _bytes_of(np, joined)


def _key_heads(np: Any, key_sizes: Any, tail_sizes: Any) -> Any:
    # [u32 size of the metadata][tag of the key][its length]: six bytes before each key.
    heads = np.zeros((len(key_sizes), 6), np.uint8)
    heads[:, 3] = 2 + key_sizes + tail_sizes
    heads[:, 4] = 0x12
    heads[:, 5] = key_sizes
    return heads


def _offsets(np: Any, array: Any) -> Any:
    width = np.int64 if str(array.type).startswith("large") else np.int32
    start = array.offset
    return np.frombuffer(array.buffers()[1], width)[start : start + len(array) + 1]


def _bytes_of(np: Any, array: Any) -> memoryview:
    offsets = _offsets(np, array)
    # Arrow's own view has signed bytes, which ciphers don't take.
    return memoryview(array.buffers()[2]).cast("B")[int(offsets[0]) : int(offsets[-1])]


def _pack_equal(np: Any, values: Any, size: int) -> bytes | memoryview:
    head = plain_head(size)
    packed = np.empty((len(values), len(head) + size), np.uint8)
    packed[:, : len(head)] = np.frombuffer(head, np.uint8)
    if size:
        data = np.frombuffer(_bytes_of(np, values), np.uint8)
        packed[:, len(head) :] = data.reshape(len(values), size)
    return memoryview(packed).cast("B")


def array_of(segments: Sequence[Segment], nulls: Callable[[Segment], list[int]]) -> Any:
    """The values of received segments as one ``BinaryArray``; those in ``nulls`` are null."""
    pa = _pyarrow()
    if not segments:
        return pa.array([], pa.binary())
    uniform = [_uniform(segment) for segment in segments]
    known = [each for each in uniform if each is not None]
    if len(known) == len(segments) and sum(each.nbytes for each in known) <= _LARGEST_ARRAY:
        return _array_of_equal(pa, known)
    arrays = [_segment_array(pa, segment, nulls(segment)) for segment in segments]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


class _Uniform(NamedTuple):
    """Values of one length in a batch: ``messages`` times a head and ``size`` bytes."""

    view: memoryview
    messages: int
    head: int
    size: int

    @property
    def nbytes(self) -> int:
        return self.messages * self.size


def _uniform(segment: Segment) -> _Uniform | None:
    indexes = segment.indexes
    if not isinstance(indexes, range):
        return None
    found = segment.block.layout.uniform(indexes.start, indexes.stop)
    if found is None:
        return None
    view, stride, head = found
    return _Uniform(view, len(indexes), head, stride - head)


def _array_of_equal(pa: Any, parts: Sequence[_Uniform]) -> Any:
    """Build one array of all values; each value is copied once."""
    import numpy as np

    counts = [part.messages for part in parts]
    sizes = np.repeat(np.array([part.size for part in parts], np.int32), counts)
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    at = 0
    for view, count, head, size in parts:
        rows = np.frombuffer(view, np.uint8).reshape(count, head + size)
        data[at : at + count * size].reshape(count, size)[:] = rows[:, head:]
        at += count * size
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)


def _segment_array(pa: Any, segment: Segment, nulls: list[int]) -> Any:
    values: list[bytes | None] = list(segment.values())
    for number in nulls:
        values[number] = None
    return pa.array(values, pa.binary())
