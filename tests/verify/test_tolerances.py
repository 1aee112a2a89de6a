"""Tolerances: only when asked for, by quantity, and never called identical."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy
import pytest

from reprokit.core.difference import Difference, Verdict
from reprokit.core.tolerance import QUANTITIES, Tolerance, Tolerances, tolerances, ulps
from reprokit.model.outputs import OutputFile
from reprokit.run_files import rundir
from reprokit.verify.comparison import Comparison
from reprokit.verify.runs import compare
from tests.support import Reprokit

from .runs import Building, digest, float32, replayed, tensor, training

SCHEMA = json.loads((Path(__file__).parents[2] / "reprokit" / "schemas" / "verify.schema.json").read_text())
Judged = Callable[..., Comparison]


def after(number: float) -> float:
    """The next float32."""
    return float(struct.unpack("<f", struct.pack("<I", struct.unpack("<I", struct.pack("<f", number))[0] + 1))[0])


@pytest.fixture
def judged(pair: tuple[Building, Building]) -> Judged:
    """The comparison of both runs under tolerances given as kind, quantity and number."""

    def compared(*given: tuple[str, str | None, float]) -> Comparison:
        paths = [run.path if run.path.exists() else run.write() for run in pair]
        return compare(paths[0], paths[1], tolerances=tolerances(QUANTITIES, given))

    return compared


def line(building: Building, kind: str) -> dict[str, Any]:
    return next(one for one in building.lines if one["k"] == kind)


def leaf(comparison: Comparison, name: str) -> Difference:
    return next(one for one in comparison.tree.leaves() if one.name.startswith(name))


def test_a_loss_within_the_tolerance_is_tolerated_and_never_identical(
    pair: tuple[Building, Building], judged: Judged
) -> None:
    line(pair[1], "loss")["value"] = float32(after(0.75))
    assert judged().verdict is Verdict.DIFFERENT
    comparison = judged(("ulp", "loss", 1))
    assert comparison.verdict is Verdict.TOLERATED
    assert not comparison.identical
    found = leaf(comparison, "loss")
    assert (found.verdict, found.figures) == (Verdict.TOLERATED, {"values": 3, "differing": 1})
    assert "1 of 3 values" in found.detail
    assert "1 ULP, at step 0" in found.detail


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        (("relative", None, 1e-6), Verdict.TOLERATED),
        (("relative", "loss", 1e-8), Verdict.DIFFERENT),
        (("absolute", "loss", 1e-7), Verdict.TOLERATED),
        (("ulp", "metrics", 1), Verdict.DIFFERENT),
        (("absolute", "metrics", math.inf), Verdict.DIFFERENT),
    ],
)
def test_a_tolerance_is_for_the_quantity_that_it_names(
    pair: tuple[Building, Building], judged: Judged, given: tuple[str, str | None, float], verdict: Verdict
) -> None:
    line(pair[1], "loss")["value"] = float32(after(0.75))
    assert judged(given).verdict is verdict


def test_the_first_value_beyond_the_tolerance_is_named(pair: tuple[Building, Building], judged: Judged) -> None:
    losses = [one for one in pair[1].lines if one["k"] == "loss"]
    losses[0]["value"], losses[2]["value"] = float32(after(0.75)), float32(0.5)
    found = judged(("ulp", None, 2)).tree.first()
    assert found is not None
    assert "beyond the tolerance (2 ULP) first at step 2: 0.25" in found.detail
    assert "2 of 3 values" in found.detail


def test_histories_epochs_and_scores_are_judged_value_by_value(pair: tuple[Building, Building], judged: Judged) -> None:
    line(pair[1], "history")["values"] = {"loss": [float32(after(0.5)), float32(0.125)]}
    line(pair[1], "epoch")["values"] = {"loss": float32(after(0.5))}
    line(pair[1], "evaluate")["values"] = {"accuracy": float32(after(0.875))}
    assert judged(("ulp", "metrics", 1)).verdict is Verdict.DIFFERENT  # the scores are bit for bit
    comparison = judged(("ulp", "metrics", 1), ("ulp", "scores", 1))
    tolerated = [one.name for one in comparison.tree.leaves() if one.verdict is Verdict.TOLERATED]
    assert (comparison.verdict, len(tolerated)) == (Verdict.TOLERATED, 3)


def test_another_number_of_values_is_no_matter_of_tolerance(pair: tuple[Building, Building], judged: Judged) -> None:
    pair[1].losses(0.5, process="0/1")
    assert judged(("absolute", "loss", math.inf)).verdict is Verdict.DIFFERENT


def test_digests_cannot_be_judged_and_say_so(pair: tuple[Building, Building], judged: Judged) -> None:
    weights = [one for one in pair[1].lines if one["k"] == "weights"][-1]
    weights["digest"], weights["tensors"] = digest("other"), [tensor("fc.bias", "x"), tensor("fc.weight", "weight")]
    found = judged(("relative", None, 1e-3)).tree.first()
    assert found is not None
    assert "only digests are known, which no tolerance can judge" in found.detail
    assert judged(("absolute", "weights", math.inf)).verdict is Verdict.TOLERATED


def test_weights_of_another_shape_are_no_matter_of_tolerance(pair: tuple[Building, Building], judged: Judged) -> None:
    weights = [one for one in pair[1].lines if one["k"] == "weights"][-1]
    weights["tensors"] = [["fc.bias", "float32", [11, 64], digest("bias")], tensor("fc.weight", "weight")]
    assert judged(("absolute", "weights", math.inf)).verdict is Verdict.DIFFERENT


def test_predictions_within_and_beyond(tmp_path: Path) -> None:
    left = training(tmp_path / "left")
    values = numpy.array([1.0, 2.0, 3.0, math.nan], dtype="float32")
    facts = {"task": "regression", "form": "values", "error": float32(0.5)}
    left.predictions("regression", values, **facts)
    right = replayed(left, tmp_path / "right")
    right.lines.pop()
    right.numbers["0"] -= 1
    moved = values.copy()
    moved[1] = after(2.0)
    right.predictions("regression", moved, **{**facts, "error": float32(after(0.5))})
    paths = left.write(), right.write()

    def verdict(**kinds: float) -> Verdict:
        given = [("ulp", name, number) for name, number in kinds.items()]
        return compare(*paths, tolerances=tolerances(QUANTITIES, given)).verdict

    assert verdict(predictions=1, scores=1) is Verdict.TOLERATED
    assert verdict(predictions=1) is Verdict.DIFFERENT
    assert verdict(scores=1) is Verdict.DIFFERENT


@pytest.mark.parametrize(("tolerance", "verdict"), [(1.0, Verdict.DIFFERENT), (math.inf, Verdict.TOLERATED)])
def test_another_label_is_no_matter_of_tolerance(tmp_path: Path, tolerance: float, verdict: Verdict) -> None:
    left = training(tmp_path / "left")
    right = replayed(left, tmp_path / "right")
    facts = {"task": "classification", "form": "scores"}
    left.predictions("model", numpy.array([[0.25, 0.75], [0.5, 0.5000001]], dtype="float32"), **facts)
    right.predictions("model", numpy.array([[0.25, 0.75], [0.5000001, 0.5]], dtype="float32"), **facts)
    given = [("absolute", "predictions", tolerance)]
    found = compare(left.write(), right.write(), tolerances=tolerances(QUANTITIES, given))
    assert found.verdict is verdict
    leaf = next(leaf for leaf in found.tree.leaves() if leaf.name == "predictions")
    assert "1 of 2 predictions" in leaf.detail
    assert leaf.detail.endswith("1 are beyond atol 1, first at number 1: 1 against 0") == (tolerance == 1)


def test_numbers_in_the_files_that_the_run_wrote(pair: tuple[Building, Building], judged: Judged) -> None:
    for run, weight in zip(pair, (1.0, 1.0 + 1e-12), strict=True):
        path = run.path.parent / f"{run.path.name}.npy"
        numpy.save(path, numpy.array([weight, math.inf, -0.0 if weight > 1 else 0.0]))
        content = path.read_bytes()
        facts = {"size": len(content), "digest": f"sha256:{hashlib.sha256(content).hexdigest()}", "kept": 0}
        run.outputs.append(OutputFile(path="weights.npy", **facts))  # type: ignore[arg-type]
        kept = run.write() / rundir.KEPT
        kept.mkdir(exist_ok=True)
        (kept / "0").write_bytes(content)
    assert judged().verdict is Verdict.DIFFERENT
    assert judged(("relative", "outputs", 1e-9)).verdict is Verdict.TOLERATED
    assert judged(("relative", "outputs", 1e-15)).verdict is Verdict.DIFFERENT


@pytest.mark.parametrize(
    ("left", "right", "accepted"),
    [
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        (math.inf, 1e308, False),
        (0.0, -0.0, True),
        (1.0, 1.1, False),
        (1.1, 1.0, False),
        (1.0, 1.05, True),
    ],
)
def test_what_is_near(left: float, right: float, accepted: bool) -> None:
    near = Tolerance(absolute=0.01, relative=0.05)
    assert near.accepts(left, right, "float64") is accepted
    if math.isfinite(left) and math.isfinite(right):
        assert accepted is bool(numpy.isclose(left, right, rtol=0.05, atol=0.01))


def test_the_right_number_is_the_reference_as_in_numpy() -> None:
    near = Tolerance(relative=0.1)
    assert (near.accepts(9.0, 10.0), near.accepts(10.0, 9.0)) == (True, False)
    assert numpy.isclose(9.0, 10.0, rtol=0.1, atol=0)
    assert not numpy.isclose(10.0, 9.0, rtol=0.1, atol=0)


@pytest.mark.parametrize(
    ("left", "right", "dtype", "expected"),
    [
        (1.0, after(1.0), "float32", 1),
        (-0.0, 0.0, "float32", 0),
        (-1e-45, 1e-45, "float32", 2),
        (1.0, 1.0078125, "bfloat16", 1),
        (1.0, 1.0009765625, "float16", 1),
        (3, 5, "int64", 2),
        (1.0, 2.0, "float8_e4m3fn", math.inf),
    ],
)
def test_units_in_the_last_place(left: float, right: float, dtype: str, expected: float) -> None:
    assert ulps(left, right, dtype) == expected


def test_what_is_said_of_one_quantity_goes_before_what_is_said_of_all() -> None:
    found = tolerances(("a", "b"), [("relative", "a", 1e-3), ("relative", None, 1e-6), ("ulp", "b", 4)])
    assert found == Tolerances({"a": Tolerance(relative=1e-3), "b": Tolerance(relative=1e-6, ulp=4)})


@pytest.mark.parametrize(
    "option",
    ["--rtol=-1", "--rtol=nan", "--rtol=inf", "--atol=inf", "--atol=x", "--ulp=1.5", "--ulp=-2", "--rtol=speed=1",
     "--ulp=weights=", "--rtol==1"],
)  # fmt: skip
def test_what_is_no_tolerance_is_one_line(reprokit: Reprokit, option: str) -> None:
    for name in ("a", "b"):
        (reprokit.directory / name).mkdir()
    for command in ("verify", "diff"):
        done = reprokit.run(command, "a", "b", option)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
        assert "reprokit: usage: " in done.stderr


def test_a_tolerance_that_is_given_twice_is_refused(reprokit: Reprokit) -> None:
    for name in ("a", "b"):
        (reprokit.directory / name).mkdir()
    done = reprokit.run("verify", "a", "b", "--rtol", "loss=1", "--rtol", "loss=2")
    assert done.returncode == 2
    assert "given twice for loss" in done.stderr


def test_the_command_says_that_it_is_not_bitwise(pair: tuple[Building, Building], reprokit: Reprokit) -> None:
    line(pair[1], "loss")["value"] = float32(after(0.75))
    paths = [str(run.write()) for run in pair]
    done = reprokit.run("verify", *paths, "--rtol", "loss=1e-6")
    headline = done.stdout.splitlines()[0]
    assert done.returncode == 0
    assert headline.startswith(
        "tolerated: not bitwise identical; within the tolerance asked for; first 1 of 3 values of loss"
    )
    assert "tolerance: loss: rtol 1e-06" in done.stdout
    document = json.loads(reprokit.run("verify", *paths, "--json", "--rtol", "loss=1e-6").stdout)
    jsonschema.validate(document, SCHEMA)
    assert (document["verdict"], document["first_difference"]["verdict"]) == ("tolerated", "tolerated")
    assert reprokit.run("verify", *paths).returncode == 1


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("a.json", ('{"x": 1.0, "y": "same"}', '{"x": 1.0000001, "y": "same"}')),
        ("a.json", (json.dumps([float(n) for n in range(400)]), json.dumps([n + 1e-9 for n in range(400)]))),
        ("a.csv", ("epoch,loss\n0,0.5\n1,0.25\n", "epoch,loss\n0,0.5000001\n1,0.25\n")),
    ],
)
def test_diff_judges_numbers_in_texts(reprokit: Reprokit, name: str, texts: tuple[str, str]) -> None:
    for side, text in zip("ab", texts, strict=True):
        (reprokit.directory / side).mkdir()
        (reprokit.directory / side / name).write_text(text)
    assert reprokit.run("diff", f"a/{name}", f"b/{name}").returncode == 1
    done = reprokit.run("diff", f"a/{name}", f"b/{name}", "--rtol", "1e-6", "--atol", "1e-8")
    assert done.returncode == 0
    assert done.stdout.startswith("tolerated: not bitwise identical")
    assert reprokit.run("diff", f"a/{name}", f"b/{name}", "--rtol", "1e-12").returncode == 1


def test_diff_judges_tensors(reprokit: Reprokit) -> None:
    for name, last in (("a.npy", 3.0), ("b.npy", 3.0001)):
        numpy.save(reprokit.directory / name, numpy.array([1.0, 2.0, last]))
    assert reprokit.run("diff", "a.npy", "b.npy", "--rtol", "tensors=1e-3").returncode == 0
    assert reprokit.run("diff", "a.npy", "b.npy", "--rtol", "values=1e-3").returncode == 1
    done = reprokit.run("diff", "a.npy", "b.npy", "--rtol", "1e-6")
    assert done.returncode == 1
    assert "1 beyond rtol 1e-06" in done.stdout
