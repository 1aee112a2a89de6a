"""Hugging Face's datasets: which record of which file each sample of an IterableDataset is, for the ledger of samples.

An iterable gives keys beside its samples. Steps hand them on, or join those of all samples of a batch. Ours begin and
end with a byte that nothing else has, so that one that is joined of several is known, and tells nothing.
Arrow tables lose them in buffers that shuffle; there, rows are known by where their values lie in memory.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from copy import copy

from ..core.patching import Function, replace
from ..reader_names import file_name, named
from .base import Adapter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..agent import Agent

ITERABLES = "datasets.iterable_dataset"
MARK = "\0"  # around our keys
MAX_COLUMNS, MAX_PLACES, MAX_SLICES = 8, 256, 8  # of a table; columns that are kept, and pieces of each


class ShardReader:
    """Calls a reader's function for each shard, and knows the shard's file."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._config = getattr(getattr(function, "__self__", None), "config", None)
        self._paths: set[str] = set()
        self._file = ""
        self._iterables: list[
            Any
        ] = []  # of datasets before 5, whose elements go over one path, which may be a directory

    def __call__(self, **keywords: Any) -> Any:
        first = [value[0] for value in keywords.values() if isinstance(value, list) and len(value) == 1]
        self._iterables = [some for some in first if isinstance(getattr(some, "args", None), tuple) and some.args]
        paths = {some for some in [*first, *(some.args[0] for some in self._iterables)] if isinstance(some, str)}
        # Rows that the reader leaves out by itself would be missing from the count.
        is_part = getattr(self._config, "filters", None) is not None or any(
            name.startswith("row_group") and value != [None] for name, value in keywords.items() if value
        )
        self._paths = set() if is_part else paths
        self._file = only_name(self._paths)
        return self._function(**keywords)

    @property
    def file(self) -> str:
        """The name of the file that is read; empty where it is not the only one of its shard."""
        if not self._iterables:
            return self._file
        return only_name(self._paths.union(getattr(some, "last_item", None) or "" for some in self._iterables) - {""})


def only_name(paths: set[str]) -> str:
    """Return the file name that all paths have; empty where there is none."""
    names = set(map(file_name, paths))
    return names.pop() if len(names) == 1 else ""


class NotedKeys:
    """What map reads from, which gives the numbers of its samples for their keys: notes which key each number has."""

    def __init__(self, source: Any, first: int) -> None:
        self._source, self._count, self.keys = source, first, {}  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def __iter__(self) -> Iterator[Any]:
        for key, sample in self._source:
            self.keys[self._count] = key
            self._count += 1
            yield key, sample


class ArrowRows:
    """Knows the rows of Arrow tables by the addresses of their columns, which are kept, so that nobody reuses one."""

    def __init__(self) -> None:
        self._files: list[str] = []
        self._places: OrderedDict[int, list[Any]] = OrderedDict()  # offset, rows' numbers and column, by address

    def add(self, table: Any, file: str, first: int) -> None:
        """Note the rows of a table that was read."""
        if file not in self._files[-1:]:
            self._files.append(file)
        base = (len(self._files) - 1 << 40) + first
        self._note(table, sys.modules["numpy"].arange(base, base + len(table)))

    def _note(self, table: Any, numbers: Any) -> None:
        for column in table.columns[:MAX_COLUMNS]:
            at = 0
            for chunk in column.chunks:
                pieces = self._places.setdefault(address(chunk), [])
                pieces[: 1 - MAX_SLICES] = []
                pieces.append((chunk.offset, numbers[at : at + len(chunk)], chunk))
                at += len(chunk)
        while len(self._places) > MAX_PLACES:
            self._places.popitem(last=False)

    def _numbers(self, chunk: Any) -> Any:
        """Return the numbers of the rows of a chunk; None where they are not known."""
        place, offset = address(chunk), chunk.offset
        for first, numbers, _ in reversed(self._places.get(place, ())) if place else ():
            if first <= offset and offset - first + len(chunk) <= len(numbers):
                return numbers[offset - first : offset - first + len(chunk)]
        return None

    def took(self, table: Any, indices: Any, result: Any) -> None:
        """Note that a table was made of rows of another one."""
        numbers = [self._numbers(chunk) for chunk in table.columns[0].chunks]
        if numbers and all(some is not None for some in numbers):
            numpy = sys.modules["numpy"]
            self._note(result, numpy.concatenate(numbers)[numpy.asarray(indices)])

    def record(self, table: Any) -> str | None:
        """Return which record a table of one row is."""
        column = table.column(0) if table.num_columns and table.num_rows == 1 else None
        numbers = self._numbers(column.chunk(0)) if column is not None and column.num_chunks == 1 else None
        if numbers is None:
            return None
        number = int(numbers[0])
        return key_of(self._files[number >> 40], number & (1 << 40) - 1)


