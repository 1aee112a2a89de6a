"""Reads the files of CatBoost. In models, which are FlatBuffers, a random id and the time of training are ignored.

They are in a list of facts, the only part of the FlatBuffer that is parsed. The trees follow it, and contain no offsets
that depend on the facts: they are compared as bytes, up to the end of the file.
"""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Blob, Limits, Part, Source, Value
from reprokit.diff.formats import json
from reprokit.diff.sources import piece, read_exactly, read_whole

START = 8  # bytes of signature and size before the FlatBuffer
VERSION, TREES, FACTS = 0, 1, 2  # fields of the root table: FormatVersion, ModelTrees, InfoMap, ModelPartIds
KEY, VALUE = 0, 1
LONGEST_KEY = 1000  # also of the version
OF_ONE_TRAINING = ("model_guid", "train_finish_time")


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the version and the facts except those that differ in each training, then the trees and the rest."""
    end = START + _number(source, 4)
    if end > source.size:
        raise ArtifactDamaged(f"its model ends at byte {end}, the file at {source.size}")
    root, end_of_facts = START + _number(source, START), START
    version = _text(source, root, VERSION, LONGEST_KEY)
    yield Value("version", "" if version is None else _decoded(source, *version))
    for key, (start, size) in _facts(source, root, limits):
        end_of_facts = max(end_of_facts, start + size)
        if key not in OF_ONE_TRAINING:
            yield Value(f"facts/{key}", _decoded(source, start, size))
    field = _field(source, root, TREES)
    trees = field + _number(source, field) if field is not None else end
    if trees < end_of_facts:
        raise ArtifactDamaged("its trees do not follow its facts")
    yield Blob("trees", piece(source, trees, source.size - trees))


def log(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield catboost_training.json without the times of the iterations."""
    for part in json.read(source, limits):
        if not part.name.endswith(("/passed_time", "/remaining_time")):
            yield part


def times(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the iterations in time_left.tsv; the other columns are times."""
    lines = read_whole(source, limits.text).split(b"\n")
    yield Value("iterations", b" ".join(line.partition(b"\t")[0] for line in lines).decode("utf-8", "replace"))


def _facts(source: Source, root: int, limits: Limits) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield each key, with offset and size of its value."""
    field = _field(source, root, FACTS)
    if field is None:
        return
    vector = field + _number(source, field)
    count = _number(source, vector)
    if count > min(limits.parts, source.size // 4):
        raise ArtifactDamaged(f"it is said to have {count} facts")
    for position in range(vector + 4, vector + 4 + 4 * count, 4):
        table = position + _number(source, position)
        key, value = _text(source, table, KEY, LONGEST_KEY), _text(source, table, VALUE, limits.text)
        if key is not None and value is not None:
            yield _decoded(source, *key), value


def _text(source: Source, table: int, number: int, longest: int) -> tuple[int, int] | None:
    """Return offset and size of a text in a table; None if it is missing."""
    field = _field(source, table, number)
    if field is None:
        return None
    start = field + _number(source, field)
    size = _number(source, start)
    if size > longest or start + 4 + size > source.size:
        raise ArtifactDamaged(f"a text of it is said to have {size} bytes")
    return start + 4, size


def _decoded(source: Source, start: int, size: int) -> str:
    return read_exactly(source, start, size).decode("utf-8", "backslashreplace")


def _field(source: Source, table: int, number: int) -> int | None:
    """Return the offset of a field by the vtable, which precedes the table; None if the field is missing."""
    fields = table - int.from_bytes(read_exactly(source, table, 4), "little", signed=True)
    if fields < START or 4 + 2 * number >= _number(source, fields, 2):
        return None
    offset = _number(source, fields + 4 + 2 * number, 2)
    return table + offset if offset else None


def _number(source: Source, at: int, size: int = 4) -> int:
    return int.from_bytes(read_exactly(source, at, size), "little")
