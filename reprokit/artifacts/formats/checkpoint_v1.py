"""TensorFlow's checkpoints of the first kind: one table of tensors, or of parts of them, in one file.

See tensorflow/core/util/saved_tensor_slice.proto and tensor_slice_writer.cc. The header has shape and type of each
tensor; what stands under the other keys is a part of one, its elements in a list for their type.
"""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.formats import sstable, tensorflow_messages
from reprokit.artifacts.formats.messages import Walker
from reprokit.artifacts.formats.protobuf import BYTES, VARINT, Field, signed
from reprokit.artifacts.formats.slices import decoded
from reprokit.artifacts.parts import Limits, Part, Source
from reprokit.artifacts.sources import Memory
from reprokit.errors import ArtifactDamaged

Shape = tuple[int, ...]


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """What the header says of all tensors, then each in the order of its name."""
    known: dict[bytes, tuple[Shape, int]] = {}
    for number, (key, value) in enumerate(sstable.entries(source, limits)):
        if (number == 0) != (not key):
            raise ArtifactDamaged("it does not begin with its header")
        walker = tensorflow_messages.walker(Memory(value), limits)
        if key:
            yield from _slice(walker, decoded(key), len(value), known)
        else:
            known = dict(_tensors(walker, len(value)))
            yield from walker.message("(header)", "SavedTensorSlices")


def _messages(walker: Walker, at: int, end: int, number: int) -> Iterator[Field]:
    """The messages of a field, however many there are."""
    return (field for field in walker.wire.fields(at, end) if (field.number, field.kind) == (number, BYTES))


def _tensors(walker: Walker, size: int) -> Iterator[tuple[bytes, tuple[Shape, int]]]:
    """Shapes and types of tensors by their names."""
    for meta in _messages(walker, 0, size, 1):
        for tensor in _messages(walker, meta.at, meta.end, 1):
            name, shape, dtype = b"", Shape(), 0
            for field in _messages(walker, tensor.at, tensor.end, 1):
                name = walker.wire.source.read(field.at, field.end - field.at)
            for field in _messages(walker, tensor.at, tensor.end, 2):
                shape, _ = tensorflow_messages.shape(walker, field.at, field.end)
            for field in walker.wire.fields(tensor.at, tensor.end):
                dtype = field.value if (field.number, field.kind) == (3, VARINT) else dtype
            yield name, (shape, dtype)


def _slice(walker: Walker, path: str, size: int, known: dict[bytes, tuple[Shape, int]]) -> Iterator[Part]:
    """The elements of one part of a tensor, and whatever else stands there."""
    for data in walker.wire.fields(0, size):
        if (data.number, data.kind) != (2, BYTES):
            raise ArtifactDamaged(f"{path[:200]!r} holds field {data.number}, which is not known")
        shape, dtype = Shape(), 0
        for field in walker.wire.fields(data.at, data.end):
            if (field.number, field.kind) == (1, BYTES):
                shape, dtype = known.get(walker.wire.source.read(field.at, field.end - field.at), (shape, dtype))
            elif (field.number, field.kind) == (2, BYTES):
                shape = tuple(_lengths(walker, field, shape))
            elif (field.number, field.kind) == (3, BYTES):
                yield from tensorflow_messages.tensor(walker, path, field.at, field.end, shape, dtype)
            else:
                raise ArtifactDamaged(f"{path[:200]!r} holds field {field.number}, which is not known")


def _lengths(walker: Walker, part: Field, shape: Shape) -> Iterator[int]:
    """The shape of a part of a tensor of this shape."""
    extents = list(_messages(walker, part.at, part.end, 1))
    if len(extents) != len(shape):
        raise ArtifactDamaged(f"a part has {len(extents)} dimensions, its tensor {len(shape)}")
    for extent, whole in zip(extents, shape, strict=True):
        found = {
            field.number: signed(field.value)
            for field in walker.wire.fields(extent.at, extent.end)
            if field.kind == VARINT
        }
        yield found.get(2, whole)
