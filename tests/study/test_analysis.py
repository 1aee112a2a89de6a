"""What the results of a study come to: pairs, overheads, variances, and results that are not as one hopes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reprokit.core.errors import ReprokitError, StudyDamaged
from reprokit.study import tables
from reprokit.study.analysis import analyze, kind, source
from reprokit.study.description import Setup, Study
from reprokit.study.facts import FORMAT, Analysis
from reprokit.study.variance import SHUFFLED
from tests.support import schema_of, shipped_schema

from .results import Making, classified, making, pairs_of, regressed, row, series

UNTOUCHED, BARE = Setup(name="untouched", observe=False), Setup(name="bare")
SEEDED = Setup(name="seeded", seeds=(0, 1, 2, 5))
PATCHED = Setup(name="patched", patches=("auto",))
RECORDED = Setup(name="recorded", entropy="replayed")
BOTH = Setup(name="both", entropy="replayed", patches=("auto",))
SEEDED_AND_PATCHED = Setup(name="seeded-patched", seeds=(0,), patches=("auto",))


# ---- setups and sources ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setup", "machine", "is_a", "left"),
    [
        (UNTOUCHED, "", "untouched", "both"),
        (BARE, "", "bare", "both"),
        (BARE, "cpu", "bare", "software"),
        (SEEDED, "", "seeded", "hardware"),
        (SEEDED, "cpu", "seeded", "left by seeds"),
        (PATCHED, "", "patched", "software"),
        (Setup(name="s", patches=("seed=1",), controls="software"), "", "bare", "hardware"),
        (RECORDED, "", "recorded", "hardware"),
        (RECORDED, "cpu", "recorded", "ours"),
        (BOTH, "", "patched and recorded", "ours"),
        (SEEDED_AND_PATCHED, "", "seeded and patched", "left by seeds"),
    ],
)
def test_what_a_setup_is_and_what_it_leaves_to_vary(setup: Setup, machine: Any, is_a: str, left: str) -> None:
    assert kind(setup) == is_a
    assert source(Study(name="s", machine=machine, setup=(setup,)), setup) == left


def test_beside_a_recording_seeds_tell_what_they_do_not_reach() -> None:
    """An unseeded generator of the script's own is no hardware."""
    study = Study(name="s", setup=(BARE, SEEDED, RECORDED))
    assert [source(study, setup) for setup in study.setup] == ["both", "left by seeds", "hardware"]


# ---- pairs -----------------------------------------------------------------------------------------------------------


def test_pairs_are_counted_and_what_that_leaves_open_is_said(tmp_path: Path) -> None:
    study = making(tmp_path, BARE, BOTH)
    for pair in range(1, 9):
        study.pair("both", pair, True)
        study.pair("bare", pair, pair > 5 if pair < 8 else None, evaluation_equal=pair == 1)
    bare, both = (setup.pairs for setup in study.analysis().setups)
    assert (both.identical, both.different, both.not_compared, both.process_equal) == (8, 0, 0, 8)
    assert both.sentence == (
        "8 of 8 pairs are identical. With 95 % confidence up to 31 % of further pairs could still differ; "
        "to bring that below 5 % takes 59 pairs."
    )
    assert (bare.identical, bare.different, bare.not_compared) == (2, 5, 1)
    assert (bare.evaluation_equal, bare.evaluation_different, bare.process_not_compared) == (1, 7, 1)
    assert bare.sentence == (
        "5 of 7 pairs differ; 1 could not be compared. With 95 % confidence between 29 % and 96 % of further pairs "
        "would differ."
    )


def test_an_early_stop_is_told_and_compared_as_far_as_both_go(tmp_path: Path) -> None:
    study = making(tmp_path, BARE, BOTH, runs=2)
    for setup, part, *losses in (
        ("bare", "first", 3.0, 2.0, 1.0),
        ("bare", "second", 3.0, 2.5, 1.5, 1.0, 0.5),
        ("both", "first", 3.0, math.nan),
        ("both", "second", 3.0, math.nan, 1.0),
    ):
        study.run(setup, 1, part, series=[series(*losses)], epochs=len(losses))
    study.pair("bare", 1, False)
    study.pair("both", 1, False)
    found = study.analysis()
    bare, both = found.pairs
    assert (bare.lengths, bare.equal_until) == ((3, 5), 1)
    assert bare.notes == ("one run has 3 values, the other 5: compared as far as both go",)
    assert (both.lengths, both.equal_until) == ((2, 3), None)
    assert both.notes[0].endswith("as far as both go, and equal that far")
    loss = found.process[0]
    assert (loss.lengths, loss.at, loss.spread.largest) == ((3, 5), 3, 0.5)
    assert loss.notes == ("runs have from 3 to 5 epochs: compared as far as all go",)
    assert "of different length" in found.sentences.process


