"""Findings on one screen, and as a document."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from reprokit.core.errors import RunDamaged
from reprokit.model.run import Fidelity
from reprokit.model.states import not_loaded, off
from reprokit.profiling import analyze, report
from reprokit.run_files import findings, rundir
from reprokit.run_files.findings import CodePlace, Finding, FindingsFile
from reprokit.run_files.rundir import RunDirectory
from tests.profiling.observed import confirmed, operator, profiled
from tests.support import Reprokit

LINES = 40  # of a screen, each of which may be a long one


def schema(name: str) -> Any:
    return json.loads(resources.files("reprokit").joinpath(f"schemas/{name}.schema.json").read_text())


def many() -> list[dict[str, Any]]:
    """A run with more of everything than fits on a screen."""
    lines: list[dict[str, Any]] = []
    for number in range(40):
        for results in (1, 2 + number):
            lines.append(confirmed(f"mine::op{number}_{results}", "forward", results=results))
    lines += [operator("aten::bernoulli_", "forward", attributes={}), operator(), {"kind": "note", "text": "a note"}]
    lines += [{"kind": "completion", "name": "Pool.imap_unordered", "calls": 3, "where": []}]
    return lines


def test_the_screen_explains_the_first_and_names_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory(profiled(tmp_path / "run", [operator(), confirmed()], confirm=30).write())
    report.print_findings(run, analyze(run))
    screen = capsys.readouterr().out
    assert "1 guilty" in screen.splitlines()[0]
    assert "operator aten::index_put backward on cpu, 20 calls: gave 7 results in 30 repeats here" in screen
    assert "in train.py:31 (loss_of)" in screen
    assert "cure: --patch torch-operator=aten::index_put" in screen
    assert "reprokit reproduce -- python train.py --rate 0.1" in screen


def test_however_much_there_is_it_is_one_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory(profiled(tmp_path / "run", many(), confirm=30).write())
    report.print_findings(run, analyze(run))
    screen = capsys.readouterr().out
    assert len(screen.splitlines()) <= LINES
    assert "40 guilty" in screen
    assert "gave 41 results in 30 repeats" in screen
    assert "and 34 more" in screen


def test_nothing_found_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory(profiled(tmp_path / "run", []).write())
    report.print_findings(run, analyze(run))
    assert "no findings" in capsys.readouterr().out


def test_what_was_watched_is_said_and_what_was_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    building = profiled(tmp_path / "run", [], system_calls=off("strace is not on PATH"))
    building.run.calendar, building.run.agent = False, not_loaded("no Python process began it")
    building.run.fidelity = Fidelity(exact=4, derived=2)
    run = RunDirectory(building.write())
    report.print_findings(run, analyze(run))
    screen = " ".join(capsys.readouterr().out.split())
    assert (
        "nothing that was watched is known to vary (requests for randomness); not watched: threads of native code, "
        "the time of day (--no-calendar), what programs other than Python compute, why this replay asked for entropy "
        "in another way than its recording (4 exact, 2 derived)" in screen
    )
    assert "should replay" not in screen


def test_a_command_that_failed_is_not_said_to_repeat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    building = profiled(tmp_path / "run", [operator("aten::add", "forward", attributes={})])
    building.run.exit_code, building.run.signal = None, "SIGKILL"
    run = RunDirectory(building.write())
    report.print_findings(run, analyze(run))
    screen = capsys.readouterr().out
    assert "the command ended by SIGKILL: what it would have done after that is not known" in screen
    assert "known to vary" not in screen


def test_nothing_in_a_run_reaches_the_terminal_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;owned\x07[red]\u202e\n"
    line = confirmed(f"mine::{evil}", "forward", where=[[f"/tmp/{evil}.py", 3, evil]], problem=evil)
    run = RunDirectory(profiled(tmp_path / "run", [line, {"kind": "note", "text": evil}], confirm=30).write())
    report.print_findings(run, analyze(run))
    screen = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\u202e"} & set(screen)
    assert "\\x1b]0;owned" in screen


def test_the_document_fits_its_schema(tmp_path: Path) -> None:
    run = RunDirectory(profiled(tmp_path / "run", many(), confirm=30, steps=5).write())
    document = json.loads(json.dumps(report.document(run, analyze(run))))
    jsonschema.Draft202012Validator.check_schema(schema("findings"))
    jsonschema.validate(document, schema("findings"))
    assert document["findings"][0]["verdict"] == "guilty"


def test_show_mentions_the_findings_and_shows_them_again(tmp_path: Path, reprokit: Reprokit) -> None:
    run = RunDirectory(profiled(tmp_path / "run", [operator(), confirmed()], confirm=30).write())
    assert "1 guilty" in reprokit.run("show", "--findings", "run").stdout  # of a run whose launcher died before
    findings.write(run.path, analyze(run))
    shown = reprokit.run("show", "run")
    assert "1 guilty" in shown.stdout
    document = json.loads(reprokit.run("show", "--json", "run").stdout)
    jsonschema.validate(document, schema("show"))
    assert document["findings"]["guilty"] == 1
    again = json.loads(reprokit.run("show", "--findings", "--json", "run").stdout)
    jsonschema.validate(again, schema("findings"))
    assert again["findings"][0]["subject"] == "aten::index_put"


def test_a_run_that_was_not_profiled_says_so(tmp_path: Path, reprokit: Reprokit) -> None:
    building = profiled(tmp_path / "run")
    building.run.profiling = None
    building.write()
    done = reprokit.run("show", "--findings", "run")
    assert done.returncode == 2
    assert done.stderr.startswith("reprokit: not-profiled: ")


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "innocent"},
        {"kind": "rumour"},
        {"calls": -1},
        {"rank": "high"},
        {"where": [{"file": "x", "line": "3"}]},
        {"surprise": 1},
    ],
)
def test_findings_that_are_none_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    run = RunDirectory(profiled(tmp_path / "run").write())
    one = Finding(id="a", kind="operator", subject="b", where=[CodePlace("c", 1)])
    findings.write(run.path, FindingsFile(run_id="id", findings=[one]))
    assert findings.read(run) is not None
    content = json.loads((run.path / rundir.FINDINGS).read_text())
    del content["check"]
    content["findings"][0].update(change)
    rundir.write_json(run.path / rundir.FINDINGS, content)
    with pytest.raises(RunDamaged, match=r"findings\.json"):
        findings.read(run)


def test_findings_that_were_altered_are_refused_and_hide_nothing_else(tmp_path: Path, reprokit: Reprokit) -> None:
    run = profiled(tmp_path / "run").write()
    findings.write(run, FindingsFile(run_id="id"))
    path = run / rundir.FINDINGS
    path.write_text(path.read_text().replace('"id"', '"di"'))
    shown = reprokit.run("show", "run")
    assert shown.returncode == 0
    assert "findings.json was altered" in shown.stdout
