"""Hugging Face's datasets: which record of which file each sample of an IterableDataset is, for the ledger of samples.

An iterable yields keys beside its samples. Later stages pass them on, or join the keys of a batch. The agent's keys
begin and end with a zero byte, so that joined ones are recognized and ignored. Shuffle buffers of Arrow tables lose the
keys: there, rows are identified by the addresses of their values.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from copy import copy

from ..core.agent import Adapter
from ..core.patching import Function, replace
from ..core.reader_names import file_name, named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..core.agent import Agent

ITERABLES = "datasets.iterable_dataset"
MARK = "\0"  # at both ends of the agent's keys
MAX_COLUMNS, MAX_PLACES, MAX_SLICES = 8, 256, 8  # columns of a table; columns that are remembered, and slices of each


class ShardReader:
    """Wraps a reader's function, which is called for each shard, and identifies the shard's file."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._config = getattr(getattr(function, "__self__", None), "config", None)
        self._paths: set[str] = set()
        self._file = ""
        self._iterables: list[
            Any
        ] = []  # datasets before 5: each iterates the files of a path, which may be a directory

    def __call__(self, **keywords: Any) -> Any:
        sources = [value[0] for value in keywords.values() if isinstance(value, list) and len(value) == 1]
        self._iterables = [part for part in sources if isinstance(getattr(part, "args", None), tuple) and part.args]
        paths = {part for part in [*sources, *(part.args[0] for part in self._iterables)] if isinstance(part, str)}
        # If the reader filters rows by itself, their numbers are unknown.
        is_part = getattr(self._config, "filters", None) is not None or any(
            name.startswith("row_group") and value != [None] for name, value in keywords.items() if value
        )
        self._paths = set() if is_part else paths
        self._file = only_name(self._paths)
        return self._function(**keywords)

    @property
    def file(self) -> str:
        """The name of the current file; empty if the shard has several and it is unknown."""
        if not self._iterables:
            return self._file
        return only_name(self._paths.union(getattr(item, "last_item", None) or "" for item in self._iterables) - {""})


def only_name(paths: set[str]) -> str:
    """Return the file name common to all paths; empty if there is none."""
    names = set(map(file_name, paths))
    return names.pop() if len(names) == 1 else ""


class KeyRecorder:
    """Wraps the source of map, which replaces keys by sample numbers: records the key of each number."""

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
    """Identifies rows of Arrow tables by the addresses of their columns; keeps those alive, so that none is reused."""

    def __init__(self) -> None:
        self._files: list[str] = []
        self._slices: OrderedDict[int, list[Any]] = OrderedDict()  # by address: offset, row numbers and chunk

    def add(self, table: Any, file: str, first: int) -> None:
        """Record the rows of a table that was read."""
        if file not in self._files[-1:]:
            self._files.append(file)
        base = (len(self._files) - 1 << 40) + first
        self._note(table, sys.modules["numpy"].arange(base, base + len(table)))

    def _note(self, table: Any, numbers: Any) -> None:
        for column in table.columns[:MAX_COLUMNS]:
            position = 0
            for chunk in column.chunks:
                slices = self._slices.setdefault(address(chunk), [])
                slices[: 1 - MAX_SLICES] = []
                slices.append((chunk.offset, numbers[position : position + len(chunk)], chunk))
                position += len(chunk)
        while len(self._slices) > MAX_PLACES:
            self._slices.popitem(last=False)

    def _numbers(self, chunk: Any) -> Any:
        """Return the row numbers of a chunk; None if they are unknown."""
        address_of_chunk, offset = address(chunk), chunk.offset
        for first, numbers, _ in reversed(self._slices.get(address_of_chunk, ())) if address_of_chunk else ():
            if first <= offset and offset - first + len(chunk) <= len(numbers):
                return numbers[offset - first : offset - first + len(chunk)]
        return None

    def note_take(self, table: Any, indices: Any, result: Any) -> None:
        """Record that a table was made of rows of another one."""
        numbers = [self._numbers(chunk) for chunk in table.columns[0].chunks]
        if numbers and all(part is not None for part in numbers):
            numpy = sys.modules["numpy"]
            self._note(result, numpy.concatenate(numbers)[numpy.asarray(indices)])

    def record(self, table: Any) -> str | None:
        """Return the key of the only row of a table; None if it is unknown."""
        column = table.column(0) if table.num_columns and table.num_rows == 1 else None
        numbers = self._numbers(column.chunk(0)) if column is not None and column.num_chunks == 1 else None
        if numbers is None:
            return None
        number = int(numbers[0])
        return key_of(self._files[number >> 40], number & (1 << 40) - 1)


