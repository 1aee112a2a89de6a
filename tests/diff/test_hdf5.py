"""HDF5 and .keras: what differs is named, nothing outside of a file is opened, and no file harms the reader."""

from __future__ import annotations

import functools
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reprokit.core.difference import Verdict
from reprokit.diff import part_process
from reprokit.diff.compare import FileSide, compare
from reprokit.diff.elements import CompareOptions, Limits, Noise, TensorPart, Value
from reprokit.diff.files import diff as diff_files
from reprokit.diff.formats.library_process import ParsingLibrary
from reprokit.diff.sources import BytesSource
from tests.diff import samples
from tests.diff.objects import leaves, meaning, named, same, shown
from tests.support import training_text

h5py = pytest.importorskip("h5py")
READER = ParsingLibrary("HDF5", "h5py", "reprokit.diff.hdf5_process")
NAME = "model.h5"
Fill = Callable[[Any], None]


def written(*fills: Fill, **options: Any) -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w", **options) as target:
        for fill in fills:
            fill(target)
    return file.getvalue()


def ordinary(file: Any) -> None:
    """A dataset of every kind that is read in its own way."""
    generator = np.random.default_rng(1)
    weights = file.create_group("layer/weights")
    weights["kernel"] = generator.normal(size=(3, 4)).astype(np.float32)
    weights["big"] = np.arange(5, dtype=">i4")
    weights["flags"] = np.array([True, False])
    weights["complex"] = np.array([1 + 2j], np.complex64)
    weights["record"] = np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])
    weights["scalar"] = np.float64(0.5)
    weights["none"] = h5py.Empty("f4")
    weights["nothing"] = np.zeros((0, 3), np.float32)
    packed = generator.integers(0, 9, (500, 70)).astype(np.int16)
    file.create_dataset("packed", data=packed, chunks=(64, 32), compression="gzip", shuffle=True, fletcher32=True)
    file.create_dataset("texts", data=["one", "two"], dtype=h5py.string_dtype())
    file.create_dataset("fixed", data=np.array([b"ab", b"cd"]))
    file.create_dataset("lists", (2,), dtype=h5py.vlen_dtype(np.int32))[1] = [1, 2]
    file.create_dataset("references", (1,), dtype=h5py.ref_dtype)[0] = file["packed"].ref
    nested = np.zeros(3, dtype=[("n", ">i2", (2,)), ("at", [("x", "f4"), ("y", "S1")])])
    nested["n"], nested["at"]["y"] = [1, 2], b"b"
    file.create_dataset("nested", data=nested, chunks=(2,))
    file.create_dataset("dates", data=np.arange(3).astype("M8[D]").astype(h5py.opaque_dtype("M8[D]")))
    file.attrs["version"] = "1"
    file.attrs["model_config"] = json.dumps({"a": [1, 2.5]})
    file.attrs["numbers"] = np.arange(3.0)
    file.attrs["many"] = np.arange(100.0)


def changed(change: Fill) -> dict[str, str]:
    return named(written(ordinary), written(ordinary, change), NAME)


def one_ulp(file: Any) -> None:
    kernel = file["layer/weights/kernel"][()]
    kernel.view(np.uint32)[1, 2] ^= 1
    file["layer/weights/kernel"][...] = kernel


def packed(file: Any) -> None:
    file["packed"][499, 69] += 1


def text(file: Any) -> None:
    file["texts"][1] = "three"


def configuration(file: Any) -> None:
    file.attrs.modify("model_config", json.dumps({"a": [1, 2.25]}))


def many(file: Any) -> None:
    file.attrs.modify("many", np.arange(100.0) + (np.arange(100) == 77))


def record(file: Any) -> None:
    file["layer/weights/record"][0] = (1, 3.0)


def field_of_field(file: Any) -> None:
    records = file["nested"][()]
    records["at"]["y"][2] = b"c"
    file["nested"][...] = records


def fixed(file: Any) -> None:
    file["fixed"][1] = b"ce"


def date(file: Any) -> None:
    file["dates"][2] = np.datetime64("1970-01-04").astype(file["dates"].dtype)


def item(file: Any) -> None:
    file["lists"][0] = [7]


