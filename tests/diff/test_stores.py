"""Zarr: stores are compared by their arrays, whatever their chunks; hostile ones are refused or compared as files."""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reprokit.core.difference import Difference
from reprokit.diff.files import diff
from reprokit.diff.stores import common_stores

VALUES = np.arange(24, dtype=np.float32).reshape(4, 6)


@cache
def zarr() -> Any:
    """Import it once a test wants it: all workers collect this module, and few run its tests."""
    pytest.importorskip("tensorstore")
    return pytest.importorskip("zarr")


def store(path: Path, value: float = 0.5, version: int = 3, chunks: tuple[int, int] = (2, 3), **options: Any) -> Path:
    """A group of an array below another group, with attributes."""
    group = zarr().open_group(path, mode="w", zarr_format=version)
    group.attrs["rate"] = 0.5
    values = VALUES.copy()
    values[1, 2] = value
    group.require_group("model").create_array("w", data=values, chunks=chunks, attributes={"unit": "m"}, **options)
    return path


def changes(left: Path, right: Path) -> dict[str, str]:
    """The names of what differs below the store, with the detail."""

    def of(found: Difference) -> dict[str, str]:
        own = {found.name: found.detail} if found.verdict.differs and not found.children else {}
        return own | {name: detail for child in found.children for name, detail in of(child).items()}

    return of(diff(left, right))


def detail(left: Path, right: Path) -> str:
    return " ".join(child.detail for child in diff(left, right).children)


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
def test_an_element_that_differs_is_named_in_its_array(tmp_path: Path, version: int) -> None:
    left, right = store(tmp_path / "a", 0.5, version), store(tmp_path / "b", 0.25, version)
    [(name, words)] = changes(left, right).items()
    assert (name, words[:42]) == ("./model/w", "1 of 24 elements of float32 [4, 6] differs")
    assert "first at [1, 2]" in words
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    left.rename(tmp_path / "one" / "data.zarr")
    right.rename(tmp_path / "two" / "data.zarr")
    assert list(changes(tmp_path / "one", tmp_path / "two")) == ["data.zarr/model/w"]


@pytest.mark.slow
def test_other_chunks_compressors_shards_and_versions_are_the_same_content(tmp_path: Path) -> None:
    left = store(tmp_path / "left")
    zarr().consolidate_metadata(store(tmp_path / "consolidated"))
    zarr().consolidate_metadata(store(tmp_path / "old consolidated", version=2))
    others = [
        store(tmp_path / "chunks", chunks=(4, 2)),
        store(tmp_path / "plain", compressors=None),
        store(tmp_path / "shards", chunks=(1, 3), shards=(2, 6)),
        store(tmp_path / "version 2", version=2),
        tmp_path / "consolidated",
        tmp_path / "old consolidated",
    ]
    for other in others:
        assert changes(left, other) == {}, other
        assert "same content" in detail(left, other)
    assert "other model/w/storage" in detail(left, others[0])


@pytest.mark.slow
def test_what_is_beside_the_elements_is_compared(tmp_path: Path) -> None:
    left = store(tmp_path / "left")
    assert list(changes(left, store(tmp_path / "fill", fill_value=7))) == ["./model/w/fill_value"]
    noted = store(tmp_path / "noted")
    (noted / "notes.txt").write_text("by hand")
    assert list(changes(left, noted)) == ["notes.txt"]
    other = store(tmp_path / "other", chunks=(4, 6))
    zarr().open_group(other)["model/w"].attrs["unit"] = "km"
    assert list(changes(left, other)) == ["./model/w@/unit"]
    zarr().consolidate_metadata(other)
    zarr().consolidate_metadata(left)
    text = (left / "zarr.json").read_text()
    (left / "zarr.json").write_text(text.replace('"unit": "m"', '"unit": "mm"'))
    assert list(changes(left, store(tmp_path / "again"))) == ["./consolidated metadata"]


def texts(path: Path, version: int, last: str = "d", chunks: int = 1, zipped: bool = False) -> Path:
    """Arrays of texts, dates and records."""
    library = zarr()
    where: Any = library.storage.ZipStore(path, mode="w") if zipped else path
    group = library.open_group(where, mode="w", zarr_format=version)
    group.attrs["rate"] = 0.5
    values = {
        "bytes": np.array([b"ab", b"c" + last.encode()]),
        "dates": np.array(["2020-01-01", "2020-01-02" if last == "d" else "2020-01-03"], "<M8[s]"),
        "fixed": np.array(["ab", f"c{last}"]),
        "rows": np.array([(1, 2.0), (3, 4.0 + (last != "d"))], dtype=[("a", "<i4"), ("b", "<f8")]),
        "texts": np.array(["ab", f"cef{last}"], dtype=np.dtypes.StringDType()),
        "w": np.arange(4.0) * ord(last),
    }
    for name, array in values.items():
        group.create_array(name, data=array, chunks=(chunks,))
    if zipped:
        where.close()
    return path