# ---- overhead --------------------------------------------------------------------------------------------------------


def steady(of: float, count: int = 16) -> list[float]:
    """Times near one another, none equal to those of another mean."""
    return [of + 0.01 * number for number in range(count)]


def test_patches_and_record_and_replay_are_told_apart(tmp_path: Path) -> None:
    study = making(tmp_path, UNTOUCHED, BARE, PATCHED, RECORDED, BOTH, SEEDED, SEEDED_AND_PATCHED)
    names = ("untouched", "bare", "patched", "recorded", "both", "seeded", "seeded-patched")
    for number, setup in enumerate(names):
        study.times(setup, steady(10 + number + number / 1000))
    found = study.analysis()
    assert [(one.effect, one.setup, one.base) for one in found.overhead if one.measure == "time"] == [
        ("watching alone", "bare", "untouched"),
        ("all of it", "patched", "untouched"),
        ("patches alone", "patched", "bare"),
        ("all of it", "recorded", "untouched"),
        ("record-and-replay alone", "recorded", "bare"),
        ("all of it", "both", "untouched"),
        ("record-and-replay with patches", "both", "bare"),
        ("record-and-replay beyond patches", "both", "patched"),
        ("all of it", "seeded", "untouched"),
        ("seeds alone", "seeded", "bare"),
        ("all of it", "seeded-patched", "untouched"),
        ("seeds with patches", "seeded-patched", "bare"),
    ]
    assert all(one.finding == "more" for one in found.overhead if one.measure != "storage")


def test_setups_of_other_commands_are_not_compared(tmp_path: Path) -> None:
    old = ("python3.7", "train.py")
    others = Setup(name="old", command=old), Setup(name="old-recorded", command=old, entropy="replayed")
    study = making(tmp_path, BARE, RECORDED, *others)
    for setup in ("bare", "recorded", "old", "old-recorded"):
        study.times(setup, steady(10))
    rows = {(one.setup, one.base) for one in study.analysis().overhead}
    assert rows == {("recorded", "bare"), ("old-recorded", "old")}


def test_a_cost_is_tested_sized_and_put_in_words(tmp_path: Path) -> None:
    study = making(tmp_path, BARE, RECORDED)
    study.times("bare", steady(10.0))
    study.times("recorded", steady(11.0), stored=4096, profile=1024)
    found = study.analysis()
    time = row(found, "recorded", "bare")
    assert (time.runs, time.delta, time.magnitude, time.finding) == ((16, 16), 1.0, "large", "more")
    assert time.p == pytest.approx(2 / math.comb(32, 16))
    assert time.p_adjusted == pytest.approx(3 * 2 / math.comb(32, 16))  # time, processor time and storage
    assert time.ratio == pytest.approx(1.0995, abs=1e-3)
    assert time.sentence == (
        "recorded took more time than bare: 11.1 s against 10.1 s (+9.93 %, between +9.54 % and +10.3 % with 95 % "
        "confidence); a run of recorded took more than a run of bare in 100 % of cases (large effect). "
        "Were there no difference, only about one of a million such studies would show any as clear."
    )
    storage = row(found, "recorded", "bare", "storage")
    assert (storage.ratio, storage.difference, storage.unit, storage.finding) == (None, 4096, "B", "more")
    assert storage.p_method == "exact, given the ties"
    recorded = found.setups[1]
    assert recorded.recording is not None
    assert recorded.replaying is not None
    assert (recorded.recording.count, recorded.replaying.count) == (8, 8)


def test_no_difference_is_not_called_equality_and_the_runs_that_would_be_needed_are_told(tmp_path: Path) -> None:
    study = making(tmp_path, BARE, RECORDED)
    study.times("bare", steady(10.0))
    study.times("recorded", [one + 0.031 for one in steady(10.0)])
    found = study.analysis()
    time = row(found, "recorded", "bare")
    assert time.finding == "no difference shown"
    assert time.p is not None
    assert 0.05 < time.p < 0.5
    assert time.needed is not None
    assert time.needed > 16
    assert "runs of each would be needed to find a difference as large as the one seen" in time.sentence
    assert "if there is one, it lies between" in time.sentence
    assert "that does not mean that there is none" in found.sentences.overhead


