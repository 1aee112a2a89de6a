"""What was observed, joined with what is known: verdicts, order, places, cures."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from reprokit.profiling import analyze
from reprokit.profiling.report import measured
from reprokit.run_files import findings
from reprokit.run_files.findings import Finding, FindingsFile
from reprokit.run_files.rundir import RunDirectory
from tests.profiling.observed import PLACE, confirmed, diagnosed, operator, profiled


def by_subject(found: FindingsFile) -> dict[str, Finding]:
    return {one.subject: one for one in found.findings}


def test_a_known_operator_is_suspected_and_has_its_place_reason_and_cure(tmp_path: Path) -> None:
    found = diagnosed(tmp_path / "run", [operator()]).findings[0]
    assert (found.verdict, found.kind, found.direction, found.device) == ("suspect", "operator", "backward", "cpu")
    assert found.id == "pytorch/aten::index_put/backward/cpu"
    assert [found.where[0].file, found.where[0].line, found.where[0].function] == PLACE
    assert (found.calls, found.processes) == (20, 1)
    assert found.fact is not None
    assert found.fact.startswith("pytorch.")
    assert "run-to-run" in found.shows
    assert found.why
    assert found.cures[0].patch == "torch-operator=aten::index_put"


def test_a_measured_operator_is_guilty_and_comes_first(tmp_path: Path) -> None:
    other = [PLACE[0], 99, "elsewhere"]
    lines = [operator("aten::kthvalue", "forward", device="cuda", calls=10**6), operator(), confirmed()]
    lines += [operator(where=[other], calls=10**5), confirmed(where=[other], results=1)]
    found = diagnosed(tmp_path / "run", lines, confirm=30).findings[0]
    assert (found.subject, found.verdict) == ("aten::index_put", "guilty")
    assert found.confirmed is not None
    assert (found.confirmed.results, found.confirmed.repeats) == (7, 30)
    assert found.where[0].line == PLACE[1]  # where it varied, though it was called more often elsewhere


def test_an_operator_that_was_measured_and_repeats_is_cleared(tmp_path: Path) -> None:
    lines = [operator(), confirmed(results=1, threads={"1": "different"})]
    found = diagnosed(tmp_path / "run", lines, confirm=30).findings[0]
    assert found.verdict == "cleared"
    assert not found.blamed
    assert found.cures == []
    assert found.confirmed is not None
    assert found.confirmed.threads == {"1": "different"}


def test_an_unknown_operator_is_told_of_only_when_it_was_measured(tmp_path: Path) -> None:
    unknown = operator("mine::scatter", "forward")
    assert diagnosed(tmp_path / "silent", [unknown]).findings == []
    lines = [unknown, confirmed("mine::scatter", "forward", threads={})]
    found = diagnosed(tmp_path / "loud", lines, confirm=30).findings[0]
    assert (found.verdict, found.fact) == ("guilty", None)
    assert found.shows == ["run-to-run"]
    assert [cure.patch for cure in found.cures] == ["threads=1", None]


def test_the_number_of_threads_that_repeats_is_proposed(tmp_path: Path) -> None:
    call = confirmed("mine::add", "forward", threads={"4": "varies", "3": "repeats"})
    found = diagnosed(tmp_path / "run", [call], confirm=30).findings[0]
    assert found.cures[0].patch == "threads=3"


def test_what_could_not_be_measured_stays_suspected_and_says_why(tmp_path: Path) -> None:
    lines = [operator(), confirmed(repeats=0, results=0, problem="its inputs take 9 GiB")]
    found = diagnosed(tmp_path / "run", lines, confirm=30).findings[0]
    assert found.verdict == "suspect"
    assert found.confirmed is not None
    assert found.confirmed.problem == "its inputs take 9 GiB"


def test_calls_that_repeat_do_not_clear_those_that_were_not_measured(tmp_path: Path) -> None:
    apart = "operators of a tf.function are not executed again"
    calls = [confirmed(results=1), confirmed(repeats=0, results=0, threads={}, problem=apart)]
    found = diagnosed(tmp_path / "run", [operator(), *calls], confirm=30).findings[0]
    assert (found.verdict, found.fact is None) == ("suspect", False)
    assert measured(found.confirmed) == f"no variation seen in 30 repeats; of other calls: {apart}"


def test_random_operators_are_covered(tmp_path: Path) -> None:
    found = diagnosed(tmp_path / "run", [operator("aten::bernoulli_", "forward", attributes={})]).findings[0]
    assert found.verdict == "covered"


def test_one_thread_clears_what_needs_two(tmp_path: Path) -> None:
    threads = {"kind": "setting", "name": "torch.get_num_threads", "value": 1, "where": "read at end"}
    assert by_subject(diagnosed(tmp_path / "run", [operator(), threads]))["aten::index_put"].verdict == "cleared"


def test_calls_of_steps_that_were_not_looked_at_are_estimated(tmp_path: Path) -> None:
    sampling = {"kind": "sampling", "framework": "pytorch", "steps": 1000, "observed": 100}
    found = diagnosed(tmp_path / "run", [operator(), sampling], [operator()]).findings[0]
    assert (found.calls, found.processes) == (220, 2)


@pytest.mark.parametrize(
    ("name", "fact", "patch"),
    [
        ("Pool.imap_unordered", "python.imap-unordered", "imap-ordered"),
        ("concurrent.futures.as_completed", "python.as-completed", None),
        ("mine.unordered", None, None),
    ],
)
def test_results_as_they_come_are_a_finding_of_their_own(
    tmp_path: Path, name: str, fact: str | None, patch: str | None
) -> None:
    lines = [{"kind": "completion", "name": name, "calls": 3, "ordered": False, "where": [PLACE]}]
    found = diagnosed(tmp_path / "run", lines).findings[0]
    assert (found.kind, found.verdict, found.fact, found.cures[0].patch) == ("order", "suspect", fact, patch)
    assert found.where[0].line == PLACE[1]


def test_results_in_order_are_none(tmp_path: Path) -> None:
    lines = [{"kind": "completion", "name": "Pool.map", "calls": 3, "ordered": True, "where": [PLACE]}]
    assert diagnosed(tmp_path / "run", lines).findings == []


def test_workers_of_a_loader_are_a_setting_to_keep(tmp_path: Path) -> None:
    loader: dict[str, Any] = {
        "kind": "loader",
        "name": "torch.utils.data.DataLoader",
        "workers": 2,
        "calls": 4,
        "where": [PLACE],
    }
    found = diagnosed(tmp_path / "run", [loader, {**loader, "workers": 0}]).findings
    assert [(one.kind, one.verdict, one.fact) for one in found] == [("setting", "setting", "pytorch.loader-workers")]
    assert found[0].why.startswith("2 workers")


def data_lines(draws: bool, **facts: Any) -> list[dict[str, Any]]:
    name = "StatelessRandomUniformV2" if not draws else "RandomUniform"
    line = operator(name, "data", framework="tensorflow", version="2.21.0", calls=0, attributes={}, dtypes=[])
    return [
        line,
        {"kind": "loader", "name": "tf.data.Dataset.map", "workers": 4, "calls": 1, "where": [PLACE], **facts},
    ]


def test_random_numbers_in_parallel_maps_are_an_order_of_completion(tmp_path: Path) -> None:
    found = [one for one in diagnosed(tmp_path / "run", data_lines(True)).findings if one.kind == "order"]
    assert [(one.fact, one.verdict) for one in found] == [("tensorflow.data-parallel-map", "suspect")]
    assert found[0].cures[0].patch == "tf-data"
    quiet = diagnosed(tmp_path / "quiet", data_lines(False))
    assert not any(one.kind == "order" for one in quiet.findings)


def test_a_parallel_map_that_draws_nothing_is_no_finding(tmp_path: Path) -> None:
    facts = {"framework": "tensorflow", "version": "2.21.0", "dtypes": ["variant"]}
    for draws in (True, False):
        dataset = operator("ParallelMapDatasetV2", "forward", attributes={"draws": draws}, **facts)
        found = diagnosed(tmp_path / str(draws), [dataset, *data_lines(True)]).findings
        assert any(one.kind == "order" for one in found) is draws


def test_a_pipeline_that_gives_up_its_order_is_one_too(tmp_path: Path) -> None:
    found = diagnosed(tmp_path / "run", data_lines(False, deterministic=False)).findings
    assert [one.fact for one in found if one.kind == "order"] == ["tensorflow.data-deterministic-off"]


def test_settings_of_a_gpu_say_nothing_of_a_run_without_one(tmp_path: Path) -> None:
    benchmark = {"kind": "setting", "name": "torch.backends.cudnn.benchmark", "value": True, "where": "set by script"}
    assert diagnosed(tmp_path / "cpu", [operator("aten::mm", "forward"), benchmark]).findings[1:] == []
    lines = [operator("aten::mm", "forward", device="cuda"), benchmark]
    found = by_subject(diagnosed(tmp_path / "gpu", lines))["torch.backends.cudnn.benchmark = true"]
    assert found.kind == "setting"
    assert found.cures[0].patch == "torch-cudnn"


def test_compiled_code_is_named_and_blamed_when_measured(tmp_path: Path) -> None:
    line: dict[str, Any] = {
        "kind": "compiled",
        "framework": "pytorch",
        "name": "torch.compile",
        "function": "f",
        "where": [PLACE],
    }
    line = {**line, "phase": "forward", "device": "cpu", "operators": ["aten::index_add"], "calls": 3}
    found = diagnosed(tmp_path / "seen", [line]).findings[0]
    assert (found.kind, found.verdict, found.fact) == ("compiled", "suspect", "pytorch.compiled-index-add")
    assert "aten::index_add" in found.why
    assert found.cures[0].patch == "torch-operator=aten::index_add"
    assert not any("index_put" in (cure.patch or "") for cure in found.cures)
    measured = confirmed("torch.compile", "forward", dtypes=[], attributes={})
    found = diagnosed(tmp_path / "measured", [line, measured], confirm=30).findings[0]
    assert (found.kind, found.verdict) == ("compiled", "guilty")
    harmless = diagnosed(tmp_path / "harmless", [{**line, "operators": ["aten::mul"]}]).findings[0]
    assert (harmless.verdict, harmless.blamed) == ("setting", False)
    by_xla = {**line, "framework": "jax", "name": "xla", "operators": []}
    assert diagnosed(tmp_path / "xla", [by_xla]).findings[0].verdict == "setting"
    unseen = diagnosed(tmp_path / "unseen", [{**line, "operators": []}]).findings[0]
    assert (unseen.verdict, unseen.cures[0].patch) == ("suspect", "torch-inductor")


def test_variation_with_another_number_of_threads_is_a_race_too(tmp_path: Path) -> None:
    lines = [operator(), confirmed(results=1, threads={"1": "same", "4": "varies"})]
    found = diagnosed(tmp_path / "two", lines, confirm=30).findings[0]
    assert (found.verdict, found.blamed) == ("guilty", True)
    one = {"kind": "setting", "name": "torch.get_num_threads", "value": 1, "where": "read at end"}
    alone = by_subject(diagnosed(tmp_path / "one", [*lines, one], confirm=30))["aten::index_put"]
    assert alone.verdict == "cleared"  # with one thread, as the training has


def test_a_run_in_which_nothing_was_observed_says_so(tmp_path: Path) -> None:
    found = diagnosed(tmp_path / "run")
    assert found.findings == []
    assert any(note.startswith("no Python process was observed") for note in found.notes)


def test_ids_are_of_their_own_and_the_same_in_each_run(tmp_path: Path) -> None:
    lines = [operator(), operator(attributes={"accumulate": False}), confirmed(attributes={"accumulate": False})]
    runs = [diagnosed(tmp_path / name, lines, confirm=30) for name in ("one", "two")]
    ids = [one.id for one in runs[0].findings]
    assert ids == [one.id for one in runs[1].findings]
    assert len(set(ids)) == len(ids)


def test_what_was_found_is_written_and_read_again(tmp_path: Path) -> None:
    run = RunDirectory(profiled(tmp_path / "run", [operator(), confirmed()], confirm=30).write())
    assert findings.read(run) is None
    found = analyze(run)
    findings.write(run.path, found)
    assert findings.read(run) == found


def test_more_measured_calls_than_are_kept_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("reprokit.profiling.analyze"), "MAX_CONFIRMED", 3)
    found = diagnosed(tmp_path / "run", [confirmed(f"mine::op{number}") for number in range(5)])
    assert len(found.findings) == 3
    assert "2 distinct calls are left out: too many" in found.notes