CHANGES: dict[Fill, tuple[str, str]] = {  # each with the part that then differs, and what is said of it
    one_ulp: ("layer/weights/kernel", "first at [1, 2]"),
    packed: ("packed", "first at [499, 69]"),
    text: ("texts/1", "b'three'"),
    configuration: ("@model_config/a/1", "2.25"),
    many: ("@many", "first at [77]"),
    record: ("layer/weights/record/b", "2.0 | 3.0 | the only element"),
    field_of_field: ("nested/at/y", "'b' | 'c' | 1 of 3"),
    fixed: ("fixed", "'cd' | 'ce' | 1 of 2"),
    date: ("dates", "1970-01-03 | 1970-01-04 | 1 of 3"),
    item: ("lists/0", "[7]"),
}


def test_what_differs_is_named_and_nothing_else() -> None:
    """All changes in one file: it is read in a process, which takes longer than all that is compared."""

    def change(file: Any) -> None:
        for each in CHANGES:
            each(file)

    found = changed(change)
    assert found.keys() == {name for name, _ in CHANGES.values()}
    assert [(name, found[name]) for name, said in CHANGES.values() if said not in found[name]] == []


def test_the_parts_are_what_h5py_reads() -> None:
    data = written(ordinary)
    found = {part.name: part for part in READER.read(BytesSource(data), Limits())}
    with h5py.File(io.BytesIO(data)) as file:
        for name, part in found.items():
            if isinstance(part, TensorPart) and "@" not in name:
                own = next(path for path in (name, name.rpartition("/")[0], "nested") if path in file)
                elements = file[own][()]
                for field in filter(None, name.removeprefix(own).split("/")):
                    elements = elements[field]
                assert part.source.read(part.offset, 1 << 20) == elements.tobytes()
                assert part.shape == elements.shape
    kinds = {name: part.text for name, part in found.items() if isinstance(part, Value)}
    assert kinds["references/0"] == "reference to '/packed'"
    assert kinds["@model_config/a/1"] == "2.5"
    assert kinds["lists/1"] == "[1, 2]"
    assert isinstance(found["packed/storage"], Noise)


def create(file: Any, **options: Any) -> None:
    file.create_dataset("x", **options)


@pytest.mark.slow
def test_how_datasets_are_stored_is_noise() -> None:
    array = np.arange(600.0).reshape(30, 20)
    plain = written(lambda file: file.create_dataset("x", data=array))
    ways: list[dict[str, Any]] = [{"chunks": (7, 3)}, {"compression": "gzip"}, {"compression": "lzf", "shuffle": True}]
    for more in ways:
        assert named(plain, written(functools.partial(create, data=array, **more)), NAME) == {}
    assert named(plain, written(lambda file: file.create_dataset("x", data=array), userblock_size=512), NAME) == {}
    assert named(plain, written(lambda file: file.create_dataset("x", data=array), libver="latest"), NAME) == {}


