"""Pairs of a study as tasks of any scheduler: what is printed, what comes back, and what is gathered."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reprokit.core.errors import StudyInProgress
from reprokit.study import description, runner, store, tasks
from reprokit.study.attempt import PairReport, encoded_report
from reprokit.study.description import Engine, Setup, Study
from reprokit.study.pairs import holding, lock_file, locked
from reprokit.study.results import Evaluation, MetricSeries, PairPlace, PairResult, RunResult
from reprokit.study.runner import TaskCounts
from tests.study.studies import OUT, results_of, run, words, written
from tests.support import COMMAND

# What comes back

PLACE = PairPlace(1, "a")


def result(part: str, **changes: Any) -> RunResult:
    fields = {"setup": "a", "pair": 1, "part": part, "mode": "observed", "outcome": "finished"}
    return RunResult(**{**fields, "seconds": 1.0, "processor": 1.0, **changes})


@pytest.fixture
def plan(tmp_path: Path) -> store.StudyFile:
    """A study of one pair."""
    study = Study(name="tiny", command=(sys.executable,), setup=(Setup(name="a"),), runs=2, engine=Engine(parallel=3))
    plan = store.StudyFile(reprokit="1", base="/", study=study, order=[PLACE])
    store.write_study(tmp_path, plan)
    return plan


def come_back(directory: Path, runs: list[RunResult], pair: PairResult | None = None) -> None:
    (directory / tasks.TASKS).mkdir(exist_ok=True)
    tasks.report_file(directory, PLACE).write_bytes(encoded_report(PairReport(runs=runs, pair=pair)))


def test_a_report_is_taken_for_what_was_asked_and_nothing_else(tmp_path: Path, plan: store.StudyFile) -> None:
    outside = Evaluation(name="e", task="regression", count=1, predictions="predictions/b-01-first.json")
    first = result("first", together=1, evaluations=[outside], notes=["x" * 5000] * 50, host="h" * 5000)
    come_back(tmp_path, [first, result("second")], PairResult(setup="a", pair=1, identical=True))
    assert runner.collect(tmp_path)[0].made == 2
    taken = store.read_results(tmp_path)[0]
    assert taken.together == plan.study.engine.parallel
    assert taken.evaluations[0].predictions == ""
    assert (len(taken.notes), len(taken.notes[0]), len(taken.host)) == (20, 1000, 500)
    assert store.read_pairs(tmp_path)[0].identical is True
    assert not list((tmp_path / tasks.TASKS).iterdir())


WRONG = [
    [result("second"), result("first")],
    [result("first", setup="b")],
    [result("first", pair=2)],
    [result("first", mode="recorded")],
    [result("first", seconds=float("nan"))],
    [result("first", series=[MetricSeries(name="s", values=[0.0] * 10_001, by="step")])],
    [result("first"), result("second"), result("second")],
]


@pytest.mark.parametrize("runs", WRONG)
def test_a_report_of_something_else_is_none(tmp_path: Path, plan: store.StudyFile, runs: list[RunResult]) -> None:
    come_back(tmp_path, runs, PairResult(setup="a", pair=1, identical=True))
    assert tasks.read_report(plan, tmp_path, PLACE) == PairReport()
    assert runner.collect(tmp_path)[1] == TaskCounts(interrupted=1)
    assert store.read_results(tmp_path) == []


@pytest.mark.parametrize("data", [b"", b"{", b'{"runs": 3}', b"[" * 100_000, b'{"runs": [{"setup": "a"}]}'])
def test_what_is_no_report_is_none(tmp_path: Path, plan: store.StudyFile, data: bytes) -> None:
    come_back(tmp_path, [])
    tasks.report_file(tmp_path, PLACE).write_bytes(data)
    assert tasks.read_report(plan, tmp_path, PLACE) == PairReport()


def test_a_report_is_bounded(tmp_path: Path, plan: store.StudyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    come_back(tmp_path, [result("first")])
    size = tasks.report_file(tmp_path, PLACE).stat().st_size
    for limit, expected in ((size, ["first"]), (size - 1, [])):
        monkeypatch.setattr(tasks, "MAX_REPORT", limit)
        report = tasks.read_report(plan, tmp_path, PLACE)
        assert report is not None
        assert [run.part for run in report.runs] == expected


# Any scheduler


def listed(directory: Path) -> list[dict[str, Any]]:
    """The tasks that `study tasks` prints."""
    command = [str(COMMAND), "study", "tasks", *words(directory)[2:]]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def collected(directory: Path, *options: str, status: int) -> str:
    """Gather what was done, as a user does."""
    command = [str(COMMAND), "study", "collect", str(directory / OUT), *options]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stderr


@pytest.mark.slow
def test_tasks_are_made_in_any_order_and_gathered_in_parts(tmp_path: Path) -> None:
    setups = "".join(f'[[setup]]\nname = "{name}"\nobserve = false\n' for name in ("a", "b", "c"))
    path = written(tmp_path, f"runs = 2\n{setups}", "print('x')")
    out, described = tmp_path / OUT, description.read(path)

    def missing() -> list[str]:
        return [task.setup for task in runner.tasks(described, out, path)]

    commands = {task["setup"]: str(task["command"]) for task in listed(tmp_path)}
    assert set(missing()) == set(commands) == {"a", "b", "c"}
    subprocess.run(commands["c"], shell=True, check=True, cwd="/")
    said = "reprokit: 2 of 6 runs are made; pairs at work: 0, interrupted: 0, not begun: 2\n"
    assert collected(tmp_path, status=1).endswith(said)
    before = (out / store.RESULTS).read_bytes()
    subprocess.run(commands["c"], shell=True, check=True, cwd="/")  # which makes nothing
    assert runner.collect(out)[1] == TaskCounts(not_begun=2)
    assert (out / store.RESULTS).read_bytes() == before
    assert set(missing()) == {"a", "b"}
    a = PairPlace(1, "a")
    (out / tasks.TASKS).mkdir(exist_ok=True)
    tasks.report_file(out, a).write_bytes(encoded_report(PairReport()))  # it has begun
    with holding(lock_file(out, a)):
        assert missing() == ["b"]
        assert runner.collect(out, is_over=True)[1] == TaskCounts(at_work=1, not_begun=1)
    assert runner.collect(out)[1] == TaskCounts(interrupted=1, not_begun=1)
    assert "3 of 6 runs are made, 1 of them failed" in collected(tmp_path, "--over", status=1)
    for name in missing():
        subprocess.run(commands[name], shell=True, check=True, cwd="/")
    for _ in range(2):
        done, counts = runner.collect(out)
        assert (done.made, done.failed, counts) == (6, 1, TaskCounts())
    assert {key: one.outcome for key, one in results_of(out).items() if one.outcome != "finished"} == {
        ("a", "first"): "lost"
    }
    assert {one.setup for one in store.read_pairs(out)} == {"a", "b", "c"}
    assert not list((out / tasks.TASKS).iterdir())


@pytest.mark.slow
def test_the_rest_of_tasks_is_made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, 'runs = 2\n[[setup]]\nname = "a"\n[[setup]]\nname = "b"\nentropy = "replayed"\n')
    out, described = tmp_path / OUT, description.read(path)
    one, other = runner.tasks(described, out, path)
    subprocess.run(one.command, shell=True, check=True, cwd="/")
    monkeypatch.setattr(runner, "PATIENCE", 0.0)
    with holding(lock_file(out, PairPlace(other.pair, other.setup))), pytest.raises(StudyInProgress):
        runner.run(described, out, path)
    assert {run.setup for run in store.read_results(out)} == {one.setup}
    assert "4 runs are made" in run(tmp_path)
    assert {run.worker for run in store.read_results(out) if run.setup == other.setup} == {""}


def test_locks_of_a_file_that_was_removed_are_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holding(path) as first:
        path.unlink()
        with holding(path, 0.0) as second:
            assert first != second
            with pytest.raises(StudyInProgress, match="still at work"):
                locked(path, 0.0)


# Settings that cannot work


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ('kind = "kubernetes"', "engine.kind is one of local"),
        ('kind = "local"\nstore = "s3://bucket"', "engine.store is no key any more; choose a directory"),
        ('kind = "local"\naddress = "x"', 'not for kind = "local"'),
        ('kind = "local"\nheartbeat = 3', "unknown field `heartbeat`"),
    ],
)
def test_what_is_no_engine_any_more_is_one_line(tmp_path: Path, engine: str, said: str) -> None:
    written(tmp_path, f'runs = 2\n[engine]\n{engine}\n[[setup]]\nname = "a"\n[[setup]]\nname = "b"\n')
    printed = run(tmp_path, status=2)
    assert printed.count("\n") == 1
    assert printed.startswith("reprokit: bad-study: ")
    assert said in printed


def test_a_study_that_another_engine_made_is_still_read(tmp_path: Path, plan: store.StudyFile) -> None:
    data = json.loads((tmp_path / store.STUDY).read_text())
    data["study"]["engine"] |= {"kind": "kubernetes", "store": "s3://bucket/studies"}
    (tmp_path / store.STUDY).write_text(json.dumps(data))
    assert store.read_study(tmp_path).study.setup == plan.study.setup
