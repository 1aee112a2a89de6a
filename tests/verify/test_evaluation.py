"""Predictions of two runs: how many differ, which first, by how much; and files that are not what was written."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reprokit.core.difference import Difference, Verdict
from reprokit.core.errors import ReprokitError, RunDamaged
from reprokit.run_files import rundir
from reprokit.verify.comparison import Comparison
from reprokit.verify.read.evaluation_columns import decoder
from reprokit.verify.runs import compare as compare_runs
from reprokit.verify.show.comparison import document, rows

from .runs import Building, digest, float32

Pair = tuple[Building, Building]
Compare = Callable[[Pair], Comparison]

NAN = struct.unpack("<f", struct.pack("<I", 0x7FC00001))[0]


def category(comparison: Comparison) -> Difference:
    return next(child for child in comparison.tree.children if child.name == "evaluation metrics")


def leaves(comparison: Comparison) -> dict[str, Difference]:
    """The leaves of the only series."""
    (series,) = category(comparison).children
    return {leaf.name: leaf for leaf in series.leaves()}


def told(comparison: Comparison) -> str:
    """What stands on one screen."""
    return next(row.text for row in rows(comparison, every_leaf=False) if row.name == "evaluation metrics")


def test_equal_predictions_are_exactly_equal(bare: Pair, compared: Compare) -> None:
    for run in bare:
        run.predictions("predict", [3, 1, 2], [3, 1, 1], accuracy=[2, 3], classes=[["1", 1, 2], ["3", 1, 1]])
    comparison = compared(bare)
    assert comparison.identical
    assert told(comparison).endswith("3 predictions, accuracy 0.666667 (2 of 3), exactly equal")


def test_inconsistent_labels_are_counted_and_the_first_is_named(bare: Pair, compared: Compare) -> None:
    truth = [0, 0, 1, 1, 1]
    bare[0].predictions("p", [0, 0, 1, 1, 0], truth, accuracy=[4, 5], classes=[["0", 2, 2], ["1", 2, 3]])
    bare[1].predictions("p", [0, 1, 1, 0, 0], truth, accuracy=[2, 5], classes=[["0", 1, 2], ["1", 1, 3]])
    comparison = compared(bare)
    found = leaves(comparison)
    assert found["predictions"].detail == (
        "2 of 5 predictions of p of process 0 are inconsistent (40 %), first at number 1: 0 against 1"
    )
    counts = {"compared": 5, "inconsistent": 2, "not_bitwise_equal": 2, "first": 1, "largest_difference": None}
    assert found["predictions"].figures == counts
    per_class = found["per-class accuracy"]
    assert (per_class.left, per_class.right) == ("1 (2 of 2)", "0.5 (1 of 2)")
    assert per_class.figures == {"label": "0", "left": [2, 2], "right": [1, 2]}
    assert (found["accuracy"].left, found["accuracy"].right) == ("0.8 (4 of 5)", "0.4 (2 of 5)")
    assert all(leaf.detail in told(comparison) for leaf in found.values())
    categories = {one["name"]: one["children"] for one in document(comparison)["categories"]}
    (series,) = categories["evaluation metrics"]
    assert counts in [leaf.get("figures") for leaf in series["children"]]


def test_scores_are_compared_by_label_and_by_bits(bare: Pair, compared: Compare) -> None:
    left = numpy.array([[0.75, 0.25], [0.5, 0.5], [0.1, 0.9]], "f4")
    right = left.copy()
    right[0, 0], right[1, 1] = 0.5, numpy.nextafter(numpy.float32(0.5), numpy.float32(1))
    for run, scores in zip(bare, (left, right), strict=True):
        run.predictions("p", scores, form="scores", labels=["cat", "dog"])
    found = leaves(compared(bare))
    assert found["predictions"].detail.endswith("first at number 1: cat against dog; 2 are not bit for bit equal")
    assert found["predictions"].figures["inconsistent"] == 1
    largest = found["largest difference"]
    assert largest.detail == "the largest difference of two numbers is 0.25, at number 0: 0.75 against 0.5"


def test_other_bits_of_the_same_label(bare: Pair, compared: Compare) -> None:
    for run, number in zip(bare, (0.75, 0.875), strict=True):
        run.predictions("p", numpy.array([0.1, number]), form="probability")
    detail = leaves(compared(bare))["predictions"].detail
    same = "1 of 2 predictions of p of process 0 are not bit for bit equal, all of the same label"
    assert detail == f"{same}; first at number 1: 0.75 against 0.875"


def test_regression(bare: Pair, compared: Compare) -> None:
    numbers = {"task": "regression", "form": "values"}
    for run, pred, error in zip(bare, ([1.0, 2.0, 4.0], [1.0, 2.5, 3.0]), (0.5, 0.25), strict=True):
        run.predictions("p", pred, [1.0, 2.0, 3.0], error=float32(error), **numbers)
    found = leaves(compared(bare))
    assert found["predictions"].detail.endswith("inconsistent (66.67 %), first at number 1: 2.0 against 2.5")
    assert found["largest difference"].detail.startswith("the largest difference of two numbers is 1, at number 2")
    assert found["mean absolute error"].left.startswith("0.5 (")


@pytest.mark.parametrize(
    ("left", "right", "same", "words"),
    [
        (float("nan"), float("nan"), True, ""),
        (float("nan"), NAN, False, "NaN against NaN of other bits"),
        (0.0, -0.0, False, "0.0 against -0.0"),
        (float("nan"), 1.0, False, "nan against 1.0"),
        (float("inf"), float("inf"), True, ""),
    ],
)
def test_bits_decide(bare: Pair, compared: Compare, left: float, right: float, same: bool, words: str) -> None:
    for run, value in zip(bare, (left, right), strict=True):
        array = numpy.array([1, 0], "f4")
        array.view("u4")[1] = struct.unpack("<I", struct.pack("<f", value))[0]
        run.predictions("p", array, task="regression", form="values")
    comparison = compared(bare)
    assert comparison.identical is same
    assert words in category(comparison).children[0].children[0].detail if not same else True


def test_nan_metrics_are_equal_if_their_bits_are(bare: Pair, compared: Compare) -> None:
    for run in bare:
        run.predictions("p", [1.0], [2.0], task="regression", form="values", error=float32(float("nan")))
        run.add("evaluate", name="f1", values={"f1": float32(float("nan"))})
    assert compared(bare).identical


def test_numbers_of_predictions_that_differ(bare: Pair, compared: Compare) -> None:
    bare[0].predictions("p", [1, 2, 3])
    bare[1].predictions("p", [1, 2])
    found = leaves(compared(bare))
    assert found["number of predictions"].detail.endswith("differ in number: 3 against 2")
    assert found["predictions"].verdict is Verdict.IDENTICAL


def test_calls_that_only_one_run_made(bare: Pair, compared: Compare) -> None:
    for run, calls in zip(bare, (2, 1), strict=True):
        for _ in range(calls):
            run.predictions("p", [1])
    assert leaves(compared(bare))["calls"].detail == "p: 2 calls against 1 calls"


def test_label_sets_and_true_values_that_differ(bare: Pair, compared: Compare) -> None:
    bare[0].predictions("p", ["a", "b"], ["a", "b"], accuracy=[2, 2], classes=[["a", 1, 1], ["b", 1, 1]])
    bare[1].predictions("p", ["a", "b"], ["a", "c"], accuracy=[1, 2], classes=[["a", 1, 1], ["c", 0, 1]])
    comparison = compared(bare)
    (series,) = category(comparison).children
    details = [leaf.detail for leaf in series.leaves() if leaf.verdict.differs]
    assert details == [
        "1 of 2 true values of p differ, first at number 1: b against c",
        "1 true labels are known to the left run only: b",
        "1 true labels are known to the right run only: c",
        "accuracy 1 (2 of 2) against 0.5 (1 of 2)",
    ]


def test_no_predictions_in_one_of_them(bare: Pair, compared: Compare) -> None:
    for run in bare:
        run.losses(1.0)
    bare[0].predictions("p", [1])
    first = compared(bare).tree.first()
    assert first is not None
    assert (first.verdict, first.detail) == (Verdict.MISSING, "only the left run recorded it")


def test_another_type(bare: Pair, compared: Compare) -> None:
    bare[0].predictions("p", numpy.array([1.0, 2.0], "f4"))
    bare[1].predictions("p", numpy.array([1.0, 2.0], "f8"))
    found = leaves(compared(bare))["type"]
    expected = ("classification by labels, float32 []", "classification by labels, float64 []")
    assert (found.left, found.right) == expected


def test_texts_may_be_of_another_width(bare: Pair, compared: Compare) -> None:
    bare[0].predictions("p", [["cat", "dog"], ["cat", "cat"]])
    bare[1].predictions("p", [["cat", "mouse"], ["cat", "cat"]])
    found = leaves(compared(bare))
    assert list(found) == ["predictions"]
    assert found["predictions"].detail == (
        "1 of 4 predictions of p of process 0 are inconsistent (25 %), first at number 1: dog against mouse"
    )


def test_predictions_that_were_not_kept(bare: Pair, compared: Compare) -> None:
    for run, value in zip(bare, (1, 2), strict=True):
        line = run.predictions("p", [value])
        del line["predictions"]["file"], line["predictions"]["row"]
    assert "which of them differ is unknown" in leaves(compared(bare))["predictions of p of process 0"].detail


def test_what_else_differs_is_never_passed_over(bare: Pair, compared: Compare) -> None:
    for run, why in zip(bare, ("given", "inferred"), strict=True):
        run.predictions("p", [1], why=why)
    first = compared(bare).tree.first()
    assert first is not None
    assert "why given against why inferred" in first.detail


@pytest.mark.parametrize("form", ["labels", "scores", "probability", "multilabel", "values"])
def test_counts_are_those_of_numpy(bare: Pair, compared: Compare, form: str) -> None:
    generator = numpy.random.default_rng(5)
    left = generator.random((3000, 7)).astype("f4")
    right = numpy.where(generator.random(left.shape) < 0.03, generator.random(left.shape), left).astype("f4")
    for run, scores in zip(bare, (left, right), strict=True):
        run.predictions("p", scores, form=form, task="regression" if form == "values" else "classification")
    by_form = {
        "labels": left != right,
        "scores": left.argmax(1) != right.argmax(1),
        "probability": (left > 0.5) != (right > 0.5),
        "multilabel": ((left > 0.5) != (right > 0.5)).any(1),
        "values": (left != right).any(1),
    }
    figures = leaves(compared(bare))["predictions"].figures
    assert figures["inconsistent"] == by_form[form].sum()
    assert figures["compared"] == by_form[form].size
    rows = left != right if form in ("labels", "probability") else (left != right).any(1)
    assert figures["not_bitwise_equal"] == rows.sum()
    assert figures["largest_difference"] == numpy.abs(left.astype("f8") - right).max()


def test_narrow_types_are_decoded() -> None:
    assert decoder("bfloat16", 2)(bytes.fromhex("803f00c0")) == [1.0, -2.0]
    assert decoder("float16", 2)(numpy.array([1.5], "f2").tobytes()) == [1.5]
    assert decoder("U3", 12)(numpy.array(["ab", "\u00e9"], "<U3").tobytes()) == ["ab", "\u00e9"]
    assert decoder("float8_e4m3fn", 1)(b"\x07\xff") == ["07", "ff"]


def damaged(pair: Pair, damage: Callable[[Path], object]) -> str:
    """What is said of two equal runs of which the second was damaged."""
    for run in pair:
        run.predictions("p", numpy.arange(100), numpy.arange(100))
    paths = pair[0].write(), pair[1].write()
    damage(paths[1] / rundir.EVALUATION / f"{0:016x}-0.npy")
    with pytest.raises(RunDamaged, match="npy") as caught:
        compare_runs(*paths)
    assert str(paths[1]) in str(caught.value)
    return str(caught.value)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def write(offset: int, data: bytes) -> Callable[[Path], object]:
    def overwrite(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    return overwrite


SHAPE = b"{'descr': '<i8', 'fortran_order': False, 'shape': (%s,), }"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (os.unlink, "is missing"),
        (lambda path: os.truncate(path, 900), "is cut short"),
        (lambda path: os.truncate(path, 0), "is not what its line tells of"),
        (lambda path: os.truncate(path, 9), "is not what its line tells of"),
        (write(500, b"\1"), "does not fit its digest"),
        (write(6, b"\2"), "is not what its line tells of"),
        (write(10, SHAPE % (b"9" * 19)), "is cut short"),
        (write(10, SHAPE % b"100, 9000000000"), "is not what its line tells of"),
        (write(10, SHAPE.replace(b"<i8", b"|O8") % b"100"), "is not what its line tells of"),
        (write(10, SHAPE.replace(b"<i8", b"|V99999") % b"100"), "is not what its line tells of"),
        (link, "npy"),
        (fifo, "is not a regular file"),
    ],
)
def test_files_that_are_not_what_was_written(bare: Pair, damage: Callable[[Path], object], words: str) -> None:
    assert words in damaged(bare, damage)


@pytest.mark.parametrize(
    "change",
    [
        {"file": "../../../etc/passwd"},
        {"file": f"{0:016x}-0.npy\n"},
        {"row": 1 << 62},
        {"row": -1},
        {"shape": []},
        {"shape": [1 << 62, 1 << 62]},
        {"shape": [1 << 62]},
        {"shape": [3, -1]},
        {"digest": digest("x")},
        {"dtype": "float32"},
    ],
)
def test_lines_that_tell_of_something_else(bare: Pair, change: dict[str, Any]) -> None:
    for run in bare:
        run.predictions("p", [1, 2, 3])
    bare[1].lines[-1]["predictions"].update(change)
    paths = bare[0].write(), bare[1].write()
    with pytest.raises(RunDamaged):
        compare_runs(*paths)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10_000), st.binary(max_size=200), st.booleans())
def test_no_bytes_in_a_file_lead_to_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, position: int, junk: bytes, cut: bool
) -> None:
    from .runs import recording, replayed

    left = recording(tmp_path_factory.mktemp("runs") / "left")
    left.predictions("p", numpy.arange(20.0).reshape(10, 2), form="scores")
    right = replayed(left, left.path.with_name("right"))
    paths = left.write(), right.write()
    file = paths[1] / rundir.EVALUATION / f"{0:016x}-0.npy"
    data = file.read_bytes()
    position %= len(data)
    rest = b"" if cut else data[position + len(junk) :]
    file.write_bytes(data[:position] + junk + rest)
    try:
        assert compare_runs(*paths).identical
        assert file.read_bytes()[128:] == data[128:]  # only the padding of the header may be another
    except ReprokitError:
        pass
