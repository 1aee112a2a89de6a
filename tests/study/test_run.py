"""Studies run, fail, are interrupted and go on."""

from __future__ import annotations

import fcntl
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from reprokit.core.errors import BadStudy, StudyInProgress, StudyTooLarge
from reprokit.run_files.rundir import RunDirectory
from reprokit.study import description, predictions, runner, store
from reprokit.study.attempt import PairTask
from reprokit.study.results import PairResult, RunResult
from tests.study.studies import OUT, PYTHON, ended_by, run, written
from tests.support import COMMAND, rest_slow, training_text

FOUR = """
runs = 2
[[setup]]
name = "untouched"
observe = false
[[setup]]
name = "bare"
[[setup]]
name = "seeded"
seeds = [42]
[[setup]]
name = "recorded"
entropy = "replayed"
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of four setups, made."""
    directory = tmp_path_factory.mktemp("study")
    written(directory, FOUR)
    said = run(directory)
    assert "8 runs are made" in said
    assert "left)" in said
    return directory / OUT


def results(directory: Path) -> dict[tuple[str, int, str], RunResult]:
    return {(one.setup, one.pair, one.part): one for one in store.read_results(directory)}


def pairs(directory: Path) -> dict[tuple[str, int], PairResult]:
    return {(one.setup, one.pair): one for one in store.read_pairs(directory)}


def test_each_setup_is_run_as_it_says(done: Path) -> None:
    runs = results(done)
    assert [one.mode for one in runs.values() if one.setup == "recorded"] == ["recorded", "replayed"]
    assert {runs[name, 1, "first"].mode for name in ("bare", "seeded")} == {"observed"}
    assert runs["untouched", 1, "first"].mode == "untouched"
    assert all(one.outcome == "finished" for one in runs.values())
    assert [one.seed for one in runs.values() if one.setup == "seeded"] == [42, 42]
    for one in runs.values():
        assert one.seconds > 0
        assert one.processor > 0
        assert one.memory is not None
        assert one.memory > 1 << 20
        assert one.outputs.startswith("sha256:")
        assert one.together == 1
        assert not one.notes


def test_what_the_agent_saw_is_in_the_results(done: Path) -> None:
    runs = results(done)
    for setup in ("bare", "seeded", "recorded"):
        (loss,) = runs[setup, 1, "first"].series
        assert (loss.name, loss.by, len(loss.values)) == ("loss", "epoch", 3)
        (evaluation,) = runs[setup, 1, "first"].evaluations
        assert evaluation.count == 100
        assert (done / evaluation.predictions).is_file()
    assert not runs["untouched", 1, "first"].series
    assert runs["untouched", 1, "first"].stored == 0
    assert runs["recorded", 1, "first"].profile > 0


def test_pairs_are_compared(done: Path) -> None:
    found = pairs(done)
    assert found["untouched", 1].identical is False
    assert found["untouched", 1].process_equal is None
    assert found["bare", 1].identical is False
    assert found["bare", 1].process_equal is False
    runs = results(done)
    accuracies = [runs["bare", 1, part].evaluations[0].accuracy or 0.0 for part in ("first", "second")]
    assert found["bare", 1].accuracy_difference == pytest.approx(abs(accuracies[0] - accuracies[1]))
    kept = [
        predictions.read(done, f"predictions/bare-01-{part}.json")["log_predictions"] for part in ("first", "second")
    ]
    labels = [[one.labels[position] for position in one.predicted] for one in kept]
    assert found["bare", 1].inconsistent == sum(one != other for one, other in zip(*labels, strict=True))
    for setup in ("seeded", "recorded"):
        assert found[setup, 1].identical is True
        assert found[setup, 1].evaluation_equal is True
        assert (found[setup, 1].inconsistent, found[setup, 1].predictions) == (0, 100)
        assert found[setup, 1].accuracy_difference == 0
        assert found[setup, 1].notes == []  # the surroundings of both runs were the same too


def test_nothing_stays_that_is_not_to_be_kept(done: Path) -> None:
    assert not list((done / store.RUNS).iterdir())
    assert not list((done / store.LOGS).iterdir())
    assert {path.name for path in done.iterdir()} == {
        *(store.STUDY, store.RESULTS, store.PAIRS, store.RUNS, store.LOGS, store.PREDICTIONS, store.LOCK, "study.html")
    }
    assert all(path.stat().st_mode & 0o077 == 0 for path in done.iterdir())


@pytest.mark.slow
def test_a_study_that_is_done_makes_nothing_more(done: Path) -> None:
    before = (done / store.RESULTS).read_bytes()
    assert "8 are made" in run(done.parent)
    assert (done / store.RESULTS).read_bytes() == before