def key_of(file: str, record: int) -> str:
    """Return our key of a sample."""
    return f"{MARK}{file}:{record}{MARK}"


def address(chunk: Any) -> int:
    """Return where the values of an Arrow array begin; 0 where it has none."""
    return next((buffer.address for buffer in reversed(chunk.buffers()) if buffer is not None and buffer.size), 0)


class DatasetsAdapter(Adapter):
    """Watches datasets.iterable_dataset."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._rows = ArrowRows()

    def instrument(self, name: str, module: Any) -> None:
        if name != ITERABLES:
            super().instrument(name, module)
            return
        replace(module.IterableDataset, "__iter__", self._make_iter)
        for kind in ("", "ShuffledDataSources"):  # which datasets before 5 has
            for name, function in (("ExamplesIterable", "examples"), ("ArrowExamplesIterable", "tables")):
                source = getattr(module, kind + name, None)
                if source is not None:
                    attribute = f"generate_{function}_fn"
                    replace(source, "__iter__", lambda original, name=attribute: self._make(name, original))  # type: ignore[misc]
                    replace(source, "_iter_arrow", self._make_iter_arrow)
        replace(module.MappedExamplesIterable, "_iter", self._make_mapped)
        if hasattr(module, "RebatchedArrowExamplesIterable"):  # 2.20
            replace(module.RebatchedArrowExamplesIterable, "_iter_arrow", self._make_rebatched)
        compute = sys.modules.get("pyarrow.compute")
        if compute is not None:
            self._agent.note_calls(compute, "take", self._note_take)

    def _make_iter(self, original: Function) -> Function:
        def __iter__(dataset: Any) -> Any:  # noqa: N807
            return named(original(dataset), last_key)

        return __iter__

    def _make(self, name: str, original: Function) -> Function:
        """Around the samples of a source."""

        def __iter__(source: Any) -> Iterator[Any]:  # noqa: N807
            reader, twin = watched(source, name)
            for key, sample in original(twin):
                number = position(twin)
                yield (key if number is None or not reader.file else key_of(reader.file, number - 1)), sample

        return __iter__

    def _make_mapped(self, original: Function) -> Function:
        """Around map and filter, where they take one sample at a time."""

        def _iter(mapped: Any) -> Iterator[Any]:
            if mapped.batched:
                yield from original(mapped)
                return
            state, twin = getattr(mapped, "_state_dict", None) or {}, copy(mapped)
            noted = twin.ex_iterable = NotedKeys(mapped.ex_iterable, state.get("previous_state_example_idx", 0))
            for key, sample in original(twin):
                yield (noted.keys.pop(key, key) if type(key) is int else key), sample

        return _iter

    def _make_iter_arrow(self, original: Function) -> Function:
        """Around the tables of a source."""

        def _iter_arrow(source: Any) -> Iterator[Any]:
            reader, twin = watched(source, "generate_tables_fn")
            for key, table in original(twin):
                number = position(twin)
                if number is not None and reader.file:
                    self._agent.attempt(self._rows.add, table, reader.file, number - len(table))
                yield key, table

        return _iter_arrow

    def _make_rebatched(self, original: Function) -> Function:
        def _iter_arrow(source: Any) -> Iterator[Any]:
            for key, table in original(source):
                yield (self._agent.attempt(self._rows.record, table) if source.batch_size == 1 else None) or key, table

        return _iter_arrow

    def _note_take(self, result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        data, indices = [*arguments, *(keywords[name] for name in ("data", "indices") if name in keywords)][:2]
        if type(data).__name__ == "Table" and data.num_columns:
            self._rows.took(data, indices, result)


def watched(source: Any, name: str) -> tuple[ShardReader, Any]:
    """Return a twin of an iterable, with the same state, whose function tells its file."""
    reader, twin = ShardReader(getattr(source, name)), copy(source)
    setattr(twin, name, reader)
    return reader, twin


def position(source: Any) -> int | None:
    """Return how many records of the shard were given, as its state says."""
    state = getattr(source, "_state_dict", None)
    return state.get("shard_example_idx") if isinstance(state, dict) else None


def last_key(generator: Any) -> str | None:
    """Return the key of what IterableDataset's generator gave last, where it is still that of one record."""
    while getattr(generator, "gi_yieldfrom", None) is not None:
        generator = generator.gi_yieldfrom
    frame = getattr(generator, "gi_frame", None)
    key = None if frame is None else frame.f_locals.get("key")
    is_ours = type(key) is str and key[:1] == key[-1:] == MARK and key.count(MARK) == 2
    return str(key)[1:-1] if is_ours else None
