"""Logs what compiled functions returned, and the small variables that they changed, so that a replay leaves calls out.

A record of a call has the function's number and name, the tensors that were returned, and the variables with other
values than at the last call. Of large tensors only the layout is kept.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Tensor = tuple[str, tuple[int, ...], bytes | None]  # dtype, shape, and bytes of one that is small

DTYPES = (
    "", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "bfloat16", "complex64", "complex128",
)  # fmt: skip
IS_MADE = 1  # flag: a replay makes the call, too: it builds a graph, failed, or is recorded by a gradient tape
IS_FIRST = 2  # flag: the function's name follows
MAX_TENSOR = 256  # bytes of a tensor that is kept
MAX_VARIABLE = 32  # bytes of a variable that is kept, as a count, a rate, a metric's sum, or a generator's state
MAX_COUNT = 255  # tensors of a result, or variables
MAX_NAME = 200
MAX_DIMENSIONS = 32
_HEAD = struct.Struct("<BIBB")  # flags, function, tensors, variables
_VARIABLE = struct.Struct("<IH")  # number, bytes
_NOT_KEPT = 0xFFFF  # in place of a number of bytes


class LoggedCall:
    """One call, as it is in the log."""

    def __init__(self, function: int, name: str, *, is_made: bool) -> None:
        self.function, self.name, self.is_made = function, name, is_made
        self.tensors: list[Tensor | None] = []  # those of the result, in order; None for what is none
        self.variables: dict[int, bytes] = {}  # the changed ones, by number


def packed(
    function: int, name: str, tensors: Sequence[Tensor | None], variables: Mapping[int, bytes], *, is_made: bool
) -> bytes:
    """Return the record of a call; the name is empty but at the function's first call."""
    flags = IS_MADE * is_made | IS_FIRST * bool(name)
    parts = [_HEAD.pack(flags, function, len(tensors), len(variables))]
    if name:
        text = name.encode("utf-8", "backslashreplace")[:MAX_NAME]
        parts += [bytes([len(text)]), text]
    for tensor in tensors:
        if tensor is None:
            parts.append(b"\0")
            continue
        dtype, shape, data = tensor
        size = _NOT_KEPT if data is None else len(data)
        head = bytes([DTYPES.index(dtype), len(shape)])
        parts += [head, struct.pack(f"<{len(shape)}QH", *shape, size), data or b""]
    for number, data in variables.items():
        parts += [_VARIABLE.pack(number, len(data)), data]
    return b"".join(parts)


def calls_in(data: bytes) -> Iterator[LoggedCall]:
    """Yield one call after the other; raises ValueError if the log is damaged."""
    names: dict[int, str] = {}
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        part = data[at : at + size]
        if len(part) != size:
            raise ValueError("the log of calls is cut short")
        at += size
        return part

    def tensor() -> Tensor | None:
        dtype = take(1)[0]
        if not dtype:
            return None
        count = take(1)[0]
        if dtype >= len(DTYPES) or count > MAX_DIMENSIONS:
            raise ValueError("the log of calls is damaged")
        *shape, size = struct.unpack(f"<{count}QH", take(8 * count + 2))
        return DTYPES[dtype], tuple(shape), None if size == _NOT_KEPT else take(size)

    while at < len(data):
        flags, function, tensors, variables = _HEAD.unpack(take(_HEAD.size))
        if flags & IS_FIRST:
            names[function] = take(take(1)[0]).decode("utf-8", "replace")
        if function not in names or flags > IS_MADE | IS_FIRST:
            raise ValueError("the log of calls is damaged")
        record = LoggedCall(function, names[function], is_made=bool(flags & IS_MADE))
        for _ in range(tensors):
            record.tensors.append(tensor())
        for _ in range(variables):
            number, size = _VARIABLE.unpack(take(_VARIABLE.size))
            record.variables[number] = take(size)
        yield record