def test_a_changed_study_is_refused_with_the_key(done: Path) -> None:
    path = done.parent / "study.toml"
    before = path.read_text()
    path.write_text(before.replace("seeds = [42]", "seeds = [43]").replace("runs = 2", "runs = 4"))
    said = run(done.parent, status=2)
    path.write_text(before)
    assert "study-changed" in said
    assert "runs, seeds of setup seeded" in said
    assert said.count("\n") == 1


BAD_ENDS = """
runs = 2
timeout = 0.6
[[setup]]
name = "fails"
command = ["{python}", "-c", "print('no such data'); raise SystemExit(3)"]
entropy = "replayed"
[[setup]]
name = "hangs"
command = ["{python}", "-c", "import time; time.sleep(100)"]
[[setup]]
name = "dies"
command = ["{python}", "dies.py"]
"""
DIES = """
import os, signal
launcher = os.getppid()
worker = int(open(f"/proc/{launcher}/stat").read().rpartition(")")[2].split()[1])
os.kill(worker, signal.SIGKILL)
signal.pause()
"""


@pytest.mark.slow
def test_runs_that_fail_are_shown_and_never_made_again(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(DIES)
    written(tmp_path, BAD_ENDS.format(python=PYTHON))
    said = run(tmp_path, status=1)
    runs = results(tmp_path / OUT)
    assert runs["fails", 1, "first"].outcome == "failed"
    assert runs["fails", 1, "first"].ended == "with exit status 3"
    assert runs["fails", 1, "second"].ended == "not run: its recording failed"
    assert runs["hangs", 1, "second"].outcome == "timeout"
    assert runs["hangs", 1, "first"].seconds >= 0.6
    assert runs["dies", 1, "first"].outcome == "lost"
    assert "SIGKILL" in runs["dies", 1, "second"].ended
    assert "FAILED" in said
    assert "6 of them failed" in said
    assert all(pair.identical is None for pair in pairs(tmp_path / OUT).values())
    log = tmp_path / OUT / store.LOGS / "fails-01-first.log"
    assert "no such data" in log.read_text()
    lines = (tmp_path / OUT / store.RESULTS).read_bytes()
    assert "6 of them failed" in run(tmp_path, status=1)
    assert (tmp_path / OUT / store.RESULTS).read_bytes() == lines


def test_a_study_can_stop_at_a_failure(tmp_path: Path) -> None:
    written(tmp_path, 'runs = 2\n[[setup]]\nname = "a"\n[[setup]]\nname = "b"\n', "raise SystemExit(1)")
    said = run(tmp_path, "--stop-on-failure", status=1)
    assert "stopped at a failure, 1 of 4 runs are made" in said
    assert len(results(tmp_path / OUT)) == 1


HANGING = """
import os, pathlib, time
here = pathlib.Path(".cache")  # in which nothing is a result
here.mkdir(exist_ok=True)
number = len(list(here.glob("began-*")))
(here / f"began-{number}").write_text(str(os.getpid()))
if number == 2:
    time.sleep(100)
pathlib.Path("result").write_text("same")
"""
TWO = """
runs = 2
[[setup]]
name = "a"
[[setup]]
name = "b"
entropy = "replayed"
"""


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


@pytest.mark.slow
@pytest.mark.parametrize("number", rest_slow([signal.SIGINT, signal.SIGKILL]))
def test_an_interrupted_study_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    written(tmp_path, TWO, HANGING)
    third = tmp_path / ".cache" / "began-2"  # the first run of the pair of b
    status, said = ended_by(tmp_path, number, lambda: third.exists() and bool(third.read_text()))
    before = (tmp_path / OUT / store.RESULTS).read_bytes()
    assert before.count(b"\n") == 2
    if number == signal.SIGINT:
        assert status == 130
        assert f"resume with: reprokit study run {tmp_path}/study.toml -o {tmp_path}/out" in said
    else:
        assert status == -signal.SIGKILL
        with open(tmp_path / OUT / store.RESULTS, "ab") as file:  # as if the power had failed
            file.write(b'{"setup":"b","pair":1,"pa')
    assert "2 are made" in run(tmp_path)
    assert not is_alive(int(third.read_text()))
    assert (tmp_path / OUT / store.RESULTS).read_bytes().startswith(before)
    runs = results(tmp_path / OUT)
    assert len(runs) == 4
    assert runs["b", 1, "first"].notes == ["an earlier attempt at this run was interrupted; nothing of it was used"]
    assert all(pair.identical for pair in pairs(tmp_path / OUT).values())


def half_made(directory: Path, first: RunResult) -> Iterator[PairTask]:
    """What is to be made where the first run of a pair is there and the second was cut off."""
    path = written(directory, TWO)
    described, out = description.read(path), directory / OUT
    out.mkdir()
    plan = runner._study_file(described, out, path)
    store.add_result(out, first)
    (out / store.RUNS / "a-01-second").mkdir(parents=True)
    return runner._RunningStudy(plan, out, stop_on_failure=False).pairs()


FIRST = RunResult(setup="a", pair=1, part="first", mode="observed", outcome="finished", seconds=1.0, processor=1.0)
CUT_OFF = "an earlier attempt at this run was interrupted; nothing of it was used"


def test_a_second_run_is_made_beside_a_first_one_that_is_there(tmp_path: Path) -> None:
    pairs_to_come = half_made(tmp_path, FIRST)
    (tmp_path / OUT / store.RUNS / "a-01-first").mkdir()
    task = next(pairs_to_come)
    assert task.made == (FIRST,)
    assert task.second.notes == (CUT_OFF,)
    assert not Path(task.second.run).exists()
    assert [one.first.setup for one in pairs_to_come] == ["b"]


def test_a_pair_whose_first_run_is_gone_is_made_again_and_says_so(tmp_path: Path) -> None:
    task = next(half_made(tmp_path, FIRST))
    assert task.made == ()
    assert task.first.notes[0].startswith("made again with its pair: ")
    store.add_result(tmp_path / OUT, msgspec.structs.replace(FIRST, notes=list(task.first.notes)))
    assert [one.notes for one in store.read_results(tmp_path / OUT)] == [list(task.first.notes)]


def test_a_first_run_that_failed_is_not_made_again(tmp_path: Path) -> None:
    failed = msgspec.structs.replace(FIRST, outcome="failed")
    assert next(half_made(tmp_path, failed)).made == (failed,)


@pytest.mark.slow
def test_runs_at_the_same_time_are_marked(tmp_path: Path) -> None:
    text = 'runs = 2\n[variables]\nSIZE = "3"\n[[setup]]\nname = "a"\nseeds = [1]\n[[setup]]\nname = "b"\n'
    text += 'entropy = "replayed"\n'
    training = """
import os, random, pathlib
import reprokit
reprokit.log(step=0, value=random.random(), size=int(os.environ["SIZE"]))
pathlib.Path("out.txt").write_text(str(random.random()))
"""
    written(tmp_path, text, training)
    assert "not comparable" in run(tmp_path, "--parallel", "2")
    runs = results(tmp_path / OUT)
    assert {one.together for one in runs.values()} == {2}
    assert {one.outputs for one in runs.values()} == {""}
    assert all(pair.identical for pair in pairs(tmp_path / OUT).values())
    values = {series.name: series.values for series in runs["a", 1, "first"].series}
    assert values["size"] == [3]


@pytest.mark.slow
def test_a_study_that_would_not_fit_stops_before_the_pair_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, 'runs = 2\nkeep = "all"\n[[setup]]\nname = "a"\n[[setup]]\nname = "b"\n', "print('x')")
    described, out = description.read(path), tmp_path / OUT
    with monkeypatch.context() as patch:
        patch.setattr(runner.DiskSpace, "free", lambda self: runner.SPARE if self._sizes else 1 << 40)
        with pytest.raises(StudyTooLarge, match="make room, then start the same command again"):
            runner.run(described, out, path)
    assert [one.setup for one in results(out).values()] == ["a", "a"]
    done = runner.run(described, out, path)
    assert (done.made, done.total, done.failed) == (4, 4, 0)
    kept = sorted(place.name for place in (out / store.RUNS).iterdir())
    assert kept == ["a-01-first", "a-01-second", "b-01-first", "b-01-second"]
    assert (out / store.LOGS / "b-01-second.log").read_text().startswith("x\n")


def test_a_study_at_work_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, 'runs = 2\n[[setup]]\nname = "a"\n[[setup]]\nname = "b"\n')
    out = tmp_path / OUT
    out.mkdir()
    monkeypatch.setattr(runner, "PATIENCE", 0.0)
    with open(out / store.LOCK, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StudyInProgress):
            runner.run(description.read(path), out, path)
    (out / "somebody's").touch()
    with pytest.raises(BadStudy, match="not empty and holds no study"):
        runner.run(description.read(path), out, path)


@pytest.mark.slow
def test_a_run_that_somebody_else_records_meanwhile_is_no_output(tmp_path: Path) -> None:
    setups = "".join(
        f'[[setup]]\nname = "{name}"\nobserve = {value}\n' for name, value in (("a", "false"), ("b", "true"))
    )
    path = written(tmp_path, f'keep = "all"\nruns = 2\n{setups}', training_text("recorded_meanwhile.py"))
    path.write_text(path.read_text().replace('"train.py"]', f'"train.py", "{COMMAND}"]', 1))
    run(tmp_path)
    for kept in (tmp_path / OUT / store.RUNS).iterdir():
        outputs = RunDirectory(kept).outputs()
        assert outputs is not None
        assert [file.path for file in outputs.files] == ["result"]
