"""Two files of each format and what is said of them; what a container adds by itself is no difference."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from reprokit.core.difference import Verdict
from reprokit.core.tolerance import Tolerance
from reprokit.diff.compare import FileSide, compare
from reprokit.diff.elements import CompareOptions
from reprokit.diff.sources import BytesSource, open_file
from tests.diff import samples
from tests.diff.samples import diff


def leaves(left: bytes, right: bytes, name: str) -> list[tuple[str, str, str]]:
    return [(leaf.name, leaf.left, leaf.right) for leaf in diff(left, right, name).leaves()]


def detail(left: bytes, right: bytes, name: str) -> str:
    """What is said of two files with the same content."""
    found = diff(left, right, name)
    assert found.verdict is Verdict.IDENTICAL
    return found.detail


def test_arrays() -> None:
    left = np.arange(6.0).reshape(2, 3)
    right = left.copy()
    right[1, 1] = 4.5
    found = diff(samples.npy(left), samples.npy(right), "x.npy")
    assert found.detail == "1 of 1 tensor differs"
    [leaf] = found.leaves()
    assert (leaf.left, leaf.right) == ("4.0", "4.5")
    assert leaf.detail == (
        "1 of 6 elements of float64 [2, 3] differs, first at [1, 1];"
        " at most 0.5 at [1, 1], relative 0.111 at [1, 1], 562949953421312 ULP at [1, 1]"
    )


@pytest.mark.parametrize("other", [np.asfortranarray, lambda array: array.astype(array.dtype.newbyteorder(">"))])
@pytest.mark.parametrize("dtype", ["f4", "i8", "c16", "M8[ns]"])
def test_the_order_of_an_array_is_noise(dtype: str, other: object) -> None:
    left = np.arange(6).reshape(2, 3).astype(dtype)
    assert "order" in detail(samples.npy(left), samples.npy(other(left)), "x.npy")  # type: ignore[operator]


def test_models_of_catboost_without_what_is_of_one_training() -> None:
    facts = {"params": "{}", "model_guid": "1a2b", "train_finish_time": "2026-01-01T00:00:00Z"}
    left = samples.cbm(facts, b"trees")
    assert detail(left, samples.cbm({**facts, "model_guid": "1a2b3c"}, b"trees"), "m.cbm")
    assert leaves(left, samples.cbm({**facts, "params": "[]"}, b"trees"), "m.cbm") == [
        ("m.cbm/facts/params", "{}", "[]")
    ]
    assert [name for name, *_ in leaves(left, samples.cbm(facts, b"tries"), "m.cbm")] == ["m.cbm/trees"]
    assert [name for name, *_ in leaves(left, samples.cbm(facts, b"trees", "v2"), "m.cbm")] == ["m.cbm/version"]
    for size in range(4, len(left)):
        assert diff(left, left[:size], "m.cbm").verdict is Verdict.DIFFERENT
    for at in range(4, len(left) - 5, 4):
        diff(left, left[:at] + b"\xff\xff\xff\xff" + left[at + 4 :], "m.cbm")


def test_models_of_catboost_as_json_without_what_is_of_one_training() -> None:
    facts = {"catboost_version_info": "1.2", "model_guid": "a", "train_finish_time": "b", "params": "c"}

    def model(**changed: str) -> bytes:
        return json.dumps({"model_info": {**facts, **changed}, "scale_and_bias": [1, [0]]}).encode()

    assert detail(model(), model(model_guid="1", train_finish_time="2"), "m.json")
    assert leaves(model(), model(params="2"), "m.json") == [("m.json/value/model_info/params", '"c"', '"2"')]
    del facts["catboost_version_info"]
    assert len(leaves(model(), model(model_guid="1"), "m.json")) == 1


def test_notebooks_without_when_they_were_executed() -> None:
    def notebook(time: str, cell: str = "a", result: str = "42\n", tags: str = "") -> bytes:
        execution = {"iopub.execute_input": time, "shell.execute_reply": time, "tags": tags}
        run = {"start_time": time, "end_time": time, "duration": time, "exception": None}
        outputs = [{"name": "stdout", "text": [result], "metadata": {"execution": {"iopub.status.idle": result}}}]
        metadata = {"execution": execution, "papermill": run}
        cells = [{"id": cell, "metadata": metadata, "outputs": outputs}]
        return json.dumps({"cells": cells, "metadata": {"papermill": {**run, "parameters": {}}}}).encode()

    left = notebook("1")
    noise = "value/cells/0/id, value/cells/0/metadata/execution/iopub.execute_input"
    assert noise in detail(left, notebook("2", "b"), "n.ipynb")
    changed = leaves(left, notebook("1", "a", "43\n", "x"), "n.ipynb")
    assert [name.removeprefix("n.ipynb/value/cells/0/") for name, *_ in changed] == [
        "metadata/execution/tags",
        "outputs/0/text/0",
        "outputs/0/metadata/execution/iopub.status.idle",
    ]
    assert diff(left, notebook("2"), "n.json").verdict is Verdict.DIFFERENT
    assert diff(left, left[:-1], "n.ipynb").verdict is Verdict.DIFFERENT


def test_texts_records_and_objects_in_arrays() -> None:
    texts = np.array(["one", "two"]), np.array(["one", "tWo"])
    for type_ in ("<U3", ">U3", "S3"):
        left, right = (samples.npy(text.astype(type_)) for text in texts)
        assert leaves(left, right, "x.npy")[0][1:] == ("'two'", "'tWo'")
    fields = [("a", "<i4"), ("b", ">f8"), ("c", "<U2", (2,)), ("d", "M8[D]"), ("e", [("f", "i1"), ("g", "S2")])]
    rows = [(1, 2.0, ("x", "y"), "2026-11-30", (1, b"k")), (3, 4.0, ("z", "yz"), "1969-12-31", (2, b""))]
    records = np.array(rows, fields)
    for row, name, value, texts_shown in (
        (1, "b", 5.0, ("4.0", "5.0")),
        (0, "c", ("x", "Z"), ("'y'", "'Z'")),
        (1, "d", "2027-01-01", ("1969-12-31", "2027-01-01")),
        (1, "e", (2, b"n"), ("''", "'n'")),
    ):
        other = records.copy()
        other[name][row] = value
        for one, two in (
            (records, other),
            (np.asfortranarray([records, records]), np.asfortranarray([other, records])),
        ):
            [leaf] = leaves(samples.npy(one), samples.npy(two), "x.npy")
            assert leaf == (f"x.npy/array/{'e/g' if name == 'e' else name}", *texts_shown)
    aligned = np.zeros(2, np.dtype([("a", "i1"), ("b", "f8")], align=True))
    gap = bytearray(samples.npy(aligned))
    gap[-12] = 7  # which no field has
    assert not diff(samples.npy(aligned), bytes(gap), "x.npy").verdict.differs
    dates = {"M8[25s]": "1970-01-01T00:00:50", "M8[Y]": "1972", "M8[M]": "1970-03", "M8[h]": "1970-01-01T02:00:00"}
    dates |= {"M8[ns]": "1970-01-01T00:00:00.000000002", "m8[ms]": "2 ms", "M8[W]": "1970-01-15"}
    for type_, text in dates.items():
        moments = np.array([2], "i8").view(type_), np.array(["NaT"], type_)
        assert leaves(samples.npy(moments[0]), samples.npy(moments[1]), "x.npy") == [("x.npy/array", text, "NaT")]
    units = np.array([1, 2], "m8[s]"), np.array([1, 2], "m8[ms]")
    assert leaves(samples.npy(units[0]), samples.npy(units[1]), "x.npy") == [("x.npy/array/type", "m8[s]", "m8[ms]")]


def test_a_zip_of_arrays_packed_or_not() -> None:
    content = samples.arrays()
    assert "compression" in detail(samples.npz(content), samples.npz(content, compressed=True), "x.npz")
    other = {**content, "flags": ~content["flags"]}
    assert leaves(samples.npz(content), samples.npz(other, compressed=True), "x.npz") == [
        ("x.npz/flags", "True", "False")
    ]


def zipped_with(*, comment: bytes = b"", about: bytes = b"", extra: bytes = b"", slack: bytes = b"") -> bytes:
    """A zip archive of one member, with bytes that belong to none."""
    file, member = io.BytesIO(), zipfile.ZipInfo("a")
    member.comment, member.extra = about, extra
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(member, "hello")
        archive.comment = comment
    data = file.getvalue()
    at, end = data.index(b"PK\1\2"), data.rindex(b"PK\5\6")
    place = struct.pack("<L", at + len(slack))
    return data[:at] + slack + data[at : end + 16] + place + data[end + 20 :]


@pytest.mark.parametrize(
    ("one", "other", "where"),
    [
        ({"comment": b"acc=0.90"}, {"comment": b"acc=0.91"}, "comment"),
        ({"comment": b"x" * 300}, {"comment": b"y" * 300}, "comment"),
        ({"about": b"1"}, {"about": b"2"}, "comment of a"),
        ({}, {"extra": struct.pack("<HHL", 0x9999, 4, 1)}, "fields of a"),
        ({"slack": b"one"}, {"slack": b"two"}, "behind a"),
    ],
)
def test_bytes_of_a_zip_that_are_in_no_member_count(one: Any, other: Any, where: str) -> None:
    left, right = zipped_with(**one), zipped_with(**other)
    [(name, *texts)] = leaves(left, right, "a.zip")
    assert name == f"a.zip/(other bytes outside of the members, {where})"
    assert texts[0] != texts[1]
    first, second = (zipped_with(extra=struct.pack("<HHBL", 0x5455, 5, 1, time)) for time in (1, 2))
    assert "attributes" in detail(first, second, "a.zip")


def test_sizes_behind_a_member_are_no_other_bytes() -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise OSError("a pipe has no position")

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w") as archive:
        archive.writestr("a", "hello")
    assert "compression" in detail(zipped_with(), pipe.getvalue(), "a.zip")


def tarred_with(form: int = tarfile.PAX_FORMAT, *, everywhere: Any = None, **headers: str) -> bytes:
    file, member = io.BytesIO(), tarfile.TarInfo("a")
    member.size, member.pax_headers = 5, headers
    with tarfile.open(fileobj=file, mode="w", format=form, pax_headers=everywhere) as archive:
        archive.addfile(member, io.BytesIO(b"hello"))
    return file.getvalue()


def test_bytes_of_a_tar_that_are_in_no_member_count() -> None:
    left = tarred_with(comment="1")
    for right in (tarred_with(comment="2"), tarred_with(everywhere={"comment": "2"})):
        assert leaves(left, right, "a.tar") == [
            ("a.tar/(other bytes outside of the members, comment of a)", "'1'", "'2'")
        ]
    plain = tarred_with(tarfile.USTAR_FORMAT)
    [(name, *_)] = leaves(plain, plain[:552] + b"\7" + plain[553:], "a.tar")
    assert name == "a.tar/(other bytes outside of the members, behind a)"
    assert "time stamps" in detail(tarred_with(atime="1.5"), tarred_with(atime="2.5"), "a.tar")
    assert detail(tarred_with(), tarred_with(tarfile.GNU_FORMAT), "a.tar") == "same content, written in other bytes"


def test_the_comment_of_a_gzip_counts() -> None:
    plain = gzip.compress(b"hello", mtime=0)

    def commented(flags: int, rest: bytes) -> bytes:
        return plain[:3] + bytes([flags]) + plain[4:10] + rest + plain[10:]

    assert leaves(commented(16, b"1\0"), commented(16, b"2\0"), "a.gz") == [
        ("a.gz/(other bytes outside of the members, comment)", "'1'", "'2'")
    ]
    named = commented(4 | 8 | 16, b"\3\0xyza.txt\0one\0"), commented(4 | 8 | 16, b"\3\0xyzb.txt\0one\0")
    assert "file name" in detail(*named, "a.gz")


def test_safetensors_with_bfloat16_and_metadata() -> None:
    one = np.array([1.0, -2.0], ml_dtypes.bfloat16).view(np.uint16)
    left, right = (samples.safetensors({"w": array}, {"epoch": text}) for array, text in ((one, "1"), (one + 1, "2")))
    assert leaves(left, right, "m.safetensors") == [
        ("m.safetensors/__metadata__/epoch", "1", "2"),
        ("m.safetensors/w", "1", "1.008"),
    ]
    spaced = samples.safetensors({"w": one}, {"epoch": "1"}, indent=2)
    assert "written in other bytes" in detail(left, spaced, "m.safetensors")


def test_json() -> None:
    left = b'{"a": [1, 2.50, {"b/c": "x"}], "n": 1, "n": 2, "k": 1e400}'
    assert "written in other bytes" in detail(left, b'{"k":1e400,"n":1,"n":2,"a":[1,2.50,{"b\\u002fc":"x"}]}', "v.json")
    right = b'{"a": [1, 2.5, {"b/c": "y"}], "n": 1, "n": 3, "k": 1e400}'
    assert leaves(left, right, "v.json") == [
        ("v.json/value/a/1", "2.50", "2.5"),
        ("v.json/value/a/2/b~1c", '"x"', '"y"'),
        ("v.json/value/n (2)", "2", "3"),
    ]
    for one, other in (
        (b"1", b'"1"'),
        (b"[1]", b'{"0": 1}'),
        (b"{}", b"[]"),
        (b"null", b"0"),
        (b'{"a/b":1}', b'{"a":{"b":1}}'),
    ):
        assert diff(one, other, "v.json").verdict.differs


def test_a_double_key_is_no_key_that_is_called_so() -> None:
    assert diff(b'{"n": 1, "n": 2}', b'{"n": 1, "n (2)": 2}', "v.json").verdict.differs
    assert diff(b'{"n": 1, "n": 2}', b'{"n": 2, "n": 1}', "v.json").verdict.differs


def test_one_name_is_enough_to_tell_the_format_of_both() -> None:
    left, right = b'{"a": 1}', b'{"a":  1}'
    assert (
        compare("v", FileSide(BytesSource(left), "v.json"), FileSide(BytesSource(right), "v.json.old")).verdict
        is Verdict.IDENTICAL
    )
    assert (
        compare("v", FileSide(BytesSource(left), "v.old"), FileSide(BytesSource(right), "v.json")).verdict
        is Verdict.IDENTICAL
    )
    assert compare("v", FileSide(BytesSource(left), "v.old"), FileSide(BytesSource(right), "v.txt")).verdict.differs


def test_a_long_list_of_numbers_in_json_is_a_tensor() -> None:
    texts = [f"{number / 7}" for number in range(1000)]
    changed = [*texts[:500], texts[500] + "0", *texts[501:998], "-1", "1e999"]
    left, right = (f"[{', '.join(numbers)}]".encode() for numbers in (texts, changed))
    tensor, written = diff(left, right, "p.json").leaves()
    assert (tensor.name, tensor.figures["differing"], tensor.figures["first"]) == ("p.json/value/numbers", 2, [998])
    assert written.name == "p.json/value/as written"


def test_tables() -> None:
    left, right = b'step,loss\n1,0.5\n2,"x"\n3,1\n', b"step,loss\n1,0.50\n2,y\n4,1\n"
    assert leaves(left, right, "t.csv") == [
        ("t.csv: row 2, column 2 (loss)", "0.5", "0.50"),
        ("t.csv: row 3, column 2 (loss)", "x", "y"),
        ("t.csv: row 4, column 1 (step)", "3", "4"),
    ]
    assert "quotes" in detail(b"a;b\n1;2\n", b'"a";b\r\n1;"2"\r\n', "t.csv")
    assert diff(b"a\n", b"a\n\n", "t.csv").verdict.differs
    assert diff(b"a,b\n", b"a\n", "t.csv").verdict.differs


def test_texts() -> None:
    left, right = b"one\ntwo\nthree\n", b"one\nTwo\nthree\nfour"
    found = diff(left, right, "log")
    assert found.detail == "2 of 3 and 4 lines differ"
    assert leaves(left, right, "log") == [("log: line 2", "two", "Two"), ("log: line 4", "", "four")]
    assert diff(b"a\n", b"a", "log").verdict.differs
    assert diff(b"a\n", b"a\r\n", "log").verdict.differs
    shifted = diff(b"one\ntwo\nthree\n", b"zero\none\nTwo\nthree\n", "log")
    assert [leaf.name for leaf in shifted.leaves()] == ["log: line 1", "log: line 2 (3 on the right)"]
    long = b"".join(b"%d\n" % number for number in range(5000))
    assert diff(b"a\n" + long, long, "log").detail == "5001 of 5001 and 5000 lines differ, place by place"
    assert "zebra" in diff(b"x" * 900 + b"zebra\n", b"x" * 900 + b"horse\n", "log").children[0].left


def test_lines_of_json() -> None:
    left = b'{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25, "deep": {"a": [1, 2]}}\n'
    right = b'{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.26, "deep": {"a": [1, 3]}, "new": null}\n'
    assert leaves(left, right, "log.jsonl") == [
        ("log.jsonl: line 2", "object of 3", "object of 4"),
        ("log.jsonl: line 2/loss", "0.25", "0.26"),
        ("log.jsonl: line 2/deep/a/1", "2", "3"),
        ("log.jsonl: line 2/new", "", "null"),
    ]
    spaced = diff(b'{"a": 1}\n', b'{"a":1}\n', "log.jsonl")
    assert (spaced.verdict, "spaces" in spaced.detail) == (Verdict.IDENTICAL, True)
    assert diff(b"{not json\n", b"{not yaml\n", "log.jsonl").verdict.differs
    assert leaves(b"1\n2\n", b"1\n1\n2\n", "log.jsonl") == [("log.jsonl: line 2", "", "1\n")]


def test_renamed_tensors() -> None:
    weights, other = np.arange(6, dtype=np.float32), np.ones(6, np.float32)
    left = samples.safetensors({"a": weights, "b": other, "c": np.zeros(2)})
    right = samples.safetensors({"z": weights, "b": other, "d": np.ones(2)})
    found = {leaf.name: leaf.detail for leaf in diff(left, right, "m.safetensors").leaves()}
    assert found == {
        "m.safetensors/a": "renamed: z in the right file has equal content",
        "m.safetensors/c": "only the left file has it",
        "m.safetensors/d": "only the right file has it",
    }
    assert diff(left, right, "m.safetensors").verdict.differs


def test_archives() -> None:
    members = {"a.txt": b"one\n", "d/w.npy": samples.npy(np.zeros(2)), "x": b"\0\1"}
    other = {**members, "d/w.npy": samples.npy(np.ones(2))}
    turned = dict(reversed(members.items()))
    late = (2030, 1, 1, 0, 0, 0)
    said = detail(samples.zipped(members), samples.zipped(turned, zipfile.ZIP_DEFLATED, late), "a.zip")
    assert all(word in said for word in ("time stamps", "compression", "order of members"))
    assert leaves(samples.zipped(members), samples.zipped(other), "a.zip") == [("a.zip/d/w.npy/array", "0.0", "1.0")]
    one = samples.tarred(members)
    two = gzip.compress(samples.tarred(turned, mtime=5, owner="you", form=tarfile.GNU_FORMAT), mtime=9)
    said = detail(gzip.compress(one, mtime=1), two, "a.tar.gz")
    assert all(word in said for word in ("time stamp", "owners", "order of members"))
    assert leaves(lzma.compress(one), lzma.compress(samples.tarred(other)), "a.tar.xz") == [
        ("a.tar.xz/content/d/w.npy/array", "0.0", "1.0")
    ]
    assert leaves(one, samples.tarred({"a.txt": b"one\n"}), "a.tar") == [
        ("a.tar/d/w.npy", "144 bytes", ""),
        ("a.tar/x", "2 bytes", ""),
    ]


def test_a_packed_table_keeps_its_name() -> None:
    left, right = gzip.compress(b"a,b\n1,2\n"), gzip.compress(b"a,b\n1,3\n")
    assert leaves(left, right, "t.csv.gz") == [("t.csv.gz/content: row 2, column 2 (b)", "2", "3")]


def test_the_first_member_of_an_archive_does_not_decide_alone() -> None:
    members = {"a.txt": b"text", "b.npy": samples.npy(np.arange(3))}
    swapped = dict(reversed(members.items()))
    assert not samples.diff(samples.zipped(members), samples.zipped(swapped), "a.zip").verdict.differs


def test_bytes_and_formats_that_differ() -> None:
    [leaf] = diff(bytes(range(256)), bytes(range(255)) + b"\0", "x").leaves()
    assert leaf.figures == {"bytes": [256, 256], "first_byte": 255, "differing_bytes": 1}
    found = diff(samples.npy(np.zeros(1)), samples.zipped({"a": b""}), "x")
    assert found.detail.startswith("the left file is npy, the right one zip; ")
    assert diff(b"", b"\0", "x").verdict.differs


def test_stored_bytes_that_belie_their_sum_are_no_identical_content() -> None:
    whole = samples.zipped({"a.npy": samples.npy(np.zeros(2))})
    spaced = whole.replace(b", }", b",}", 1).replace(b"  \n", b"   \n", 1)
    assert diff(whole, spaced, "a.zip").verdict.differs
    one, other = (samples.zipped({"a": b"12"}).replace(b"\xcd\x44\x53\x4f", crc) for crc in (b"\0\0\0\0", b"\0\0\0\1"))
    assert "says 00000000" in diff(one, other, "a.zip").detail
    large = [samples.zipped({"a": bytes(5000)}).replace(b"\xa8\x0e\xe5\xd8", crc) for crc in (b"\0" * 4, b"\1" * 4)]
    assert "check sums" in diff(large[0], large[1], "a.zip").children[0].detail


def test_differences_beyond_what_is_named_are_counted() -> None:
    left = {f"m{number}": bytes([number % 250, 250]) for number in range(2100)}
    right = {name: data + b"\0" for name, data in left.items()}
    found = diff(samples.zipped(left), samples.zipped(right), "a.zip")
    assert len(found.children) == 2001
    assert found.detail.startswith("2100 of 2100 files within differ")
    assert found.children[-1].name == "a.zip: 100 more"


def test_a_tolerance_accepts_what_is_not_bitwise_the_same() -> None:
    left = {"a": np.ones(2), "b": np.ones(2)}
    right = {"a": np.nextafter(left["a"], 2), "b": left["b"] + 1}
    sides = [FileSide(BytesSource(samples.npz(content)), "x.npz") for content in (left, right)]
    options = CompareOptions(tolerance=Tolerance(ulp=1))
    found = compare("x.npz", sides[0], sides[1], options)
    assert [(leaf.name, leaf.verdict.differs) for leaf in found.leaves()][-1] == ("x.npz/b", True)
    accepted = compare(
        "x.npz", sides[0], FileSide(BytesSource(samples.npz({**right, "b": left["b"]})), "x.npz"), options
    )
    assert accepted.verdict is Verdict.TOLERATED
    assert [leaf.detail.rpartition("; ")[2] for leaf in accepted.leaves()] == ["all within 1 ULP"]


def test_files_are_closed_and_unpacked_bytes_given_back(tmp_path: Path) -> None:
    def open_descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    big = {f"m{number}": np.random.default_rng(number).random(300_000) for number in range(3)}
    paths = [tmp_path / "a.npz", tmp_path / "b.npz"]
    np.savez_compressed(paths[0], **big)  # type: ignore[arg-type]
    np.savez_compressed(paths[1], **{**big, "m1": big["m2"]})  # type: ignore[arg-type]
    before = open_descriptors()
    files = [open_file(path) for path in paths]
    found = compare("x", FileSide(files[0], "a.npz"), FileSide(files[1], "b.npz"))
    assert [leaf.name for leaf in found.leaves()] == ["x/m1"]
    for file in files:
        file.close()
    assert open_descriptors() == before