def test_too_few_runs_are_said_to_be_too_few(tmp_path: Path) -> None:
    study = making(tmp_path, BARE, RECORDED, runs=2)
    study.times("bare", [10.0, 10.1])
    study.times("recorded", [20.0, 20.1])
    time = row(study.analysis(), "recorded", "bare")
    assert (time.finding, time.ratio_interval, time.needed) == ("too few runs", None, 5)
    assert time.sentence == (
        "time: 2 and 2 runs are too few to tell recorded from bare; 5 of each are needed so that any outcome at all "
        "could tell the two apart."
    )


def test_times_of_runs_made_at_the_same_time_are_not_tested_and_storage_is(tmp_path: Path) -> None:
    study = making(tmp_path, BARE, RECORDED)
    study.times("bare", steady(10.0))
    study.times("recorded", steady(11.0), together=2, stored=5)
    found = study.analysis()
    time = row(found, "recorded", "bare")
    assert (time.finding, time.p, time.p_adjusted) == ("not comparable", None, None)
    assert row(found, "recorded", "bare", "storage").finding == "more"
    assert any("Up to 2 runs were made at the same time" in line for line in found.attention)


# ---- variance --------------------------------------------------------------------------------------------------------


def test_variance_between_any_two_and_within_pairs(tmp_path: Path) -> None:
    study = making(tmp_path, BARE, SEEDED, BOTH, runs=4)
    for setup, rights in (("bare", (90, 94, 91, 93)), ("seeded", (90, 91, 80, 80)), ("both", (90, 90, 80, 80))):
        for pair, part, right in pairs_of(*rights):
            labels = {"cat": (right - 50, 50), "dog": (50, 50)}
            labels_predicted = ["cat"] * right + ["dog"] * (100 - right)
            file = study.predicted(setup, pair, part, evaluate=labels_predicted)
            study.run(setup, pair, part, evaluations=[classified(right, 100, file, classes=labels)])
    found = study.analysis()
    bare, seeded, both = found.variance
    assert found.sentences.variance == (
        "Largest difference of accuracy between runs, by what is left to vary: software and hardware 4 percentage "
        "points (bare), hardware 1 percentage points (seeded), what record-and-replay leaves 0 percentage points "
        "(both). In both nothing varies that was compared."
    )
    assert (bare.source, bare.way, seeded.source, both.source) == ("both", "any two runs", "hardware", "ours")
    assert bare.accuracy is not None
    assert bare.accuracy.comparisons == 6
    assert bare.accuracy.largest == pytest.approx(0.04)
    assert bare.accuracy.deviation == pytest.approx(0.01826, abs=1e-5)
    assert bare.class_label == "cat"
    assert bare.class_largest == pytest.approx(0.08)
    assert bare.inconsistent is not None
    assert (bare.inconsistent.comparisons, bare.inconsistent.largest, bare.inconsistent.predictions) == (6, 4, 100)
    assert bare.inconsistent.mean == pytest.approx((4 + 1 + 3 + 3 + 1 + 2) / 6)
    assert bare.sentence == (
        "evaluate in bare, between any two runs: the accuracy differs by up to 4 percentage points, that of class cat "
        "by up to 8, up to 4 of 100 predictions (4 %) differ; one more run lies outside that range with a chance of up "
        "to 40 %."
    )
    assert seeded.accuracy is not None
    assert (seeded.way, seeded.accuracy.comparisons) == ("within pairs", 2)
    assert seeded.accuracy.largest == pytest.approx(0.01)
    assert seeded.accuracy.deviation == pytest.approx(0.005)
    assert (both.zero, seeded.zero, bare.zero) == (True, False, False)
    assert both.sentence == (
        "evaluate in both, between the two runs of a pair: nothing varies in 2 comparisons; with 95 % confidence no "
        "more than 78 % of further pairs would differ."
    )


def test_mean_absolute_error_with_nan_in_some_runs(tmp_path: Path) -> None:
    study = making(tmp_path, BARE, BOTH, runs=4)
    for pair, part, error in pairs_of(1.0, math.nan, 3.0, 2.0):
        study.run("bare", pair, part, evaluations=[regressed(error)])
    for pair, part, error in pairs_of(math.nan, math.nan, 2.0, 2.0):
        study.run("both", pair, part, evaluations=[regressed(error)])
    found = study.analysis()
    bare, both = found.variance
    assert bare.mae is not None
    assert (bare.mae.largest, bare.mae.left_out, bare.mae.comparisons, bare.zero) == (2.0, 1, 3, False)
    assert bare.notes == ("1 of 4 runs have a value that is not a finite number: left out",)
    assert both.zero
    assert found.runs[1].mae is None
    json.dumps(msgspec.to_builtins(found), allow_nan=False)


