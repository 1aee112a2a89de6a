"""The paper re-measured: its studies are valid, its trainings old Python, and its tables say what was measured."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.paper import figures, tables
from benchmarks.paper.measure import HERE, MODELS, PAGE
from reprokit.study import description, store
from reprokit.study.analysis import analyze, kind
from reprokit.study.description import LocatedStudy, Setup
from reprokit.study.results import Evaluation, Label, Mode, PairResult, RunResult, encode

KINDS = ["untouched", "bare", "seeded", "recorded"]
SECONDS = {"untouched": 4.0, "bare": 5.0, "seeded": 5.0, "recorded": 6.0}


def described(model: str) -> LocatedStudy:
    return description.read(HERE / f"{MODELS[model]}.toml")


@pytest.mark.parametrize("model", MODELS)
def test_the_studies_are_the_papers_setups_on_both_versions(model: str) -> None:
    study = described(model).study
    assert study.runs == 16
    assert [kind(setup) for setup in study.setup] == 2 * KINDS
    assert [setup.seeds for setup in study.setup if setup.seeds] == 2 * [(0, 1, 2, 5, 10, 42, 123, 1234)]
    old, new = study.setup[:4], study.setup[4:]
    assert {setup.command for setup in old} != {setup.command for setup in new}
    assert {study.command_of(setup)[1:] for setup in old} == {study.command_of(setup)[1:] for setup in new}


def test_the_studies_differ_in_the_model_alone() -> None:
    texts = {name: (HERE / f"{MODELS[name]}.toml").read_text() for name in MODELS if name != "LSTM"}
    assert len({text.replace(name, "M").replace(MODELS[name], "M") for name, text in texts.items()}) == 1


@pytest.mark.parametrize("name", ["trainings/lenet.py", "trainings/lstm.py", "data.py"])
def test_the_trainings_have_the_syntax_of_cpython_3_7_and_seed_nothing(name: str) -> None:
    text = (HERE / name).read_text()
    ast.parse(text, feature_version=(3, 7))
    assert ".seed(" not in text
    assert "random" not in text


def result(setup: Setup, pair: int, part: str, model: str) -> RunResult:
    """A run whose bare accuracies lie 1 % apart with every pair, and whose replays repeat."""
    own = kind(setup)
    later = part == "second"
    modes: dict[str, Mode] = {"untouched": "untouched", "recorded": "replayed" if later else "recorded"}
    mode = modes.get(own, "observed")
    right = 80 + pair + (later and own == "bare")
    evaluation = Evaluation(
        name="evaluate",
        task="regression" if model == "LSTM" else "classification",
        count=100,
        accuracy=None if model == "LSTM" else right / 100,
        labels=[] if model == "LSTM" else [Label(label="7", count=100, correct=right)],
        mae=right / 1000 if model == "LSTM" else None,
    )
    return RunResult(
        setup=setup.name,
        pair=pair,
        part="second" if later else "first",
        mode=mode,
        outcome="finished",
        seconds=SECONDS[own] + pair / 100 + later / 1000,
        processor=1.0,
        stored=0 if own == "untouched" else 4096,
        profile=2048 if mode == "recorded" else 0,
        epochs=pair + 3,
        evaluations=[] if own == "untouched" else [evaluation],
    )


def written(directory: Path, model: str) -> Path:
    """The directory of a study of this model that has ended."""
    found = described(model)
    directory.mkdir()
    store.write_study(directory, store.StudyFile(reprokit="1", study=found.study, base=str(found.base)))
    places = [(setup, pair) for setup in found.study.setup for pair in range(1, found.study.pairs + 1)]
    runs = [result(setup, pair, part, model) for setup, pair in places for part in ("first", "second")]
    (directory / store.RESULTS).write_bytes(b"".join(encode(run) + b"\n" for run in runs))
    same = {"untouched": None, "bare": False}
    pairs = [PairResult(setup=one.name, pair=pair, identical=same.get(kind(one), True)) for one, pair in places]
    (directory / store.PAIRS).write_bytes(b"".join(encode(pair) + b"\n" for pair in pairs))
    return directory


def rows(text: str, title: str) -> list[list[str]]:
    """The cells of the table below a title, without its head."""
    part = text.partition(f"### {title}")[2].partition("###")[0]
    lines = [line for line in part.splitlines() if line.startswith("| L")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_tables_hold_what_was_measured_beside_the_papers_figures(tmp_path: Path) -> None:
    analyses = {model: analyze(written(tmp_path / MODELS[model], model)) for model in ("LeNet-5", "LSTM")}
    text = tables.tables(analyses)
    paper, here, *_ = rows(text, "Bare runs")
    assert paper[:5] == ["LeNet-5", "1.14, paper", "98.96 %", "0.52 (0.14)", "2.35 (0.63)"]
    assert paper[5] == "26 (18.9) of 2500: 1.0 % (0.8 %)"
    assert here[:4] == ["LeNet-5", "1.14, here", "85.00 %", "8.00 (2.42)"]
    assert here[4] == "8.00 (2.42)"
    pairs = rows(text, "Pairs of runs")
    assert pairs[0][:7] == ["LeNet-5", "1.14", "0 of 8", "8 of 8", "8 of 8", "8 of 8", "8 of 8"]
    assert pairs[0][7].startswith("accuracy 0, of a class 0")
    assert pairs[3][:7] == ["LSTM", "2.21", "0 of 8", "8 of 8", "—", "8 of 8", "—"]
    times = rows(text, "Time")
    assert times[0][2:4] == ["4.05 (4.03 to 4.06)", "5.05 (5.03 to 5.06)"]
    against = [row for row in times if row[2] in ("untouched", "bare")]
    assert [row[8] for row in against] == ["0.74"] * 4 + ["—"] * 4
    assert {row[9].split()[0] for row in against} == {"1.000"}
    assert against[0][3].startswith("2.00 s")
    assert against[0][5:8] == ["< 0.001", "< 0.001", "+1.00 (large)"]
    assert rows(text, "Storage")[0] == ["LeNet-5", "1.14", "2 KiB", "4 KiB", "4 KiB"]
    assert "| 1.14 | bare | 4 to 11 | 0.0850 | 0.0080 (0.0024) | any two runs |" in text


def test_a_study_that_has_not_ended_says_so(tmp_path: Path) -> None:
    directory = written(tmp_path / "study", "LeNet-1")
    for name in (store.RESULTS, store.PAIRS):
        lines = (directory / name).read_bytes().splitlines(keepends=True)
        (directory / name).write_bytes(lines[0])
    text = tables.tables({"LeNet-1": analyze(directory)})
    assert "- LeNet-1: The study lacks runs: 1 of 128 were made." in text
    assert rows(text, "Bare runs")[1] == ["LeNet-1", "1.14, here", "—", "—", "—", "—"]


def test_the_tables_go_between_the_marks_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"words\n{tables.BEGIN}\nold\n{tables.END}\nmore\n")
    tables.fill(page, "new\n")
    tables.fill(page, "newer\n")
    assert page.read_text() == f"words\n{tables.BEGIN}\n\nnewer\n\n{tables.END}\nmore\n"
    page.write_text("words")
    with pytest.raises(SystemExit, match="has no lines"):
        tables.fill(page, "new")


def test_the_page_has_the_marks_and_the_papers_p_values() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.index(tables.BEGIN) < text.index(tables.END)
    assert all(f"{value:.2f}" in text for value in figures.RECORDING_P.values())
