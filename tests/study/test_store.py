"""The lines of a study on the disk, the room that it needs, and what is said while it goes on."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.core.errors import StudyDamaged, StudyTooLarge
from reprokit.study import results, store
from reprokit.study.attempt import PairReport, encoded_report, read_report
from reprokit.study.description import Engine, Setup, Study
from reprokit.study.results import Evaluation, Label, MetricSeries, PairResult, RunResult
from reprokit.study.runner import SPARE, DiskSpace, StudyProgress, in_time


def made(setup: str = "a", pair: int = 1, part: str = "first", **values: object) -> RunResult:
    found = RunResult(
        setup=setup,
        pair=pair,
        part=part,  # type: ignore[arg-type]
        mode="observed",
        outcome="finished",
        seconds=2.0,
        processor=1.0,
    )
    return msgspec.structs.replace(found, **values)


@given(st.lists(st.none() | st.floats(), max_size=5), st.text(max_size=20), st.booleans())
def test_results_are_the_same_after_the_disk(values: list[float | None], name: str, by_epoch: bool) -> None:
    series = MetricSeries(name=name, values=values, by="epoch" if by_epoch else "step")
    label = Label(label=name, count=3, correct=1)
    evaluation = Evaluation(name=name, task="regression", count=3, mae=values[0] if values else None, labels=[label])
    before = made(series=[series], evaluations=[evaluation], ended=name)
    line = results.encode(before)
    assert b"\n" not in line
    assert repr(results.decode(line, RunResult)) == repr(before)  # NaN equals itself by its text


def test_a_report_is_the_same_for_another_process(tmp_path: Path) -> None:
    report = PairReport(runs=[made(seconds=float("inf"))], pair=PairResult(setup="a", pair=1), refused='no "room"')
    (tmp_path / "report.json").write_bytes(encoded_report(report))
    assert read_report(tmp_path / "report.json") == report


def test_a_line_that_was_cut_short_is_left_out_and_taken_away(tmp_path: Path) -> None:
    store.add_result(tmp_path, made())
    whole = (tmp_path / store.RESULTS).read_bytes()
    for size in (1, len(whole) // 2, len(whole) - 1):
        with open(tmp_path / store.RESULTS, "ab") as file:
            file.write(whole[:size])
        before = len(store.read_results(tmp_path))
        store.add_result(tmp_path, made(pair=1 + before))
        assert [one.pair for one in store.read_results(tmp_path)] == list(range(1, before + 2))
    assert (tmp_path / store.RESULTS).read_bytes().startswith(whole)


def test_nothing_but_a_cut_line_is_no_result(tmp_path: Path) -> None:
    (tmp_path / store.RESULTS).write_bytes(b'{"setup":')
    assert store.read_results(tmp_path) == []
    store.add_result(tmp_path, made())
    assert len(store.read_results(tmp_path)) == 1


def test_a_later_line_stands_for_an_earlier_one(tmp_path: Path) -> None:
    for one in (made(seconds=1.0), made("b"), made(seconds=3.0)):
        store.add_result(tmp_path, one)
    assert [(one.setup, one.seconds) for one in store.read_results(tmp_path)] == [("b", 2.0), ("a", 3.0)]


@pytest.mark.parametrize(
    "line", [b"[]", b"\xff", b'{"setup":"a"}', results.encode(made()).replace(b'"pair":1', b'"pair":0'), b"[" * 100_000]
)
def test_a_damaged_line_is_said_with_its_number(tmp_path: Path, line: bytes) -> None:
    store.add_result(tmp_path, made())
    with open(tmp_path / store.RESULTS, "ab") as file:
        file.write(line + b"\n")
    with pytest.raises(StudyDamaged, match=r"results.jsonl, line 2: "):
        store.read_results(tmp_path)


def test_lines_are_not_read_through_links(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(results.encode(made()) + b"\n")
    os.symlink("elsewhere", tmp_path / store.RESULTS)
    with pytest.raises(StudyDamaged):
        store.read_results(tmp_path)


def test_a_result_that_is_too_long_keeps_its_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MAX_LINE", 1000)
    store.add_result(tmp_path, made(series=[MetricSeries(name="x", values=[0.1] * 500, by="step")]))
    (found,) = store.read_results(tmp_path)
    assert (found.seconds, found.series) == (2.0, [])
    assert "too long" in found.notes[0]


def test_a_directory_without_a_study_is_said(tmp_path: Path) -> None:
    with pytest.raises(StudyDamaged, match="not the directory of a study"):
        store.read_study(tmp_path)
    (tmp_path / store.STUDY).write_text("{}")
    with pytest.raises(StudyDamaged, match="cannot be used"):
        store.read_study(tmp_path)


def study(keep: str, parallel: int = 1) -> Study:
    setups = Setup(name="a"), Setup(name="b")
    engine = Engine(parallel=parallel)
    return Study(name="x", command=("c",), setup=setups, keep=keep, engine=engine)  # type: ignore[arg-type]


def room(directory: Path, keep: str, parallel: int = 1) -> DiskSpace:
    """After a first round, in which each run directory had 10 MiB, those of b 20."""
    found = DiskSpace(study(keep, parallel), directory)
    for setup, size in (("a", 10 << 20), ("b", 20 << 20)):
        for part in ("first", "second"):
            found.add(made(setup, part=part, stored=size))
    found.add_pair(PairResult(setup="a", pair=1, identical=True))
    found.add_pair(PairResult(setup="b", pair=1, identical=False))
    return found


def test_the_room_of_what_is_to_come_follows_from_what_is_kept(tmp_path: Path) -> None:
    coming, megabyte = ["a", "b"] * 7, 1 << 20
    assert room(tmp_path, "none").needed(coming) == 40 * megabyte
    assert room(tmp_path, "none", parallel=3).needed(coming) == 120 * megabyte
    assert room(tmp_path, "all").needed(coming) == (7 * 20 + 7 * 40 + 40) * megabyte
    assert room(tmp_path, "different").needed(coming) == (7 * 40 + 40) * megabyte
    assert room(tmp_path, "all").needed([]) == 0


def test_a_study_that_would_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = room(tmp_path, "none")
    monkeypatch.setattr(DiskSpace, "free", lambda self: (40 << 20) + SPARE)
    found.check(["a", "b"])
    monkeypatch.setattr(DiskSpace, "free", lambda self: (40 << 20) + SPARE - 1)
    with pytest.raises(StudyTooLarge, match=r"needs about 40 MiB, and 56 MiB are free"):
        found.check(["a", "b"])


def test_the_time_left_follows_from_what_each_setup_took() -> None:
    said: list[str] = []
    now = [0.0]
    progress = StudyProgress(Counter(a=4, b=2), [made("a", seconds=10.0)], 1, said.append, lambda: now[0])
    assert progress.left() == 50.0  # of b nothing is known
    now[0] = 33.0
    progress.run_ended(made("b", seconds=30.0))
    assert progress.left() == pytest.approx((3 * 10 + 30) * 1.1)  # a tenth went by between the runs
    assert said == ["b, pair 1, first run (observed): 30.0 s (2 of 6 runs; about 66.0 s left)"]
    progress.run_ended(made("a", outcome="failed", ended="with exit status 3", seconds=0.0))
    assert "FAILED, with exit status 3 (3 of 6" in said[-1]


def test_runs_at_the_same_time_take_less() -> None:
    progress = StudyProgress(Counter(a=4), [made("a", seconds=10.0)], 2, print, lambda: 0.0)
    assert progress.left() == 15.0


def test_times_in_words() -> None:
    assert [in_time(seconds) for seconds in (0.04, 99.9, 100, 6100)] == ["0.0 s", "99.9 s", "2 min", "1 h 42 min"]