def test_a_metric_that_only_some_runs_have(tmp_path: Path) -> None:
    study = making(tmp_path, BARE, runs=4)
    for pair, part, number in pairs_of(1, 2, 3, 4):
        evaluations = [classified(9, 10)] if number < 4 else []
        study.run("bare", pair, part, evaluations=evaluations, series=[series(1.0)] if number > 2 else [])
    found = study.analysis()
    (evaluation,), (loss,) = found.variance, found.process
    assert (evaluation.runs, evaluation.missing) == (3, 1)
    assert evaluation.notes == ("1 of 4 finished runs do not have it",)
    assert (loss.runs, loss.missing) == (2, 2)
    assert [len(curve.lines) for curve in found.curves] == [2]


def test_evaluations_of_different_length(tmp_path: Path) -> None:
    study = making(tmp_path, BARE, runs=2)
    for part, labels in (("first", ["a", "b", "b"]), ("second", ["a", "c"])):
        file = study.predicted("bare", 1, part, evaluate=labels)
        study.run("bare", 1, part, evaluations=[classified(1, len(labels), file)])
    (found,) = study.analysis().variance
    assert found.inconsistent is not None
    assert (found.inconsistent.largest, found.inconsistent.predictions) == (1, 2)
    assert found.notes == ("runs have from 2 to 3 predictions: compared as far as both go",)
    assert not found.zero


def test_predictions_of_shuffled_samples_are_not_laid_side_by_side(tmp_path: Path) -> None:
    """As TensorFlow 1.14 validates: the same samples, in an order that varies from run to run."""
    study = making(tmp_path, BARE, SEEDED, runs=4)
    for setup in ("bare", "seeded"):
        for pair, part, truth in pairs_of("a", "b", "c", "d") if setup == "bare" else pairs_of("a", "b", "c", "c"):
            file = study.predicted(setup, pair, part, truth, evaluate=["cat", "dog"] if truth < "c" else ["dog", "cat"])
            study.run(setup, pair, part, evaluations=[classified(1, 2, file)])
    bare, seeded = study.analysis().variance
    assert (bare.inconsistent, bare.zero) == (None, False)
    assert bare.notes == seeded.notes == (SHUFFLED,)
    assert seeded.inconsistent is not None
    assert (seeded.inconsistent.comparisons, seeded.inconsistent.largest, seeded.zero) == (1, 0, False)


def test_half_a_pair_is_compared_with_nothing(tmp_path: Path) -> None:
    study = making(tmp_path, BARE, RECORDED, runs=2)
    for setup in ("bare", "recorded"):
        file = study.predicted(setup, 1, "first", evaluate=["a"])
        study.run(setup, 1, "first", evaluations=[classified(1, 1, file)], series=[series(1.0)])
    found = study.analysis()
    for variance in found.variance:
        assert (variance.zero, variance.inconsistent) == (False, None)
        assert variance.sentence.endswith("no two runs can be compared.")
    assert all(metric.sentence.endswith("no two values can be compared.") for metric in found.process)
    assert row(found, "recorded", "bare").finding == "too few runs"


@pytest.mark.parametrize(("bound", "value"), [("MAX_COMPARED", 40), ("MAX_TWO", 40), ("MAX_HELD", 30)])
def test_predictions_of_too_many_runs_are_compared_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(f"reprokit.study.variance.{bound}", value)
    study = making(tmp_path, BARE)
    for pair, part, number in pairs_of(*range(16)):
        file = study.predicted("bare", pair, part, evaluate=["a", str(number)])
        study.run("bare", pair, part, evaluations=[classified(1, 2, file)])
    inconsistent = study.analysis().variance[0].inconsistent
    assert inconsistent is not None
    assert inconsistent.sampled
    assert 0 < inconsistent.comparisons <= 60
    assert (inconsistent.largest, inconsistent.predictions) == (1, 2)


# ---- studies that went wrong -----------------------------------------------------------------------------------------


