"""MATLAB, NetCDF, pictures, YAML, workbooks and equinox: values that differ are named, damage and malice refused."""

from __future__ import annotations

import datetime
import importlib.util
import io
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits
from reprokit.diff.formats import detect
from reprokit.diff.formats.library_process import ParsingLibrary
from reprokit.diff.sources import BytesSource
from tests.diff.objects import meaning, named, same, shown
from tests.diff.samples import diff
from tests.diff.test_mutations import ACCIDENT
from tests.support import rest_slow


def mat(value: float = 0.5, **options: Any) -> bytes:
    io_module = pytest.importorskip("scipy.io")
    file, cells = io.BytesIO(), np.empty(2, dtype=object)
    cells[:] = ["text", np.zeros(2)]
    content = {"w": np.arange(6).reshape(2, 3) * value, "name": "adam", "settings": {"rate": 1}, "cells": cells}
    io_module.savemat(file, {"w": content["w"]} if options.get("format") == "4" else content, **options)
    return file.getvalue()


def netcdf(value: float = 0.5) -> bytes:
    file = io.BytesIO()
    opened = pytest.importorskip("scipy.io").netcdf_file(file, "w")
    opened.createDimension("time", 3)
    opened.createVariable("loss", "f4", ("time",))[:] = [1, 2, value]
    opened.flush()
    return file.getvalue()


def picture(value: float = 0.5, format_: str = "PNG", mode: str = "RGB", **options: Any) -> bytes:
    image, file = pytest.importorskip("PIL.Image"), io.BytesIO()
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    pixels[1, 2, 0] = round(value * 100)
    image.fromarray(pixels).convert(mode).save(file, format=format_, **options)
    return file.getvalue()


def yaml(value: float = 0.5) -> bytes:
    return f"rate: {value}\nlayers: [64, {{act: relu}}]\nday: 2026-11-30\n".encode()


def workbook(value: float = 0.5) -> bytes:
    openpyxl, file = pytest.importorskip("openpyxl"), io.BytesIO()
    book = openpyxl.Workbook()
    book.active["A1"], book.active["B2"], book.active["C1"] = value, "text", "=A1+1"
    book.active["D4"] = datetime.datetime(2026, 11, 30)
    book.save(file)
    return file.getvalue()


def leaves(value: float = 0.5) -> bytes:
    equinox, file = pytest.importorskip("equinox"), io.BytesIO()
    file.write(b'{"width": 2}\n')
    equinox.tree_serialise_leaves(file, {"a": np.full(2, value, np.float32), "b": 3})
    return file.getvalue()


def lite(value: float = 0.5, *, is_squared: bool = False) -> bytes:
    tensorflow = pytest.importorskip("tensorflow")
    weights = np.arange(12, dtype=np.float32).reshape(4, 3)
    weights[1, 2] = value

    def call(row: Any) -> Any:
        product = tensorflow.matmul(row, tensorflow.constant(weights))
        return tensorflow.square(product) if is_squared else tensorflow.abs(product)

    function = tensorflow.function(call, input_signature=[tensorflow.TensorSpec([1, 4], "float32")])
    converter = tensorflow.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()])
    data: bytes = converter.convert()
    return data


def program(value: float = 0.5) -> bytes:
    torch, file = pytest.importorskip("torch"), io.BytesIO()
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.fill_(value)
        model.bias.zero_()
    torch.export.save(torch.export.export(model, (torch.zeros(1, 3),)), file)
    return file.getvalue()


MADE: dict[str, tuple[Callable[..., bytes], str]] = {
    "a.mat": (mat, "w"),
    "a.nc": (netcdf, "loss"),
    "a.png": (picture, "pixels"),
    "a.yaml": (yaml, "value/rate"),
    "a.xlsx": (workbook, "Sheet/A1"),
    "a.eqx": (leaves, "leaf 0"),
    "a.tflite": (lite, "subgraphs/0/tensors/MatMul"),
    "a.pt2": (program, "data/weights/weight_0"),
}


def read(name: str, data: bytes) -> dict[str, str]:
    format_ = detect(name, data[:4096])
    assert format_ is not None
    return shown(format_.read, data)


EACH = [pytest.param(name, marks=[pytest.mark.slow] if name in ("a.tflite", "a.pt2") else []) for name in MADE]