def test_nothing_outside_is_opened_and_no_cycle_followed(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(bytes(80))
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.zeros(10)
    with h5py.File(tmp_path / NAME, "w") as file:
        file["external"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/x")
        file["soft"] = h5py.SoftLink("/group")
        file["dangling"] = h5py.SoftLink("/nowhere")
        group = file.create_group("group")
        group["up"] = file["/"]
        group["again"] = group
        file.create_dataset("stored", (10,), "f8", external=[(str(tmp_path / "raw"), 0, 80)])
        layout = h5py.VirtualLayout((10,), "f8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (10,))
        file.create_virtual_dataset("virtual", layout)
    found = shown(READER.read, (tmp_path / NAME).read_bytes())
    assert found["external"].startswith("external link to '/x'")
    assert found["soft"] == "soft link to '/group'"
    assert found["dangling"] == "soft link to '/nowhere'"
    assert found["group/up"] == "the same object as '/'"
    assert found["group/again"] == "the same object as 'group'"
    assert found["stored"].startswith("stored outside of the file")
    assert found["virtual"].startswith("made of other datasets")


def test_datasets_that_are_only_said_to_be_large_are_refused() -> None:
    huge = written(lambda file: file.create_dataset("x", (1 << 40,), "f8", chunks=(1 << 20,)))
    assert "unpacks to" in next(iter(named(huge, written(ordinary), NAME).values()))
    texts = written(lambda file: file.create_dataset("x", (1 << 40,), h5py.string_dtype(), chunks=(1 << 20,)))
    assert meaning(READER.read, texts) is None


def test_a_dataset_behind_an_unknown_filter_is_refused() -> None:
    def filtered(file: Any) -> None:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((10,))
        properties.set_filter(32015, h5py.h5z.FLAG_OPTIONAL)
        h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F64LE, h5py.h5s.create_simple((10,)), properties)
        file["x"].id.write_direct_chunk((0,), bytes(40))

    assert meaning(READER.read, written(filtered)) is None


DAMAGES = training_text("hdf5_damaged.py")


def test_damage_is_found() -> None:
    """Flipped bits and cuts: an error, a difference, or bytes that carry nothing."""
    data = written(ordinary)
    right = shown(READER.read, data)
    for place in (8 * data.index(b"HEAP"), 8 * (len(data) - 100)):
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        assert same(data, bytes(damaged), NAME) == (meaning(READER.read, bytes(damaged)) == right)
    assert meaning(READER.read, data[: len(data) // 2]) is None


def test_damage_does_not_end_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", DAMAGES], input=written(ordinary), capture_output=True, check=True)
    assert 0 < int(done.stdout) < 300


def test_a_crash_of_the_process_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for command, said in (("import os; os.kill(os.getpid(), 11)", "SIGSEGV"), ("1/0", "ZeroDivisionError")):
        monkeypatch.setattr("reprokit.diff.formats.library_process.COMMAND", command)
        [detail] = named(written(ordinary), written(ordinary, one_ulp), NAME).values()
        assert f"HDF5 gave up on it ({'ended by ' if said.startswith('SIG') else said}" in detail
        assert said in detail


def test_without_h5py_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    [detail] = named(written(ordinary), written(ordinary, one_ulp), NAME).values()
    assert "pip install h5py" in detail


def test_the_process_is_bounded() -> None:
    program = (
        "import resource; from reprokit.diff import part_process as p; p.limit();"
        "print(*(resource.getrlimit(getattr(resource, f'RLIMIT_{kind}'))[0] for kind in ('AS', 'CPU', 'CORE')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(part_process.MEMORY), str(part_process.SECONDS), "0"]


def archive(date: str, weights: bytes, address: int) -> bytes:
    shared = {"class_name": "Adam", "shared_object_id": address}
    return samples.zipped(
        {
            "metadata.json": json.dumps({"keras_version": "3", "date_saved": date}).encode(),
            "config.json": json.dumps({"one": shared, "two": shared}).encode(),
            "model.weights.h5": weights,
        }
    )


def test_keras_archives() -> None:
    left = archive("2024-01-01@00:00:00", written(ordinary), 140_000)
    assert named(left, archive("2025-01-01@00:00:00", written(ordinary), 150_000), "m.keras") == {}
    found = named(left, archive("2025-01-01@00:00:00", written(ordinary, one_ulp), 150_000), "m.keras")
    assert list(found) == ["model.weights.h5/layer/weights/kernel"]


def test_weights_that_unpack_to_much_are_compared_as_bytes() -> None:
    weights = [written(functools.partial(create, data=np.full(1 << 19, float(fill)))) for fill in (0, 1)]
    sides = [
        FileSide(BytesSource(samples.zipped({"model.weights.h5": one}, zipfile.ZIP_DEFLATED)), "m.keras")
        for one in weights
    ]
    assert sides[0].source.size < 1 << 15
    found = compare("m.keras", sides[0], sides[1], CompareOptions(limits=Limits(unpacked=1 << 20)))
    assert found.verdict is Verdict.DIFFERENT
    assert "unpacks to more than 1048576 bytes" in found.detail


def test_files_on_disk(tmp_path: Path) -> None:
    """The process reads the file itself, from wherever the comparison has its place."""
    for name, fills in (("a", (ordinary,)), ("b", (ordinary, one_ulp))):
        (tmp_path / f"{name}.h5").write_bytes(written(*fills))
    [leaf] = leaves(diff_files(tmp_path / "a.h5", tmp_path / "b.h5"))
    assert (leaf.name, leaf.verdict) == ("a.h5/layer/weights/kernel", Verdict.DIFFERENT)


def test_nothing_is_imported() -> None:
    """Neither the libraries whose files are read, nor h5py in the process that reads."""
    program = (
        "import sys, pkgutil, importlib, reprokit.diff.formats as f;"
        "[importlib.import_module(f'{f.__name__}.{m.name}') for m in pkgutil.iter_modules(f.__path__)];"
        "print([n for n in ('h5py', 'tensorflow', 'onnx', 'google.protobuf', 'keras', 'numpy') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