def test_a_setup_of_which_no_run_finished(tmp_path: Path) -> None:
    study = making(tmp_path, BARE, RECORDED)
    study.times("bare", steady(10))
    study.times("recorded", [0.0] * 16, outcome="failed", ended="exit status 3")
    for pair in range(1, 9):
        study.pair("recorded", pair, None)
    found = study.analysis()
    assert "No run of recorded finished (16 failed): nothing is known about it." in found.attention
    assert found.setups[1].pairs.sentence == "No pair could be compared (8 were made)."
    assert row(found, "recorded", "bare").finding == "too few runs"
    assert "so there is nothing to say" in row(found, "recorded", "bare").sentence
    check(found_in(study))


def test_a_study_that_has_not_begun(tmp_path: Path) -> None:
    found = making(tmp_path, BARE, RECORDED).analysis()
    assert found.attention == ("The study lacks runs: 0 of 32 were made.",)
    assert found.sentences.pairs.startswith("No pair could be compared")
    assert found.curves == ()


def test_what_does_not_belong_to_the_study_is_left_out(tmp_path: Path) -> None:
    study = making(tmp_path, BARE, runs=2)
    study.run("bare", 1, "first")
    study.run("bare", 7, "first")
    study.run("other", 1, "first")
    study.pair("other", 1, True)
    found = study.analysis()
    assert [(one.setup, one.pair) for one in found.runs] == [("bare", 1)]
    assert found.pairs == ()


@pytest.mark.parametrize(
    "name",
    ["../secret.json", "predictions/../../x.json", "/etc/passwd", "predictions/.x.json", "predictions/link.json"],
)
def test_predictions_are_read_from_the_studys_own_files_alone(tmp_path: Path, name: str) -> None:
    study = making(tmp_path, BARE, runs=2)
    real = study.predicted("bare", 9, "first", evaluate=["a"])
    (tmp_path / "predictions" / "link.json").symlink_to(tmp_path / real)
    for part in ("first", "second"):
        study.run("bare", 1, part, evaluations=[classified(1, 1, name)])
    assert study.analysis().variance[0].inconsistent is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"evaluations":{"evaluate":[["a"],[1]]}}',
        b'{"evaluations":{"evaluate":{"labels":["a"],"predicted":[1]}}}',
        b'{"evaluations":{"evaluate":{"labels":["a"],"predicted":[-1]}}}',
        b'{"format":2,"evaluations":{}}',
        b"[" * 100_000,
    ],
)
def test_damaged_predictions_are_no_predictions(tmp_path: Path, content: bytes) -> None:
    study = making(tmp_path, BARE, runs=2)
    for part in ("first", "second"):
        file = study.predicted("bare", 1, part, evaluate=["a"])
        (tmp_path / file).write_bytes(content)
        study.run("bare", 1, part, evaluations=[classified(1, 1, file)])
    assert study.analysis().variance[0].inconsistent is None


def test_damaged_lines_are_refused_with_one_line(tmp_path: Path) -> None:
    study = making(tmp_path, BARE)
    study.run("bare", 1, "first")
    study.write()
    (tmp_path / "results.jsonl").write_text('{"setup": 1}\n')
    with pytest.raises(ReprokitError) as caught:
        analyze(tmp_path)
    assert "\n" not in str(caught.value)


# ---- presenters ------------------------------------------------------------------------------------------------------


def hostile(path: Path) -> Making:
    """Texts that mean something to terminals, spreadsheets and markup, and numbers beyond all bounds."""
    study = making(path, BARE, RECORDED, runs=4)
    evil = "\x1b]0;x\x07[bold]=cmd()\u202e<script>\n"
    for setup in ("bare", "recorded"):
        for pair, part, number in pairs_of(1e308, -1e308, math.inf, math.nan):
            values = series(number, None, 1.0, name=evil), series(*[float(n % 97) for n in range(5000)], name="=long")
            facts = {
                "series": list(values),
                "evaluations": [regressed(number, name=evil * 99), classified(1, 2, evil, name=evil)],
            }
            study.run(setup, pair, part, number, **facts, ended=evil * 99, host=evil, memory=10**18, notes=[evil] * 99)
    study.run("bare", 2, "second", 1.0, outcome="failed", ended=evil)
    study.pair("bare", 1, False, words=evil, categories=[evil] * 99, mae_difference=math.inf)
    return study


def found_in(study: Making) -> dict[str, Any]:
    return json.loads(json.dumps(msgspec.to_builtins(analyze(study.path)), allow_nan=False))  # type: ignore[no-any-return]