@pytest.mark.parametrize("name", rest_slow(sorted(MADE, key="a.png".__ne__)))
def test_the_value_that_differs_is_named(name: str) -> None:
    make, place = MADE[name]
    assert same(make(), make(), name)
    assert list(named(make(), make(0.25), name)) == [place]


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_what_is_cut_short_is_refused_or_has_another_meaning(name: str) -> None:
    data = MADE[name][0]()
    format_ = detect(name, data[:4096])
    assert format_ is not None
    whole = shown(format_.read, data)
    for size in {len(data) // 3, len(data) // 2, len(data) - len(data) // 10 - 1}:
        found = meaning(format_.read, data[:size])
        assert found is None or found != whole
        assert not same(data, data[:size], name)


@pytest.mark.extended
@pytest.mark.parametrize("name", EACH)
def test_what_is_damaged_anywhere_gets_one_line(name: str) -> None:
    data, generator = MADE[name][0](), random.Random(name)
    for _ in range(8):
        place, damaged = generator.randrange(len(data)), bytearray(data)
        damaged[place : place + 4] = generator.choice([b"\xff\xff\xff\x7f", b"\0\0\0\0", b"\x7f\xff\xff\xff", b""])
        for leaf in diff(data, bytes(damaged), name).leaves():
            assert "\n" not in leaf.detail
            assert len(leaf.detail) < 500
            assert "gave up on it (" in leaf.detail or not ACCIDENT.search(leaf.detail), leaf.detail


@pytest.mark.slow
def test_what_a_container_adds_is_no_difference() -> None:
    assert same(mat(), mat(do_compression=True), "a.mat")
    assert same(picture(compress_level=1), picture(compress_level=9), "a.png")
    assert same(yaml(), b"{day: 2026-11-30, layers: [64, {act: 'relu'}], rate: 0.50}", "a.yml")


@pytest.mark.slow
def test_cells_structures_texts_and_dates_are_values() -> None:
    found = read("a.mat", mat())
    assert (found["cells/0"], found["name"]) == ("'text'", "'adam'")
    assert found["cells/1"].startswith("float64 (1, 2)")
    assert found["settings/rate"].startswith("int64 (1, 1)")
    assert list(read("a.mat", mat(format="4"))) == ["w"]
    assert read("a.yaml", yaml())["value/day"] == "datetime.date(2026, 11, 30)"


@pytest.mark.slow
def test_pictures_of_other_kinds_and_several_in_one_file() -> None:
    assert read("a.tiff", picture(format_="TIFF", mode="F"))["pixels"].startswith("float32 (4, 4)")
    assert read("a.png", picture(mode="P"))["pixels"].startswith("uint8 (4, 4) ")
    image, file = pytest.importorskip("PIL.Image"), io.BytesIO()
    pages = [image.new("L", (2, 2), color) for color in (1, 2)]
    pages[0].save(file, format="TIFF", save_all=True, append_images=pages[1:])
    assert [name for name in read("a.tif", file.getvalue()) if name.endswith("pixels")] == ["0/pixels", "1/pixels"]


@pytest.mark.slow
def test_what_the_library_passes_over_is_no_same_content() -> None:
    deep = chunked(16, 2, b"".join(b"\0" + bytes(range(12)) for _ in range(2)))
    assert not same(deep, chunked(16, 2, b"".join(b"\0" + bytes([0, 99, *range(2, 12)]) for _ in range(2))), "a.png")
    flat = chunked(8, 0, b"\0ab" * 2)
    assert not same(flat, chunked(8, 0, b"\0ab" * 2, bKGD=b"\0\1"), "a.png")
    assert list(named(flat, chunked(8, 0, b"\0ab" * 2, tEXt=b"loss\0" + b"1"), "a.png")) == ["chunks/tEXt 1"]
    assert list(named(flat, flat + b"more", "a.png")) == ["bytes behind the end"]
    with pytest.raises(ArtifactDamaged, match="has 0 moving pictures, and has 1"):
        read("a.png", chunked(8, 0, b"\0ab" * 2, fcTL=struct.pack(">IIIIIHHBB", 0, 2, 2, 0, 0, 1, 1, 0, 0)))
    first, second = (picture(format_="TIFF", tiffinfo={315: name}) for name in "ab")
    assert list(named(first, second, "a.tif")) == ["tags/315"]
    assert read("a.mat", mat(2.0))["w"].startswith("float64")  # not the small integers as which it is stored
    first, second = with_result(workbook(), b"7"), with_result(workbook(), b"8")
    assert list(named(first, second, "a.xlsx")) == ["Sheet/C1 (result)"]


def chunked(depth: int, color: int, rows: bytes, **texts: bytes) -> bytes:
    """A PNG of 2 x 2 pixels, with further chunks."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 2, 2, depth, color, 0, 0, 0)
    more = b"".join(chunk(kind.encode(), data) for kind, data in texts.items())
    whole = chunk(b"IHDR", head) + more + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + whole


def with_result(book: bytes, result: bytes) -> bytes:
    """A workbook in which a program wrote what the formula in C1 gave."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(book)) as old, zipfile.ZipFile(written, "w") as new:
        for member in old.namelist():
            new.writestr(member, old.read(member).replace(b"<v />", b"<v>" + result + b"</v>"))
    return written.getvalue()


def bomb_of_pixels() -> bytes:
    """A PNG that says it has 60,000 by 60,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"x")) + chunk(b"IEND", b"")


def bomb_of_names() -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    return "\n".join(lines).encode()


def bomb_of_cells() -> bytes:
    source, file = zipfile.ZipFile(io.BytesIO(workbook())), io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        for member in source.namelist():
            target.writestr(member, bytes(32 << 20) if "sheet1" in member else source.read(member))
    return file.getvalue()


def dimension_without_end() -> bytes:
    return netcdf().replace(struct.pack(">4si", b"time", 3), struct.pack(">4si", b"time", 0x7FFFFFF0), 1)


def sharing_model(subgraphs: int = 1, operators: int = 0, buffers: int = 1, size: int = 4) -> bytes:
    """A model of TFLite whose subgraphs are one table, and so are its operators and buffers."""
    builder = pytest.importorskip("flatbuffers").Builder(1024)

    def table(fields: int, slot: int = 0, held: int = 0) -> int:
        builder.StartObject(fields)
        builder.PrependUOffsetTRelativeSlot(slot, held, 0)
        return int(builder.EndObject())

    def vector(of: int, length: int) -> int:
        builder.StartVector(4, length, 4)
        for _ in range(length):
            builder.PrependUOffsetTRelative(of)
        return int(builder.EndVector())

    graphs = vector(table(6, 3, vector(table(5), operators)), subgraphs)
    stored = vector(table(3, 0, builder.CreateByteVector(bytes(size))), buffers)
    builder.StartObject(9)
    builder.PrependUint32Slot(0, 3, 0)
    builder.PrependUOffsetTRelativeSlot(2, graphs, 0)
    builder.PrependUOffsetTRelativeSlot(4, stored, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"TFL3")
    return bytes(builder.Output())


def with_length(length: int) -> bytes:
    """A model of TFLite whose weights are said to be of another length."""
    return lite().replace(struct.pack("<I", 48), struct.pack("<I", length))


def with_member(name: str, data: bytes) -> bytes:
    """An exported program, one of whose members is another."""
    source, file = zipfile.ZipFile(io.BytesIO(program())), io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        for member in source.namelist():
            target.writestr(member, data if member.endswith(name) else source.read(member))
    return file.getvalue()


NOTED = "stored/xl~1comments~1comment1.xml"
HOSTILE: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "pixels": ("a.png", bomb_of_pixels, "ecompression|unpacks to"),
    "names": ("a.yaml", bomb_of_names, "more than"),
    "nested": ("a.yaml", lambda: b"[" * 20_000, "."),
    "keys": ("a.yaml", lambda: b"? [a]\n: 1", "no single value"),
    "objects": ("a.yaml", lambda: b"[" * 150 + b"]" * 150, "nested deeper"),
    "cells": ("a.xlsx", bomb_of_cells, "unpacks to"),
    "dimension": ("a.nc", dimension_without_end, "."),
    "arrays": ("a.eqx", lambda: b'{"endless": 1', "no end"),
    "tables": ("a.tflite", lambda: sharing_model(600, 600), "more than 250,000 tables"),
    "buffers": ("a.tflite", lambda: sharing_model(buffers=20_000, size=1 << 16), "more than are read"),
    "length": ("a.tflite", lambda: with_length(0x7FFFFFFF), "gave up on it"),
    "root": ("a.tflite", lambda: b"\xf0\xff\xff\x7fTFL3" + bytes(64), "gave up on it"),
    "matlab": ("a.mat", lambda: mat()[:128] + struct.pack("<II", 14, 0xFFFFFFF0) + bytes(64), "."),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_made_to_hurt_is_refused_in_one_line(case: str) -> None:
    name, make, words = HOSTILE[case]
    format_ = detect(name, make()[:4096])
    assert format_ is not None
    with pytest.raises(ArtifactDamaged, match=words) as refused:
        list(format_.read(BytesSource(make()), Limits(unpacked=16 << 20)))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.slow
@pytest.mark.parametrize(
    ("member", "data", "words"),
    [
        ("data/weights/weight_0", bytes(32 << 20), "33554432 bytes"),
        ("models/model.json", b"[" * 200_000, "damaged"),
        ("models/model.json", b"{" + b'"a":1e999999,' * 99, "damaged"),
    ],
)
def test_members_of_an_exported_program_that_are_made_to_hurt_are_named(member: str, data: bytes, words: str) -> None:
    [(name, text)] = named(program(), with_member(member, data), "a.pt2").items()
    assert name.startswith(member)
    assert words in text
    assert len(text) < 500


def test_a_package_that_a_library_is_read_with_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", {"yaml": 1, "json": 1}.get)  # and no NumPy
    reader = ParsingLibrary("YAML", "yaml", "reprokit.diff.value_process", "yaml", "pyyaml")
    with pytest.raises(ArtifactDamaged, match="numpy is not installed: pip install numpy"):
        list(reader.read(BytesSource(yaml()), Limits()))
    assert not ParsingLibrary("JSON", "json", "", "").missing  # of the standard library


def test_no_code_of_a_yaml_file_is_executed() -> None:
    found = read("a.yaml", b"a: !!python/object/apply:os.getpid []\nb: !own 3\n")
    assert found["value/a"] == "tag:yaml.org,2002:python/object/apply:os.getpid list of 0"
    assert found["value/b"] == "!own '3'"


YAML_PAIRS = {
    "tag of a text": ("a: !own b", "a: '!own b'"),
    "tag of a mapping": ("a: !own {b: 1}", "a: !other {b: 1}"),
    "set": ("a: !!set {b: null}", "a: {b: null}"),
    "type of a key": ("1: a", "'1': a"),
    "empty mapping": ("a: {}\nb: 1", "b: 1"),
    "numbers as keys": ("a: [5]", "a: {0: 5}"),
    "name of a length": ("'a (length)': 0", "a: []"),
    "keys alike": ("1: a\n'1': b", "'1': a\n1: b"),
    "document": ("a: 1\n---\n{}", "a: 1"),
}


@pytest.mark.parametrize("pair", rest_slow(YAML_PAIRS))
def test_yaml_of_another_meaning_is_no_same_content(pair: str) -> None:
    left, right = YAML_PAIRS[pair]
    assert not same(left.encode(), right.encode(), "a.yaml")


@pytest.mark.slow
def test_matlab_of_another_meaning_is_no_same_content() -> None:
    scipy_io = pytest.importorskip("scipy.io")
    from scipy.io.matlab import MatlabObject

    def saved(**content: Any) -> bytes:
        file = io.BytesIO()
        scipy_io.savemat(file, content)
        return file.getvalue()

    def cell(value: object) -> Any:
        cells = np.empty((1, 1), dtype=object)
        cells[0, 0] = value
        return cells

    record = np.array([(1.0,)], dtype=[("a", object)])
    for left, right in (
        (saved(x=cell("a")), saved(x="a")),
        (saved(x=cell(1.0)), saved(x=1.0)),
        (saved(x=MatlabObject(record, "one")), saved(x=MatlabObject(record, "two"))),
    ):
        assert not same(left, right, "a.mat")
    for refused, words in (
        (saved(x=np.array([1 + 2j])), "imaginary"),
        (saved(x=1.0) + saved(x=2.0)[128:], "Duplicate"),
    ):
        with pytest.raises(ArtifactDamaged, match=words):
            read("a.mat", refused)


@pytest.mark.slow
def test_the_type_of_an_attribute_of_netcdf_is_compared() -> None:
    def saved(value: object) -> bytes:
        file = io.BytesIO()
        opened = pytest.importorskip("scipy.io").netcdf_file(file, "w")
        opened.scale = value
        opened.flush()
        return file.getvalue()

    assert list(named(saved(np.int16(5)), saved(np.int32(5)), "a.nc")) == ["@/scale"]


def channels(data: bytes, of_pixel: int) -> bytes:
    """A TIFF of 2 x 2 pixels, whose channels beside the first are said to be of no known kind."""
    entries = [(256, 3, 1, 2), (257, 3, 1, 2), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 8)]
    entries += [(277, 3, 1, of_pixel), (278, 3, 1, 2), (279, 4, 1, len(data)), (338, 3, 1, 0)]
    entries[2] = (258, 3, 2, 8 | 8 << 16)
    body = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(entries)) + body + bytes(4)


@pytest.mark.slow
def test_numbers_of_colors_and_channels_that_are_passed_over_are_no_same_content() -> None:
    first, second = channels(bytes(range(8)), 2), channels(bytes([0, 99, *range(2, 8)]), 2)
    assert not same(first, second, "a.tif")
    with pytest.raises(ArtifactDamaged, match="1 of its 2 channels"):
        read("a.tif", first)
    masks = []
    for numbers in ([[0, 1], [2, 1]], [[0, 2], [1, 2]]):  # the palette shows all of them in the same color
        mask, file = pytest.importorskip("PIL.Image").fromarray(np.array(numbers, np.uint8)), io.BytesIO()
        mask.putpalette([7] * 768)
        mask.save(file, format="PNG")
        masks.append(file.getvalue())
    assert list(named(masks[0], masks[1], "a.png")) == ["pixels"]


@pytest.mark.slow
def test_workbooks_of_another_meaning_are_no_same_content() -> None:
    openpyxl = pytest.importorskip("openpyxl")
    from openpyxl.comments import Comment
    from openpyxl.workbook.defined_name import DefinedName
    from openpyxl.worksheet.formula import ArrayFormula

    def saved(change: Callable[[Any, Any], object]) -> bytes:
        book, file = openpyxl.Workbook(), io.BytesIO()
        book.active["A1"], book.active["B2"] = "#N/A", 1
        book.create_sheet("more")
        change(book, book.active)
        book.save(file)
        return file.getvalue()

    plain = saved(lambda book, sheet: None)
    changes: list[tuple[Callable[[Any, Any], object], str]] = [
        (lambda book, sheet: setattr(sheet["A1"], "data_type", "s"), "Sheet/A1"),
        (lambda book, sheet: setattr(sheet["B2"], "value", ArrayFormula("B2:B3", "=1")), "Sheet/B2"),
        (
            lambda book, sheet: setattr(sheet["B2"], "comment", Comment("why", "me")),
            "stored/xl~1comments~1comment1.xml",
        ),
        (lambda book, sheet: setattr(book["more"], "sheet_state", "hidden"), "sheets"),
        (lambda book, sheet: book.defined_names.add(DefinedName("rate", attr_text="5")), "names/rate"),
    ]
    for change, place in changes:
        assert place in named(plain, saved(change), "a.xlsx")
    array = saved(lambda book, sheet: setattr(sheet["B2"], "value", ArrayFormula("B2:B3", "=1")))
    assert "object at" not in str(read("a.xlsx", array))
    other = saved(lambda book, sheet: setattr(sheet["B2"], "value", 2))
    assert list(named(sized(plain), sized(other), "a.xlsx")) == ["Sheet/B2"]


def sized(book: bytes) -> bytes:
    """A workbook whose first sheet says that it has one cell."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(book)) as old, zipfile.ZipFile(written, "w") as new:
        for member in old.namelist():
            new.writestr(member, old.read(member).replace(b'ref="A1:B2"', b'ref="A1:A1"'))
    return written.getvalue()


def test_text_that_is_no_yaml_is_compared_by_lines() -> None:
    assert named(b"a: [\nb\n", b"a: [\nc\n", "a.yaml") == {"a.yaml: line 2": "b | c | first at character 1"}


@pytest.mark.slow
def test_tensors_and_operators_of_tflite_are_compared_by_name() -> None:
    model = lite()
    assert same(model, lite(), "a.tflite")
    [(place, words)] = named(model, lite(0.25), "a.tflite").items()
    assert place == "subgraphs/0/tensors/MatMul"
    assert words.startswith("0.5 | 0.25 | 1 of 12 elements of float32 [3, 4]")
    assert "model/operatorCodes/1/builtinCode" in named(model, lite(is_squared=True), "a.tflite")
    whole = read("a.tflite", model)
    for size in range(8, len(model), 97):
        format_ = detect("a.tflite", model[:size])
        assert format_ is not None
        assert meaning(format_.read, model[:size]) != whole
    with pytest.raises(ArtifactDamaged, match="does not know: install a later one"):
        read("a.tflite", with_a_later_field())
    read("a.tflite", with_a_later_field(fields=9))


def with_a_later_field(fields: int = 60) -> bytes:
    """A model whose last field stands behind all that are known."""
    builder = pytest.importorskip("flatbuffers").Builder(64)
    builder.StartObject(fields)
    builder.PrependUint32Slot(0, 3, 0)
    if fields > 9:
        builder.PrependUint32Slot(fields - 1, 7, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"TFL3")
    return bytes(builder.Output())


@pytest.mark.slow
@pytest.mark.parametrize("place", range(0, 96, 16))
def test_damaged_models_of_tflite_are_refused_in_bounds(place: int) -> None:
    model = bytearray(with_a_later_field(9) + bytes(64))
    model[8 + place % (len(model) - 8)] ^= 0x84
    format_ = detect("a.tflite", bytes(model))
    assert format_ is not None
    meaning(format_.read, bytes(model))