CHANGED = ["bytes/1", "dates/1", "fixed/1", "rows/b", "texts/1", "w"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_texts_dates_and_records_are_compared_by_their_values(tmp_path: Path) -> None:
    left = texts(tmp_path / "left", 3)
    assert sorted(changes(left, texts(tmp_path / "other", 3, "x"))) == [f"./{name}" for name in CHANGED]
    assert changes(left, texts(tmp_path / "chunks", 3, chunks=2)) == {}
    pickled = [texts(tmp_path / name, 2, last) for name, last in (("one", "d"), ("two", "x"))]
    for path in pickled:  # by a codec that would execute what it reads
        described = json.loads((path / "texts/.zarray").read_text())
        (path / "texts/.zarray").write_text(json.dumps({**described, "filters": [{"id": "pickle", "protocol": 5}]}))
    found = changes(*pickled)
    assert "./files/texts~11" in found
    assert "./texts/1" not in found
    assert "./fixed/1" in found


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("version", [2, 3])
def test_zipped_stores_are_stores(tmp_path: Path, version: int) -> None:
    left = texts(tmp_path / "left.zarr.zip", version, zipped=True)
    other = texts(tmp_path / "other.zarr.zip", version, "x", zipped=True)
    assert sorted(changes(left, other)) == [f"left.zarr.zip/{name}" for name in CHANGED]
    assert changes(left, texts(tmp_path / "chunks.zarr.zip", version, chunks=2, zipped=True)) == {}
    whole = other.read_bytes()
    place = whole.index(b"texts")
    for data in (whole[:-30], whole[: len(whole) // 2], whole[:place] + b"other" + whole[place + 5 :]):
        other.write_bytes(data)
        assert "compared as bytes" in diff(left, other).detail
    with zipfile.ZipFile(other, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zarr.json", b"{" + bytes(300 << 20))
    assert "'zarr.json' has no metadata that are read" in diff(left, other).detail


def cut(path: Path) -> None:
    chunk = path / "model/w/c/0/0"
    chunk.write_bytes(chunk.read_bytes()[:-5])


def outside(path: Path) -> None:
    chunk = path / "model/w/c/0/0"
    chunk.rename(path.parent / "elsewhere")
    chunk.symlink_to(path.parent / "elsewhere")


def outside_directory(path: Path) -> None:
    (path / "model/w/c").rename(path.parent / "all")
    (path / "model/w/c").symlink_to(path.parent / "all")


def pipe(path: Path) -> None:
    (path / "model/w/c/0/0").unlink()
    os.mkfifo(path / "model/w/c/0/0")


def described(**facts: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        text = json.loads((path / "model/w/zarr.json").read_text())
        (path / "model/w/zarr.json").write_text(json.dumps({**text, **facts}))

    return change


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (cut, "DATA_LOSS|INVALID|FAILED|Error"),
    "link": (outside, "is a link"),
    "directory": (outside_directory, "is a link"),
    "pipe": (pipe, "is a link, or no file"),
    "shape": (described(shape=[1 << 40, 1 << 20]), "unpacks to"),
    "chunk": (
        described(
            shape=[1 << 14, 1 << 12],
            chunk_grid={"name": "regular", "configuration": {"chunk_shape": [1 << 30, 1 << 20]}},
        ),
        ".",
    ),
    "metadata": (lambda path: (path / "model/zarr.json").write_text("[" * 100_000), "."),
    "no mapping": (lambda path: (path / "model/zarr.json").write_text("[]"), "no metadata"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_made_to_hurt_is_compared_file_by_file(tmp_path: Path, case: str) -> None:
    left, right = store(tmp_path / "left"), store(tmp_path / "right", 0.25)
    hurt, words = HOSTILE[case]
    hurt(left)
    found = {leaf.name: leaf.detail for leaf in diff(left, right).leaves()}
    assert "its files are compared one by one" in found["zarr.json"]
    assert re.search(words, found["zarr.json"]), found["zarr.json"]
    assert any(name.startswith("model/") for name in changes(left, right))


@pytest.mark.slow
def test_files_of_no_array_count(tmp_path: Path) -> None:
    """As where a group's files are named like chunks, or what describes an array calls it something else."""
    left, right = store(tmp_path / "left"), store(tmp_path / "right")
    for path in (left, right):
        described(node_type="Array")(path)
    (right / "model/w/c/0/0").write_bytes(b"other")
    assert list(changes(left, right)) == ["./files/model~1w~1c~10~10"]
    left, right = store(tmp_path / "one"), store(tmp_path / "two", chunks=(4, 6))
    for path in (left, right):
        (path / ".zattrs").write_text(json.dumps({"of": path.name}))
        (path / "model" / "0").write_text(path.name)
        (path / "Zarr").write_text(path.name)
    assert sorted(changes(left, right)) == ["./@/of", "./files/model~10", "Zarr: line 1"]


@pytest.mark.slow
def test_a_directory_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    left, right = store(tmp_path / "left"), store(tmp_path / "right")
    shutil.move(left / "model", tmp_path / "model")
    (left / "model").symlink_to(tmp_path / "model")
    found = changes(left, right)
    assert "./model/w" in found
    assert found["model"] == "of another kind"


def test_stores_within_stores_are_parts_of_these() -> None:
    names = ["a/zarr.json", "a/w/zarr.json", "a/w/c/0/0", "a/notes.txt", "b/.zarray", "b/0.0", "b/0.0.txt", "ab/0"]
    one, two = common_stores(names, names)
    assert (one.directory, one.files[0]) == ("a", frozenset(["a/zarr.json", "a/w/zarr.json", "a/w/c/0/0"]))
    assert (two.directory, two.files[1]) == ("b", frozenset(["b/.zarray", "b/0.0"]))
    assert common_stores(names, ["a/notes.txt"]) == []