def check(content: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(shipped_schema("study-1")).validate(content)


def test_the_schema_is_the_one_that_is_shipped_and_holds() -> None:
    title = "What the runs of a study say, as reprokit study show --json prints it"
    assert shipped_schema("study-1") == schema_of(Analysis, f"urn:reprokit:study:{FORMAT}", title=title)
    jsonschema.Draft202012Validator.check_schema(shipped_schema("study-1"))
    with pytest.raises(jsonschema.ValidationError):
        check({"format": 1})


def test_hostile_results_stay_within_bounds_and_fit_the_schema(tmp_path: Path) -> None:
    hostile(tmp_path).write()
    content = found_in(Making(tmp_path, Study(name="s")))
    check(content)
    assert max(len(line["points"]) for curve in content["curves"] for line in curve["lines"]) < 500
    long = next(curve for curve in content["curves"] if curve["metric"] == "=long")
    assert {point[1] for line in long["lines"] for point in line["points"]} >= {0.0, 96.0}
    assert len(json.dumps(content)) < 500_000


texts_of_numbers = st.sampled_from(["nan", "inf", "-inf"])
numbers = (
    st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0, 1, -0.0, 1e308, -1e308]) | texts_of_numbers
)
counts = st.integers(0, 3) | st.integers(0, 2**64 - 1)


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """A line of results.jsonl that fits its types, whatever it says."""
    evaluation = st.fixed_dictionaries(
        {"name": st.sampled_from("ab"), "task": st.sampled_from(["classification", "regression"]), "count": counts},
        optional={
            "accuracy": st.none() | numbers,
            "mae": st.none() | numbers,
            "labels": st.lists(st.fixed_dictionaries({"label": st.text(), "count": counts, "correct": counts})),
            "predictions": st.text(),
        },
    )
    metric = {
        "name": st.sampled_from("ab"),
        "values": st.lists(st.none() | numbers),
        "by": st.sampled_from(["epoch", "step"]),
    }
    result = {
        "setup": st.sampled_from(["bare", "recorded"]),
        "pair": st.integers(1, 3),
        "part": st.sampled_from(["first", "second"]),
        "mode": st.just("observed"),
        "outcome": st.sampled_from(["finished", "finished", "failed"]),
        "seconds": numbers,
        "processor": numbers,
    }
    more = {
        "memory": st.none() | counts,
        "stored": counts,
        "evaluations": st.lists(evaluation, max_size=3),
        "series": st.lists(st.fixed_dictionaries(metric), max_size=3),
        "together": st.integers(1, 2**63),
        "ended": st.text(),
        "notes": st.lists(st.text(), max_size=2),
    }
    return json.dumps(draw(st.fixed_dictionaries(result, optional=more))).encode()


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(lines(), max_size=8))
def test_no_result_is_too_strange(written: list[bytes]) -> None:
    with TemporaryDirectory() as directory:
        study = making(Path(directory), BARE, RECORDED, runs=6)
        study.write()
        (study.path / "results.jsonl").write_bytes(b"".join(line + b"\n" for line in written))
        try:
            analysis = analyze(study.path)
        except StudyDamaged:
            return
        check(json.loads(json.dumps(msgspec.to_builtins(analysis), allow_nan=False)))
        tables.csv_text(analysis)


def test_tables_and_csv_print_nothing_that_anything_acts_upon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    analysis = hostile(tmp_path).analysis()
    tables.print_analysis(analysis)
    text = tables.csv_text(analysis)
    for printed in (capsys.readouterr().out, text):
        assert not {"\x1b", "\x07", "\u202e"} & set(printed)
    cells = [line.split(",") for line in text.splitlines()]
    assert {cell[0] for cell in cells} == {"table", "setups", "overhead", "variance", "process", "pairs", "runs"}
    assert not any(cell.startswith("=") for line in cells for cell in line)


def test_the_table_says_what_it_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = making(tmp_path, BARE, RECORDED)
    study.times("bare", steady(10.0), evaluations=[classified(9, 10)])
    study.times("recorded", steady(11.0), evaluations=[classified(9, 10)])
    for pair in range(1, 9):
        study.pair("bare", pair, False)
        study.pair("recorded", pair, True)
    tables.print_analysis(study.analysis())
    printed = capsys.readouterr().out
    for words in (
        "Study s: 32 of 32 runs, 2 setups",
        "Every pair of recorded was identical; with 95 % confidence no more than 31 % of further pairs",
        "Pairs of bare differed.",
        "Runs are shown to take more time in recorded than in bare (about +9.93 %).",
        "In bare and recorded nothing varies that was compared.",
        "+1.000 large",
    ):
        assert words in printed
