"""What is kept of the predictions of a run: labels, scores and classes, as its lines and files have them."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from reprokit.core.errors import CannotWriteRun
from reprokit.run_files.rundir import RunDirectory
from reprokit.study import predictions
from reprokit.study.predictions import KeptPredictions, keep, read
from reprokit.study.results import Evaluation, Label
from tests.verify.runs import Building, float32, recording

NAME = "predictions/s-01-first.json"


@pytest.fixture
def run(tmp_path: Path) -> Building:
    made = recording(tmp_path / "run")
    made.start()
    return made


def kept(run: Building) -> tuple[list[Evaluation], dict[str, KeptPredictions]]:
    study = run.path.parent
    return keep(RunDirectory(run.write()), study / NAME, NAME), read(study, NAME)


def labels(one: KeptPredictions) -> list[str]:
    return [one.labels[position] for position in one.predicted]


def test_labels_with_accuracy_and_classes(run: Building) -> None:
    classes = [["1", 1, 2], ["3", 1, 1]]
    run.predictions("evaluate", [3, 1, 2], [3, 1, 1], accuracy=[2, 3], classes=classes)
    (found,), files = kept(run)
    assert found == Evaluation(
        name="evaluate",
        task="classification",
        count=3,
        accuracy=2 / 3,
        labels=[Label(label="1", count=2, correct=1), Label(label="3", count=1, correct=1)],
        predictions=NAME,
    )
    assert labels(files["evaluate"]) == ["3", "1", "2"]


def test_scores_become_labels(run: Building) -> None:
    scores = numpy.array([[0.75, 0.25], [0.1, 0.9], [0.6, 0.4]], "f4")
    run.predictions("p", scores, form="scores", labels=["cat", "dog"])
    run.predictions("q", numpy.array([0.1, 0.9]), form="probability")
    (p, q), files = kept(run)
    assert (p.count, q.count, p.accuracy) == (3, 2, None)
    assert labels(files["p"]) == ["cat", "dog", "cat"]
    assert labels(files["q"]) == ["0", "1"]


def test_values_of_a_regression_stand_by_their_bits(run: Building) -> None:
    numbers = {"task": "regression", "form": "values"}
    run.predictions("p", [1.0, -0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0], error=float32(0.5), **numbers)
    run.predictions("wide", numpy.arange(6.0).reshape(2, 3), **numbers)
    (found, wide), files = kept(run)
    assert (found.task, found.mae, found.accuracy) == ("regression", 0.5, None)
    assert files["p"].predicted == [0, 1, 2, 0]
    assert (wide.count, files["wide"].predicted) == (2, [0, 1])


def test_an_error_that_is_no_number(run: Building) -> None:
    run.predictions("p", [1.0], [1.0], error=float32(float("nan")), task="regression", form="values")
    (found,), _ = kept(run)
    assert found.mae is not None
    assert found.mae != found.mae


def test_the_last_evaluation_of_a_name_counts_and_all_folds_of_a_cross_validation(run: Building) -> None:
    for number in (1, 2):
        run.predictions("validation", [number], [2], accuracy=[number - 1, 1], classes=[["2", number - 1, 1]])
        run.predictions("C.cross-validation", [number, 2], [2, 2], accuracy=[number, 2], classes=[["2", number, 2]])
    (validation, folds), files = kept(run)
    assert (validation.accuracy, labels(files["validation"])) == (1.0, ["2"])
    assert (folds.accuracy, folds.count, folds.labels) == (0.75, 4, [Label(label="2", count=4, correct=3)])
    assert labels(files["C.cross-validation"]) == ["1", "2", "2", "2"]


def test_samples_in_another_order_are_told_apart(run: Building) -> None:
    for name, truth in (("a", [1, 2]), ("b", [1, 2]), ("c", [2, 1])):
        run.predictions(name, [1, 1], truth)
    run.predictions("d", [1, 1])
    _, files = kept(run)
    assert files["a"].truth == files["b"].truth != files["c"].truth
    assert files["d"].truth == ""


def test_processes_of_one_name_are_told_apart(run: Building) -> None:
    for process in ("0", "0/1"):
        line = run.predictions("p", [1])
        line["p"] = process
        line["n"] = 1 if process == "0" else 0
    found, files = kept(run)
    assert [one.name for one in found] == ["p", "p of process 0/1"] == list(files)


def test_what_no_run_kept_is_not_written(run: Building) -> None:
    line = run.predictions("p", [1, 2])
    del line["predictions"]["file"]
    (found,), files = kept(run)
    assert (found.count, found.predictions, files) == (2, "", {})
    assert not (run.path.parent / NAME).exists()


def test_predictions_are_kept_as_far_as_there_is_room(run: Building, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "MAX_PREDICTIONS", 3)
    for name in ("p", "q", "r"):
        run.predictions(name, [1, 2])
    found, files = kept(run)
    assert [len(one.predicted) for one in files.values()] == [2, 1]
    assert [one.predictions for one in found] == [NAME, NAME, ""]


def test_texts_that_json_cannot_hold(run: Building) -> None:
    run.predictions("\ud800", [1], labels=["a"], accuracy=[1, 1], classes=[["\udfff", 1, 1]])
    (found,), files = kept(run)
    assert (found.name, found.labels[0].label) == ("\\ud800", "\\udfff")
    assert list(files) == ["\\ud800"]


def test_a_file_that_cannot_be_written_is_told_of_in_one_line(run: Building) -> None:
    run.predictions("p", [1])
    (run.path.parent / "predictions").write_text("in the way")
    with pytest.raises(CannotWriteRun, match="make room"):
        kept(run)