def key_of(file: str, record: int) -> str:
    """Return the agent's key of a sample."""
    return f"{MARK}{file}:{record}{MARK}"


def address(chunk: Any) -> int:
    """Return the address of the values of an Arrow array; 0 if it has none."""
    return next((buffer.address for buffer in reversed(chunk.buffers()) if buffer is not None and buffer.size), 0)


class DatasetsAdapter(Adapter):
    """Patches datasets.iterable_dataset."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._rows = ArrowRows()

    def instrument(self, name: str, module: Any) -> None:
        if name != ITERABLES:
            super().instrument(name, module)
            return
        replace(module.IterableDataset, "__iter__", self._make_iter)
        for kind in ("", "ShuffledDataSources"):  # exists in datasets before 5
            for name, function in (("ExamplesIterable", "examples"), ("ArrowExamplesIterable", "tables")):
                source = getattr(module, kind + name, None)
                if source is not None:
                    attribute = f"generate_{function}_fn"
                    replace(source, "__iter__", lambda original, name=attribute: self._make_source(name, original))  # type: ignore[misc]
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

    def _make_source(self, name: str, original: Function) -> Function:
        """Return a replacement that yields the agent's keys with the samples of a source."""

        def __iter__(source: Any) -> Iterator[Any]:  # noqa: N807
            reader, copied = with_shard_reader(source, name)
            for key, sample in original(copied):
                number = position(copied)
                yield (key if number is None or not reader.file else key_of(reader.file, number - 1)), sample

        return __iter__

    def _make_mapped(self, original: Function) -> Function:
        """Return a replacement for map and filter that restores the keys, unless they work on batches."""

        def _iter(mapped: Any) -> Iterator[Any]:
            if mapped.batched:
                yield from original(mapped)
                return
            state, copied = getattr(mapped, "_state_dict", None) or {}, copy(mapped)
            recorder = copied.ex_iterable = KeyRecorder(mapped.ex_iterable, state.get("previous_state_example_idx", 0))
            for key, sample in original(copied):
                yield (recorder.keys.pop(key, key) if type(key) is int else key), sample

        return _iter

    def _make_iter_arrow(self, original: Function) -> Function:
        """Return a replacement that records the rows of a source's tables."""

        def _iter_arrow(source: Any) -> Iterator[Any]:
            reader, copied = with_shard_reader(source, "generate_tables_fn")
            for key, table in original(copied):
                number = position(copied)
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
            self._rows.note_take(data, indices, result)


def with_shard_reader(source: Any, name: str) -> tuple[ShardReader, Any]:
    """Return a ShardReader, and a copy of the iterable, with the same state, that uses it."""
    reader, copied = ShardReader(getattr(source, name)), copy(source)
    setattr(copied, name, reader)
    return reader, copied


def position(source: Any) -> int | None:
    """Return the number of records yielded from the shard, by its state; None without a state."""
    state = getattr(source, "_state_dict", None)
    return state.get("shard_example_idx") if isinstance(state, dict) else None


def last_key(generator: Any) -> str | None:
    """Return the key of the last sample of IterableDataset's generator; None if it is not a single record's."""
    while getattr(generator, "gi_yieldfrom", None) is not None:
        generator = generator.gi_yieldfrom
    frame = getattr(generator, "gi_frame", None)
    key = None if frame is None else frame.f_locals.get("key")
    is_ours = type(key) is str and key[:1] == key[-1:] == MARK and key.count(MARK) == 2
    return str(key)[1:-1] if is_ours else None
