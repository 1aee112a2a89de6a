"""verify looks into outputs that differ: into kept copies, or the files where they still are."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from reprokit.core.difference import BookkeepingKind, Difference, Verdict
from reprokit.core.errors import RunDamaged
from reprokit.model.outputs import OutputFile
from reprokit.verify.comparison import Comparison
from reprokit.verify.runs import compare
from tests.diff import samples
from tests.diff.test_messages import DATA, SHARD, bundle, index
from tests.verify.runs import Building, training

ONE = samples.npz({"w": np.zeros(3), "b": np.ones(2)})
OTHER = samples.npz({"w": np.array([0, 0, 1.0]), "b": np.ones(2)})


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Building, Building]:
    """Two runs that wrote a model each, in working directories of their own."""
    found = []
    for name, data in (("left", ONE), ("right", OTHER)):
        building = training(tmp_path / name)
        place = tmp_path / f"work-{name}"
        place.mkdir()
        (place / "model.npz").write_bytes(data)
        building.run.working_directory = str(place)
        building.outputs = [output(data)]
        found.append(building)
    return found[0], found[1]


def output(data: bytes, kept: int | None = None) -> OutputFile:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return OutputFile(path="model.npz", size=len(data), digest=digest, kept=kept)


def keep(building: Building, data: bytes) -> None:
    """Let the run have kept a copy, and the file itself be overwritten since."""
    building.outputs = [output(data, kept=0)]
    written(building)
    (building.path / "outputs").mkdir()
    (building.path / "outputs" / "0").write_bytes(data)
    (Path(building.run.working_directory) / "model.npz").write_bytes(b"overwritten")


def compared(sides: tuple[Building, Building]) -> Comparison:
    return compare(written(sides[0]), written(sides[1]))


def written(building: Building) -> Path:
    return building.path if building.path.exists() else building.write()


def outputs_of(comparison: Comparison) -> Difference:
    return next(child for child in comparison.tree.children if child.name == "outputs")


def leaves(sides: tuple[Building, Building]) -> list[str]:
    return [leaf.name for leaf in outputs_of(compared(sides)).leaves()]


def test_the_tensor_that_differs_is_named(sides: tuple[Building, Building]) -> None:
    comparison = compared(sides)
    [leaf] = outputs_of(comparison).leaves()
    assert (leaf.name, leaf.left, leaf.right) == ("model.npz/w", "0.0", "1.0")
    [file] = outputs_of(comparison).children
    assert file.detail.startswith("other ")
    assert "1 of 2 tensors differs" in file.detail


@pytest.mark.parametrize("which", [0, 1])
def test_kept_copies_stand_in_for_overwritten_files(sides: tuple[Building, Building], which: int) -> None:
    keep(sides[which], (ONE, OTHER)[which])
    assert leaves(sides) == ["model.npz/w"]


def checkpoint(building: Building, data: bytes, *, is_kept: bool) -> None:
    """Let the run have written a checkpoint of two files."""
    files = {"ckpt/model.index": index(bundle(data)), f"ckpt/{SHARD}": data}
    place = Path(building.run.working_directory)
    (place / "ckpt").mkdir()
    building.outputs = [output(content, number if is_kept else None) for number, content in enumerate(files.values())]
    building.outputs = [replace(file, path=name) for file, name in zip(building.outputs, files, strict=True)]
    written(building)
    (building.path / "outputs").mkdir()
    for number, (name, content) in enumerate(files.items()):
        (place / name).write_bytes(b"overwritten" if is_kept else content)
        (building.path / "outputs" / str(number)).write_bytes(content)


def test_the_shards_of_a_checkpoint_are_outputs_too(sides: tuple[Building, Building]) -> None:
    checkpoint(sides[0], DATA, is_kept=True)
    checkpoint(sides[1], DATA[:-1] + b"\x41", is_kept=False)
    assert leaves(sides) == [f"ckpt/{SHARD}", f"ckpt/model.index/{'weight' * 9}"]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["same", "other", "overwritten"])
def test_stores_are_compared_by_their_arrays(sides: tuple[Building, Building], case: str) -> None:
    zarr, values = pytest.importorskip("zarr"), np.arange(6.0).reshape(2, 3)
    pytest.importorskip("tensorstore")
    for building, content, chunk in ((sides[0], values, 1), (sides[1], values + (case != "same") * (values == 4), 3)):
        place = Path(building.run.working_directory)
        zarr.open_group(place / "out.zarr").create_array("w", data=content, chunks=(2, chunk))
        files = [path for path in sorted((place / "out.zarr").rglob("*")) if path.is_file()]
        building.outputs = [replace(output(path.read_bytes()), path=str(path.relative_to(place))) for path in files]
    if case == "overwritten":
        (Path(sides[0].run.working_directory) / "out.zarr/w/c/0/1").write_bytes(b"overwritten")
    found = list(outputs_of(compared(sides)).leaves())
    if case == "same":
        assert [(leaf.name, leaf.detail) for leaf in found] == [("out.zarr", "same content; other w/storage")]
    elif case == "other":
        assert [(leaf.name, leaf.left, leaf.right) for leaf in found] == [("out.zarr/w", "4.0", "5.0")]
    else:
        assert "out.zarr/w/c/0/0" in [leaf.name for leaf in found if leaf.verdict.differs]


def test_without_the_recorded_bytes_the_digests_decide(sides: tuple[Building, Building]) -> None:
    (Path(sides[0].run.working_directory) / "model.npz").write_bytes(ONE[:-1] + b"\1")
    assert leaves(sides) == ["model.npz"]


def test_a_copy_that_was_altered_is_refused(sides: tuple[Building, Building]) -> None:
    keep(sides[0], ONE)
    (sides[0].path / "outputs" / "0").write_bytes(OTHER)
    with pytest.raises(RunDamaged, match="outputs/0 is not the copy"):
        leaves(sides)


@pytest.mark.parametrize("what", ["directory", "file", "pipe"])
def test_a_copy_is_never_looked_for_outside_of_the_run(
    sides: tuple[Building, Building], tmp_path: Path, what: str
) -> None:
    keep(sides[0], ONE)
    directory = sides[0].path / "outputs"
    elsewhere = directory.rename(tmp_path / "elsewhere")
    if what == "directory":
        directory.symlink_to(elsewhere)
    else:
        directory.mkdir()
        (directory / "0").symlink_to(elsewhere / "0") if what == "file" else os.mkfifo(directory / "0")
    with pytest.raises(RunDamaged, match="outputs/0 is not the copy"):
        leaves(sides)


def test_content_that_is_the_same_in_other_bytes_is_identical(sides: tuple[Building, Building]) -> None:
    packed = samples.npz({"b": np.ones(2), "w": np.zeros(3)}, compressed=True)
    (Path(sides[1].run.working_directory) / "model.npz").write_bytes(packed)
    sides[1].outputs = [output(packed)]
    comparison = compared(sides)
    assert comparison.identical
    assert any("order of members" in text for text in comparison.normalizations)
    assert "compression" in outputs_of(comparison).children[0].detail


def zipped(second: int, comment: bytes = b"") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as container:
        container.writestr(zipfile.ZipInfo("w.txt", (2026, 11, 29, 8, 4, second)), "1 2 3")
        container.comment = comment
    return file.getvalue()


@pytest.mark.parametrize(
    ("left", "right", "verdict"),
    [
        (zipped(2), zipped(4), Verdict.BOOKKEEPING),
        (zipped(2, b"loss 0.50"), zipped(2, b"loss 0.51"), Verdict.DIFFERENT),
        (zipped(2, b"loss 0.50"), zipped(4, b"loss 0.51"), Verdict.DIFFERENT),
    ],
)
def test_what_is_around_equal_members_is_stamps_or_a_difference(
    sides: tuple[Building, Building], left: bytes, right: bytes, verdict: Verdict
) -> None:
    for side, data in zip(sides, (left, right), strict=True):
        (Path(side.run.working_directory) / "model.npz").write_bytes(data)
        side.outputs = [replace(output(data), content="sha256:" + "0" * 64, container="zip")]
    tree = compared(sides).tree
    outputs = next(category for category in tree.children if category.name == "outputs")
    assert outputs.verdict is verdict
    kinds = {leaf.kind for leaf in outputs.leaves() if leaf.kind is not None}
    assert (kinds == {BookkeepingKind.DATE}) == (left[:40] != right[:40])  # where the local header has the stamp
