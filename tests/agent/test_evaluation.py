"""What models predict, collected without a change to the script, and what two trainings do not agree on."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pytest

from reprokit.core.difference import Difference, Verdict
from reprokit.run_files.rundir import RUN, write_json
from reprokit.verify.runs import compare
from tests.agent.training import Line, Outcome, Training
from tests.interpreters import tf114_python
from tests.support import training_text
from tests.verify.runs import recording, rows_digest


@dataclass(frozen=True)
class Trained:
    """Trainings with the seeds 0, 1 and where it is asked for 0 again, and what their scripts kept."""

    runs: list[Path]
    outcomes: list[Outcome]
    results: list[dict[str, Any]]

    @property
    def series(self) -> list[str]:
        return [name[: -len(" pred")] for name in self.results[0] if name.endswith(" pred")]

    def difference(self, left: int, right: int, name: str) -> Difference:
        """What verify says of a series."""
        tree = compare(self.runs[left], self.runs[right]).tree
        category = next(child for child in tree.children if child.name == "evaluation metrics")
        return next(child for child in category.children if child.name == f"predictions of {name} of process 0")


def trained(
    directory: Path, case: str, *seeds: int, python: str = sys.executable, backend: str = "tensorflow"
) -> Trained:
    outcomes, runs, results = [], [], []
    for number, seed in enumerate(seeds):
        training = Training(directory / str(number), python=python)
        training.directory.mkdir()
        outcome = training.run(training_text("evaluated.py", case), str(seed), KERAS_BACKEND=backend)
        assert outcome.status == 0, outcome.errors
        assert not outcome.of("warning")
        write_json(training.run_directory / RUN, recording(training.run_directory).run)
        with numpy.load(training.directory / "results.npz") as file:
            results.append(dict(file))
        outcomes.append(outcome)
        runs.append(training.run_directory)
    return Trained(runs, outcomes, results)


def kept(run: Path, column: Line) -> Any:
    """The rows that a line tells of, as NumPy reads them."""
    path = run / "evaluation" / column["file"]
    assert path.stat().st_mode & 0o777 == 0o600
    return numpy.load(path)[column["row"] : column["row"] + column["shape"][0]]


def check_lines(found: Trained, number: int, name: str) -> None:
    """What the agent wrote is what the script had, and its figures are those of scikit-learn."""
    from sklearn import metrics

    line = found.outcomes[number].of("evaluation", name=name)[0]
    pred, truth = (found.results[number][f"{name} {side}"] for side in ("pred", "truth"))
    for side, array in (("predictions", pred), ("truth", truth)):
        told = kept(found.runs[number], line[side])
        assert numpy.array_equal(told, array)
        assert line[side]["digest"] == rows_digest(told)
    if line["task"] == "regression":
        differences = [abs(float(a) - float(b)) for a, b in zip(truth, pred, strict=True)]
        assert line["error"]["decimal"] == float(sum(map(Fraction, differences)) / len(differences))
        assert line["error"]["decimal"] == pytest.approx(metrics.mean_absolute_error(truth, pred), rel=1e-6)
        return
    labels = as_labels(pred)
    matrix = metrics.confusion_matrix(truth, labels)
    assert line["accuracy"] == [matrix.trace(), len(truth)]
    told = [(float(label), right, total) for label, right, total in line["classes"]]
    assert told == [(float(row), matrix[row, row], matrix[row].sum()) for row in range(len(matrix))]


def as_labels(pred: Any) -> Any:
    return pred.argmax(1) if pred.ndim == 2 else pred


def check_difference(found: Trained, name: str) -> None:
    """Seed 0 against seed 1: counted as NumPy and scikit-learn count."""
    from sklearn import metrics

    left, right, truth = (
        found.results[run][f"{name} {side}"] for run, side in ((0, "pred"), (1, "pred"), (0, "truth"))
    )
    leaves = {leaf.name: leaf for leaf in found.difference(0, 1, name).leaves()}
    figures = leaves["predictions"].figures
    assert figures["compared"] == len(truth)
    bits = (left != right).reshape(len(truth), -1).any(1)
    assert figures["not_bitwise_equal"] == bits.sum()
    if "mean absolute error" in leaves:
        assert figures["inconsistent"] == bits.sum()
        assert figures["largest_difference"] == numpy.abs(left.astype("f8") - right).max()
        return
    assert figures["inconsistent"] == (as_labels(left) != as_labels(right)).sum() > 0
    recalls = [metrics.recall_score(truth, as_labels(pred), average=None) for pred in (left, right)]
    worst = leaves["per-class accuracy"].figures
    gap = abs(Fraction(*worst["left"]) - Fraction(*worst["right"]))
    assert float(gap) == pytest.approx(numpy.abs(recalls[0] - recalls[1]).max())


def check(found: Trained) -> None:
    for name in found.series:
        for number in (0, 1):
            check_lines(found, number, name)
        check_difference(found, name)
        if len(found.runs) > 2:
            same = found.difference(0, 2, name)
            assert same.verdict is Verdict.IDENTICAL
            assert same.left.endswith("exactly equal")


@pytest.mark.slow
def test_scikit_learn(tmp_path: Path) -> None:
    found = trained(tmp_path, "scikit_learn", 0, 1, 0)
    check(found)
    assert len(found.series) == 3
    names = [line["name"] for line in found.outcomes[0].of("evaluation")]
    assert names.count("classification metrics") == 1  # two metrics of the same predictions
    assert not any("Tree" in name for name in names)
    values = {line["name"]: line["values"] for line in found.outcomes[0].of("evaluate")}
    assert set(values) == {
        "accuracy_score",
        "confusion_matrix",
        "mean_absolute_error",
        "RandomForestClassifier.score",
    }


@pytest.mark.slow
@pytest.mark.xgboost
def test_xgboost_and_lightgbm(tmp_path: Path) -> None:
    found = trained(tmp_path, "boosted", 0, 1)
    check(found)
    names = [line["name"] for line in found.outcomes[0].of("evaluation")]
    assert names == ["xgboost.Booster.predict", "XGBClassifier.predict", "XGBClassifier.score", *names[3:]]
    # and no booster's inside
    assert names[3:] == ["XGBRegressor.predict", "XGBRegressor.score", "lightgbm.Booster.predict"]
    assert found.outcomes[0].of("evaluation")[-1]["form"] == "scores"


@pytest.mark.torch
@pytest.mark.slow
def test_torch(tmp_path: Path) -> None:
    from sklearn import metrics

    found = trained(tmp_path, "torch_metrics", 0, 1)
    check(found)
    outcome = found.outcomes[0]
    assert outcome.one("evaluation", name="MulticlassAccuracy#0")["calls"] == 4
    told = outcome.one("evaluate", name="MulticlassAccuracy#0")["values"]["MulticlassAccuracy"]["decimal"]
    labels = as_labels(found.results[0]["MulticlassAccuracy#0 pred"])
    truth = found.results[0]["MulticlassAccuracy#0 truth"]
    assert told == pytest.approx(metrics.balanced_accuracy_score(truth, labels), rel=1e-6)


@pytest.mark.tensorflow
@pytest.mark.extended
def test_keras(tmp_path: Path) -> None:
    check(trained(tmp_path, "keras_evaluate", 0, 1, backend="torch"))  # faster to import


@pytest.mark.slow
@pytest.mark.tf114
def test_keras_of_tensorflow_1(tmp_path: Path) -> None:
    check(trained(tmp_path, "keras_evaluate", 0, 1, python=tf114_python() or ""))


# What is predicted in every form, by the task that it is taken for

FORMS = [
    ("['a', 'b']", "['a', 'c']", "classification", "labels", [1, 2]),
    ("[1, 2]", "[1, 2]", "classification", "labels", [2, 2]),
    ("[True, False]", "[1, 1]", "classification", "labels", [1, 2]),
    ("[1.0, 2.0]", "[1, 2]", "classification", "labels", [2, 2]),
    ("[0.25, 0.75]", "[0, 1]", "classification", "probability", [2, 2]),
    ("[0.25, 0.75]", "[0.0, 1.0]", "classification", "probability", [2, 2]),
    ("[[0.25], [0.75]]", "[1, 1]", "classification", "probability", [1, 2]),
    ("[[0.5, 0.5], [0.1, 0.9]]", "[0, 1]", "classification", "scores", [2, 2]),
    ("[[0.5, 0.5], [0.1, float('nan')]]", "[[0, 1], [0, 1]]", "classification", "scores", [1, 2]),
    ("[[1, 0, 1], [0, 0, 1]]", "[[1, 0, 1], [0, 1, 1]]", "classification", "multilabel", [1, 2]),
    ("[[0.9, 0.8], [0.1, 0.2]]", "[[1, 1], [0, 1]]", "classification", "multilabel", [1, 2]),
    ("[1.5, 2.0]", "[1.25, 2.0]", "regression", "values", 0.125),
    ("[3, 4]", "[2.5, 4.0]", "regression", "values", 0.25),
    ("[1.5, float('inf')]", "[1.0, 2.0]", "regression", "values", float("inf")),
    ("[[1.5, 2.5], [0.0, 1.0]]", "[[1.0, 2.0], [0.0, 1.5]]", "regression", "values", 0.375),
]


def test_tasks_are_inferred(training: Training) -> None:
    calls = [f"reprokit.log_predictions(numpy.array({true}), numpy.array({pred}))" for pred, true, *_ in FORMS]
    check_forms(training.run("\n".join(["import numpy, reprokit", *calls])))


def test_tasks_are_inferred_without_numpy(any_training: Training) -> None:
    calls = [f"reprokit.log_predictions({true}, {pred})" for pred, true, *_ in FORMS]
    check_forms(any_training.run("\n".join(["import reprokit", *calls])))


def check_forms(outcome: Outcome) -> None:
    assert (outcome.status, outcome.errors, outcome.of("warning")) == (0, "", [])
    lines = outcome.of("evaluation", name="log_predictions")
    for line, (pred, _, task, form, score) in zip(lines, FORMS, strict=True):
        assert (line["task"], line["form"], line["why"]) == (task, form, "inferred"), pred
        if task == "classification":
            assert line["accuracy"] == score, pred
        else:
            bits = bytes.fromhex(line["error"]["bits"])
            assert numpy.frombuffer(bits, ">f8")[0] == score, pred


def test_the_task_can_be_given(training: Training) -> None:
    outcome = training.run(
        "import reprokit\n"
        "reprokit.log_predictions([1, 0], [0.75, 0.25], task='regression')\n"
        "reprokit.log_predictions([1, 0], [0.75, 0.25], task='ranking')\n"
    )
    first, second = outcome.of("evaluation")
    assert (first["task"], first["why"], first["error"]["decimal"]) == ("regression", "given", 0.25)
    assert (second["task"], second["why"]) == ("classification", "inferred")
    assert "'ranking' is none of classification, regression" in outcome.one("warning")["text"]


def test_what_cannot_be_scored_is_kept_and_said(training: Training) -> None:
    outcome = training.run(
        "import reprokit\n"
        "reprokit.log_predictions([1, 2, 3], ['a', 'b'])\n"
        "reprokit.log_predictions(['x', 'y'], [[0.5, 0.25], [0.5, 0.25]])\n"
        "reprokit.log_predictions([], [])\n"
        "reprokit.log_predictions(None, [[1, 2], [3]])\n"
        "print('trained')\n"
    )
    assert outcome.output == "trained\n"
    first, second, empty = outcome.of("evaluation")
    assert first["problem"] == "2 predictions, 3 true values"
    assert second["problem"] == "nothing says which column of scores is which label"
    assert empty["predictions"]["shape"] == [0]
    lengths, columns, shape = (line["text"] for line in outcome.of("warning"))
    assert lengths == "log_predictions: neither accuracy nor error: 2 predictions, 3 true values"
    assert "nothing says which column" in columns
    assert "rows of different lengths" in shape


KINDS = {
    "numpy.array(['cat', 'mouse'])": "U5",
    "numpy.array(['cat', 'mouse'], dtype=object)": "U5",
    "numpy.array([1, 2], dtype=object)": "int64",
    "numpy.array([1, None], dtype=object)": "U4",
    "numpy.array([1.5, 2.5], dtype='>f4')": "float32",
    "numpy.arange(6).reshape(2, 3)[:, ::-1]": "int64",
    "numpy.array([1, 2], dtype='M8[s]')": "datetime64[s]",
    "numpy.array([1 + 2j])": "complex128",
    "numpy.float64(2.5)": "float64",
    "torch.tensor([1.5, -2.0], dtype=torch.bfloat16, requires_grad=True)": "bfloat16",
    "torch.tensor([True, False])": "bool",
    "scipy.sparse.csr_matrix([[0, 1], [1, 0]])": "int64",
}


@pytest.mark.slow
@pytest.mark.torch
def test_values_of_any_library(training: Training) -> None:
    calls = "\n".join(f"reprokit.log_predictions(None, {text})" for text in KINDS)
    outcome = training.run(f"import numpy, reprokit, scipy.sparse, torch\n{calls}")
    assert (outcome.status, outcome.of("warning")) == (0, []), outcome.errors
    lines = outcome.of("evaluation")
    assert [line["predictions"]["dtype"] for line in lines] == list(KINDS.values())
    for line in lines:
        kept(training.run_directory, line["predictions"])
    reversed_rows = lines[5]["predictions"]
    assert kept(training.run_directory, reversed_rows).tolist() == [[2, 1, 0], [5, 4, 3]]


def test_the_error_is_exact_however_the_predictions_come(training: Training) -> None:
    outcome = training.run(training_text("logged_predictions.py", "exact"))
    first, second = [line["error"] for line in outcome.of("evaluation")]
    true, pred = [1e308, 1e-308, 5e-324, 3.0, 0.1, 1e16], [0.0, 0.0, 0.0, 3.0, 0.2, 1.5]
    exact = sum(Fraction(abs(a - b)) for a, b in zip(true, pred, strict=True)) / 6
    assert first == second
    assert first["decimal"] == float(exact)


# Bounds, and what must not happen


def test_beyond_the_bound_of_lines_one_line_tells_of_the_rest(training: Training) -> None:
    outcome = training.run(
        "import numpy, reprokit\n"
        "for number in range(1300):\n"
        "    reprokit.log_predictions([number % 3], numpy.array([number % 2]))\n"
    )
    *lines, rest = outcome.of("evaluation")
    assert (len(lines), rest["calls"]) == (1000, 300)
    assert rest["accuracy"] == [100, 300]
    expected = [number % 2 for number in range(1000, 1300)]
    assert kept(training.run_directory, rest["predictions"]).tolist() == expected


def test_beyond_the_bound_of_bytes_only_digests_are_left(training: Training) -> None:
    outcome = training.run(training_text("logged_predictions.py", "bounded"))
    assert "predictions were digested and not kept" in outcome.one("warning")["text"]
    first, second, third = [line["predictions"] for line in outcome.of("evaluation")]
    assert "file" in first
    assert "file" not in second
    assert "file" not in third
    assert second["digest"] == rows_digest(numpy.full(300, 1))
    assert sum(path.stat().st_size for path in (training.run_directory / "evaluation").iterdir()) < 4000


def test_a_forked_child_has_files_of_its_own(training: Training) -> None:
    outcome = training.run(training_text("logged_predictions.py", "forked"))
    assert not outcome.of("listing")
    by_process = {line["p"]: line["predictions"] for line in outcome.of("evaluation")}
    assert len(by_process) == 2
    assert len({column["file"].partition("-")[0] for column in by_process.values()}) == 2
    for process, column in by_process.items():
        assert kept(training.run_directory, column).tolist() == list(range(5 if process == "0" else 7))


def test_a_directory_that_cannot_be_written_is_a_warning(training: Training) -> None:
    training.environment()
    (training.run_directory / "evaluation").write_text("in the way")
    outcome = training.run("import numpy, reprokit\nreprokit.log_predictions([1], [1]); print('trained')")
    assert outcome.output == "trained\n"
    assert outcome.one("evaluation")["accuracy"] == [1, 1]
    assert "predictions were digested and not kept" in outcome.one("warning")["text"]


@pytest.mark.slow
def test_estimators_stay_what_they_are(training: Training) -> None:
    script = training_text("sklearn_estimators.py")
    outcome = training.run(script)
    assert (outcome.status, outcome.output) == (0, "NotFittedError\n"), outcome.errors
    folds = ["Pipeline.cross-validation"] * 4 + ["LogisticRegression.cross-validation"] * 2
    names = [line["name"] for line in outcome.of("evaluation")]
    assert names == ["Mine.score", *folds, "GridSearchCV.predict_proba"]
    assert outcome.of("evaluation")[-1]["labels"] == ["0", "1"]


FOLDS = training_text("sklearn_folds.py")


@pytest.mark.slow
def test_folds_are_told_in_their_order_wherever_they_were_computed(training: Training) -> None:
    outcome = training.run(FOLDS)
    assert (outcome.status, outcome.of("warning")) == (0, []), outcome.errors
    with numpy.load(training.directory / "end.npz") as file:
        serial, errors, nested, predicted, y, z = (file[f"arr_{number}"] for number in range(6))
    first, again = (outcome.of("evaluation", name="LogisticRegression.cross-validation")[at : at + 3] for at in (0, 3))
    for lines, scores in ((first, serial), (again, serial)):
        assert [line["accuracy"][0] / line["accuracy"][1] for line in lines] == pytest.approx(scores.tolist())
    assert [line["predictions"]["digest"] for line in first] == [line["predictions"]["digest"] for line in again]
    assert [kept(training.run_directory, line["truth"]).tolist() for line in first] == y.reshape(3, 20).tolist()
    ridge = outcome.of("evaluation", name="Ridge.cross-validation")
    assert [line["error"]["decimal"] for line in ridge] == pytest.approx(errors.tolist())
    searches = outcome.of("evaluation", name="GridSearchCV.cross-validation")
    assert [line["accuracy"][0] / 20 for line in searches] == pytest.approx(nested.tolist())
    whole = outcome.one("evaluation", name="cross_val_predict")
    assert numpy.array_equal(kept(training.run_directory, whole["predictions"]), predicted)
    assert numpy.array_equal(kept(training.run_directory, whole["truth"]), z)
    assert len(outcome.of("evaluation")) == 13
    values = outcome.of("evaluate", name="cross_val_score")[0]["values"]
    assert [value["decimal"] for value in values.values()] == pytest.approx(serial.tolist())


@pytest.mark.slow
@pytest.mark.torch
def test_metrics_of_torchmetrics_begin_anew(training: Training) -> None:
    outcome = training.run(training_text("evaluated.py", "metrics_anew"), "0")
    assert (outcome.status, outcome.of("warning")) == (0, []), outcome.errors
    first = outcome.of("evaluation", name="MulticlassAccuracy#0")
    assert [(line["calls"], line["accuracy"]) for line in first] == [(3, [6, 9]), (3, [6, 9])]
    assert len(outcome.of("evaluate", name="MulticlassRecall#0")) == 2
    assert outcome.one("evaluation", name="MulticlassRecall#1")["predictions"]["dtype"] == "bfloat16"
    image = outcome.one("evaluation", name="MulticlassAccuracy#1")
    assert (image["predictions"]["shape"], image["accuracy"]) == ([1, 2, 2], [2, 2])
    assert outcome.one("evaluate", name="MeanMetric#0")["values"]["MeanMetric"]["decimal"] == 0.5


def test_threads_of_one_name_do_not_mix_their_rows(training: Training) -> None:
    outcome = training.run(training_text("logged_predictions.py", "threads"))
    lines = outcome.of("evaluation", name="log_predictions@worker")
    assert sum(line["calls"] for line in lines) == 1200
    for line in lines:
        assert rows_digest(kept(training.run_directory, line["predictions"])) == line["predictions"]["digest"]
