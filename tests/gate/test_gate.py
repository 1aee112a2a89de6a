"""The gate over real trainings: what passes, what fails, and what nobody can say, each with its exit status."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

from reprokit.core.errors import BadGate, ReprokitError
from reprokit.gate import findings_reports, github, requirements, trainings
from reprokit.gate.requirements import of_profile, read_accepted
from reprokit.gate.results import FAILED, PASSED, TROUBLE, Case, GateVerdict, TrainingResult
from reprokit.run_files.findings import CodePlace, Cure, Finding, FindingsFile
from reprokit.run_files.rundir import RunDirectory
from tests.rules import large_gradient
from tests.saved_tensors.writer import TensorWriter, run_directory
from tests.support import COMMAND, Done, Reprokit

TRAININGS = Path(__file__).parents[1] / "trainings"

REPEATS = """
import random, reprokit
reprokit.log(step=0, loss=random.random())
open("model.bin", "w").write(str(random.random()))
"""
VARIES = REPEATS + 'open("log.txt", "w").write("1" + str(__import__("time").monotonic_ns()))\n'
TIMED = (
    REPEATS
    + """
import json, time
json.dump({"score": 0.5, "runtime": time.perf_counter(), "created": time.time()}, open("result.json", "w"))
"""
)
SILENT = "pass\n"
FAILS = "raise SystemExit(3)\n"
UNORDERED = """import multiprocessing, reprokit
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        reprokit.log(step=0, loss=float(sum(sorted(pool.imap_unordered(abs, range(8))))))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Reprokit:
    reprokit = Reprokit(tmp_path_factory.mktemp("project"))
    for name, text in (
        ("repeats", REPEATS),
        ("varies", VARIES),
        ("timed", TIMED),
        ("silent", SILENT),
        ("fails", FAILS),
    ):
        reprokit.script(f"{name}.py", text)
    return reprokit


def gate(project: Reprokit, script: str, *options: str, environment: dict[str, str] | None = None) -> Done:
    return project.run("gate", *options, "--", sys.executable, f"{script}.py", environment=environment)


def test_a_training_that_repeats_passes(project: Reprokit, tmp_path: Path) -> None:
    done = gate(project, "repeats", "--pairs", "2", "--require-fidelity", "--junit", str(tmp_path / "junit.xml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("gate passed")
    suites = ET.parse(tmp_path / "junit.xml").getroot()
    assert [suite.get("name") for suite in suites] == ["repeats: paired", "repeats: paired 2"]
    assert (suites.get("failures"), suites.get("errors")) == ("0", "0")
    assert float(suites.get("time", "0")) > 0
    names = [case.get("name") for case in suites[0]]
    assert "outputs: model.bin" in names
    assert "fidelity" in names
    assert "are removed; keep them with -o DIR" in done.stderr


def test_bookkeeping_passes_and_is_counted(project: Reprokit) -> None:
    done = gate(project, "timed", "--no-calendar", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(done.stdout)["trainings"]
    (case,) = [case for case in found["cases"] if case["name"] == "outputs: bookkeeping"]
    assert (case["outcome"], case["right"]) == ("passed", "only bookkeeping: 1 duration and 1 date")
    assert "paired: nothing but bookkeeping differs: 1 duration and 1 date" in found["notes"]


@pytest.mark.slow
def test_runs_that_were_removed_are_not_named(project: Reprokit, tmp_path: Path) -> None:
    for options, kept in (([], 0), (["-o", str(tmp_path / "kept")], 2)):
        (found,) = json.loads(gate(project, "repeats", "--json", *options).stdout)["trainings"]
        assert len(found["runs"]) == kept
        assert all(Path(run).is_dir() for run in found["runs"])


@pytest.mark.slow
def test_gates_share_a_directory_of_runs(project: Reprokit, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (runs / "varies").mkdir(parents=True)
    (runs / "varies" / "notes.txt").write_text("the user's own")
    kept: list[str] = []
    for script, place in (("repeats", "repeats"), ("repeats", "repeats+2"), ("varies", "varies+2")):
        before = {path: path.stat().st_mtime_ns for path in runs.rglob("*") if not path.is_dir()}
        done = gate(project, script, "--json", "-o", str(runs))
        assert done.returncode == (script == "varies"), done.stdout + done.stderr
        (training,) = json.loads(done.stdout)["trainings"]
        assert training["name"] == script
        assert training["runs"] == [str(runs / place / name) for name in ("recording-1", "replay-1")]
        assert ("is there already" in done.stderr) == (place != script)
        assert {path: path.stat().st_mtime_ns for path in before} == before
        kept += training["runs"]
    assert all(Path(run, "run.json").exists() for run in kept)


def test_a_directory_that_can_hold_no_runs_is_refused_before_a_training(project: Reprokit, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert project.run("record", "-o", str(run), "--", "true").returncode == 0
    (tmp_path / "file").write_text("")
    before = sorted(path.name for path in run.iterdir())
    for place, words in (
        (run, "this is a run itself"),
        (tmp_path / "file", "File exists"),
        (tmp_path / "a/b", "No such"),
    ):
        done = gate(project, "repeats", "-o", str(place))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"reprokit: cannot-write-report: {place}: {words}"), done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert sorted(path.name for path in run.iterdir()) == before


def test_one_that_varies_fails_and_every_report_names_where(project: Reprokit, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    runner = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    done = gate(
        project, "varies", "--junit", str(tmp_path / "junit.xml"), "-o", str(tmp_path / "r"), environment=runner
    )
    assert done.returncode == 1
    assert "outputs: log.txt" in done.stdout
    told = [line for line in (*done.stdout.splitlines(), *summary.read_text().splitlines()) if "outputs: log" in line]
    assert [line.count("log.txt") for line in told] == [1] * len(told), told
    assert "::error title=varies%3A paired::" in done.stdout
    assert "log.txt" in summary.read_text()
    failures = ET.parse(tmp_path / "junit.xml").getroot().findall(".//testcase[failure]")
    assert len(failures) == 1
    assert "log.txt" in failures[0].get("name", "")
    assert (tmp_path / "r" / "varies" / "replay-1" / "run.json").exists()


def test_what_nobody_can_say_is_no_success(project: Reprokit) -> None:
    assert gate(project, "silent").returncode == 2
    done = gate(project, "fails")
    assert done.returncode == 2
    assert "exit status 3" in done.stdout
    assert project.run("gate", "--", "no-such-program").returncode == 2
    assert project.run("gate").returncode == 2
    assert project.run("gate", "--update-golden", "--", "true").returncode == 2


@pytest.mark.slow
def test_golden_and_paired_are_two_verdicts(project: Reprokit, tmp_path: Path) -> None:
    golden = ["--golden", str(tmp_path / "golden")]
    done = gate(project, "repeats", *golden)
    assert done.returncode == 2
    assert "no golden for this machine" in done.stdout
    assert gate(project, "repeats", *golden, "--update-golden").returncode == 0
    assert gate(project, "repeats", *golden).returncode == 0
    (place,) = (tmp_path / "golden").glob("repeats/*/run.json")
    whole = place.read_text()
    place.write_text("{")
    done = gate(project, "repeats", *golden)
    place.write_text(whole)
    assert (done.returncode, "paired passed, golden trouble" in done.stdout) == (2, True)
    environment = place.with_name("environment.json").rename(tmp_path / "environment.json")
    done = gate(project, "repeats", *golden)
    shutil.move(environment, place.parent)
    assert (done.returncode, "environment.json is missing" in done.stdout) == (2, True)
    project.script("repeats.py", REPEATS.replace("loss=random.random()", "loss=random.random() * 2"))
    done = gate(project, "repeats", *golden, "--json")
    project.script("repeats.py", REPEATS)
    assert done.returncode == 1
    cases = json.loads(done.stdout)["trainings"][0]["cases"]
    outcomes = {suite: {case["outcome"] for case in cases if case["suite"] == suite} for suite in ("paired", "golden")}
    assert outcomes["paired"] == {PASSED}
    assert FAILED in outcomes["golden"]


def test_what_does_not_repeat_becomes_no_golden(project: Reprokit, tmp_path: Path) -> None:
    done = gate(project, "varies", "--golden", str(tmp_path / "golden"), "--update-golden")
    assert done.returncode == 1
    assert "the golden was not changed" in done.stdout
    assert not (tmp_path / "golden").exists()


def test_a_list_of_trainings(project: Reprokit) -> None:
    python = json.dumps(sys.executable)
    (project.directory / "reprokit.toml").write_text(
        f"""
        [[training]]
        name = "good"
        command = [{python}, "repeats.py"]
        [training.require]
        overhead = 1000
        [[training]]
        name = "bad"
        command = [{python}, "varies.py"]
        """
    )
    done = project.run("gate", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert [(one["name"], one["outcome"]) for one in found["trainings"]] == [("good", PASSED), ("bad", FAILED)]
    assert [case["name"] for case in found["trainings"][0]["cases"] if case["suite"] == "required"] == ["overhead"]
    assert project.run("gate", "--only", "good").returncode == 0
    assert project.run("gate", "--only", "nobody").returncode == 2
    (project.directory / "reprokit.toml").write_text(ONE + 'directory = "nowhere"\n')
    done = project.run("gate")
    assert (done.returncode, "nowhere: there is no such directory" in done.stdout) == (2, True)


@pytest.mark.slow
def test_the_list_declares_what_may_differ_and_records_the_clock(project: Reprokit, tmp_path: Path) -> None:
    python, place = json.dumps(sys.executable), json.dumps(str(project.directory))
    training = f'[[training]]\nname = "{{}}"\ndirectory = {place}\ncommand = [{python}, "varies.py"]\n'
    own = tmp_path / "own.toml"
    own.write_text('ignore = ["log.txt"]\n' + training.format("a"))
    found = json.loads(project.run("gate", "--json", "--file", str(own)).stdout)
    assert (found["outcome"], [rule["times"] for rule in found["trainings"][0]["ignores"]]) == (PASSED, [1])
    native = 'import ctypes\nopen("log.txt", "w").write(str(ctypes.CDLL(None).getpid() * 7919))\n'
    project.script("native.py", REPEATS + native)
    training = training.replace("varies.py", "native.py")
    own.write_text(training.format("b") + "clock = true\n")
    assert project.run("gate", "--file", str(own)).returncode == 0, "native code is given the same process id"
    own.write_text(training.format("c"))
    assert project.run("gate", "--file", str(own)).returncode == 1
    assert project.run("gate", "--file", str(own), "--clock").returncode == 0
    own.write_text('ignore = ["*.pt"]\n' + training.format("a"))
    refused = project.run("gate", "--file", str(own))
    assert (refused.returncode, "ignore-refused" in refused.stderr) == (2, True)


def test_a_rule_that_would_hide_results_is_trouble(project: Reprokit) -> None:
    project.script("results.py", 'import time\nopen("loss.json", "w").write(f\'{{"loss": {time.monotonic_ns()}}}\')\n')
    done = gate(project, "results", "--ignore", "*.json")
    assert done.returncode == 2
    assert "it covers loss of loss.json, which names a result, and is always compared" in done.stdout


ONE = '[[training]]\nname = "a"\ncommand = ["x"]\n'


@pytest.mark.parametrize(
    "text",
    ["", "x", "[[training]]", ONE.replace('["x"]', "[]"), ONE.replace('"a"', '"../a"'), ONE + "unknown = 1\n", ONE * 2],
)
def test_a_bad_list_is_refused_in_a_line(text: str, reprokit: Reprokit) -> None:
    (reprokit.directory / "reprokit.toml").write_text(text)
    done = reprokit.run("gate")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "bad-gate" in done.stderr


@pytest.mark.slow
def test_what_a_profile_blames_can_be_asserted(project: Reprokit, tmp_path: Path) -> None:
    """Results that arrive as they are ready: here they are sorted, but a gate may be told to want none of that."""
    project.script("unordered.py", UNORDERED)
    sarif, gitlab = tmp_path / "found.sarif", tmp_path / "quality.json"
    done = gate(project, "unordered", "--no-findings", "--sarif", str(sarif), "--gitlab", str(gitlab))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "is not patched" in done.stdout
    (result,) = json.loads(sarif.read_text())["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("unordered.py", 4)
    (entry,) = json.loads(gitlab.read_text())
    assert entry["location"] == {"path": "unordered.py", "lines": {"begin": 4}}
    assert result["partialFingerprints"]["reprokitFinding/v1"] == entry["fingerprint"]


@pytest.mark.torch
@pytest.mark.extended
def test_rules_can_be_forbidden_to_raise_an_alarm(project: Reprokit, tmp_path: Path) -> None:
    script, sarif = str(TRAININGS / "judged_meanwhile.py"), tmp_path / "found.sarif"
    rules = ("--forbid-rule", "exploding-tensor", "--forbid-rule", "WeightUpdateRatio", "--forbid-rule", "Overfit")
    done = project.run("gate", *rules, "--sarif", str(sarif), "--json", "--", sys.executable, script, "8")
    assert done.returncode == 1, done.stderr
    (training,) = json.loads(done.stdout)["trainings"]
    cases = {case["name"]: case["outcome"] for case in training["cases"] if case["suite"] == "required"}
    assert cases["rule ExplodingTensor: loss"] == "failed"
    assert (cases["rule WeightUpdateRatio"], cases["rule Overfit"]) == ("passed", "trouble")
    (run,) = json.loads(sarif.read_text())["runs"]
    alarms = [one for one in run["results"] if one["ruleId"] == "rule/ExplodingTensor"]
    assert ("error", "ExplodingTensor: loss: it holds NaN") in {
        (one["level"], one["message"]["text"]) for one in alarms
    }
    done = project.run("gate", "--forbid-rule", "Nothing", "--", sys.executable, script, "8")
    assert (done.returncode, "bad-rule" in done.stderr) == (2, True)


def test_a_forbidden_rule_fails_passes_or_is_trouble(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run")
    writer = TensorWriter(run)
    writer.name("loss", "losses")
    for step in range(3):
        writer.reduce(step, "loss", mean="inf", min="inf", max="inf")  # type: ignore[arg-type]
        writer.pass_step(step)
    specs = ("ExplodingTensor", "LossNotDecreasing", "Overfit", f"{large_gradient.__file__}:Broken")
    session = requirements.judged_by_rules(RunDirectory(run), specs)
    outcomes = {case.name: case.outcome for case in requirements.of_rules(session)}
    assert outcomes == {
        "rule ExplodingTensor: loss": FAILED,
        "rule LossNotDecreasing": PASSED,
        "rule Overfit": TROUBLE,
        "rule Broken": TROUBLE,
    }


def test_places_count_from_the_top_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As code hosts want them, also where the gate runs further down."""
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    finding = Finding(
        id="f", kind="operator", subject="x", verdict="guilty", where=[CodePlace(file="train.py", line=3)]
    )
    one = TrainingResult(
        name="a", command=("python", "train.py"), directory=str(tmp_path / "below"), cases=(), findings=(finding,)
    )
    verdict = GateVerdict(reprokit="1", started="", machine="", trainings=(one,))
    for place, expected in (("", "train.py"), (str(tmp_path), "below/train.py"), ("/elsewhere", "train.py")):
        monkeypatch.setenv("GITHUB_WORKSPACE", place)
        (entry,) = findings_reports.code_quality(verdict)
        assert entry["location"] == {"path": expected, "lines": {"begin": 3}}


def test_findings_that_are_patched_or_accepted_pass() -> None:
    finding = Finding(id="f", kind="operator", subject="aten::x", cures=[Cure(patch="torch-operator=aten::x")])
    found = FindingsFile(run_id="r", findings=[finding])

    def outcomes(patches: tuple[str, ...], accepted: set[str] | None) -> list[str]:
        return [case.outcome for case in of_profile(found, patches, accepted)]

    assert outcomes((), None) == outcomes((), set()) == outcomes(("threads=1",), {"g"}) == [FAILED]
    assert outcomes(("torch-operator=aten::x",), None) == outcomes((), {"f"}) == [PASSED]


def many(count: int) -> GateVerdict:
    cases = [
        Case(suite="paired", name=f"outputs: <b>{number}</b>", outcome=FAILED, message="| other\nbytes " * 100)
        for number in range(count)
    ]
    one = TrainingResult(name="a", command=("x",), directory="/", cases=tuple(cases))
    return GateVerdict(reprokit="1", started="2026-01-01T00:00:00Z", machine="", trainings=(one,) * 100)


@pytest.mark.slow
def test_reports_stay_within_the_limits_of_github() -> None:
    verdict = many(5000)
    text = github.summary(verdict)
    assert len(text.encode()) < 1 << 20
    assert "<b>" not in text.replace("\\<b", "")
    lines = list(github.workflow_commands(verdict))
    assert len(lines) == 10
    assert "499991 more" in lines[-1]
    assert all("\n" not in line for line in lines)


def test_nothing_checked_is_trouble() -> None:
    empty = GateVerdict(reprokit="1", started="", machine="", trainings=())
    assert (empty.outcome, empty.exit_status) == (TROUBLE, 2)
    silent = TrainingResult(name="a", command=("x",), directory="/", cases=())
    passed = TrainingResult(
        name="b", command=("x",), directory="/", cases=(Case(suite="paired", name="n", outcome=PASSED),)
    )
    both = GateVerdict(reprokit="1", started="", machine="", trainings=(silent, passed))
    assert both.exit_status == 2
    assert findings_reports.sarif(both)["runs"][0]["results"] == []
    assert findings_reports.code_quality(both) == []


OUTCOMES = ("passed", "failed", "trouble")  # by the gate's exit status
ACTION = yaml.safe_load((Path(__file__).parents[2] / "action.yml").read_text())


def _run_action(
    project: Reprokit, temporary: Path, command: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """Run the gate's step as a runner's shell would, by this reprokit, and return its outputs."""
    inputs = {"command": command, "options": "--pairs '1'", "golden": ""}
    step = ACTION["runs"]["steps"][1]
    given = {name: inputs[text[len("${{ inputs.") : -len(" }}")]] for name, text in step["env"].items()}
    program = temporary / "reprokit" / "bin" / "reprokit"
    if not program.exists():
        program.parent.mkdir(parents=True)
        program.symlink_to(COMMAND)
    files = {"GITHUB_OUTPUT": str(temporary / "output"), "GITHUB_STEP_SUMMARY": str(temporary / "summary")}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]],
        cwd=project.directory,
        env={**os.environ, **given, **files, "RUNNER_TEMP": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = Path(files["GITHUB_OUTPUT"]).read_text().splitlines()
    Path(files["GITHUB_OUTPUT"]).unlink()
    return done, dict(line.split("=", 1) for line in lines)


@pytest.mark.slow
def test_the_steps_of_the_action_do_what_they_say(project: Reprokit, tmp_path: Path) -> None:
    hostile = "'$(touch expanded)' `touch expanded` $(touch expanded)"  # arguments of the script, which ignores them
    for status, script in enumerate(("repeats", "varies", "silent")):
        done, outputs = _run_action(project, tmp_path, f"'{sys.executable}' {script}.py {hostile}")
        assert (done.returncode, outputs["outcome"]) == (status, OUTCOMES[status]), done.stdout + done.stderr
        assert set(outputs) == set(ACTION["outputs"])
        assert Path(outputs["junit"]).read_text().startswith("<?xml")
        assert json.loads(Path(outputs["sarif"]).read_text())["version"] == "2.1.0"
        assert Path(outputs["runs"]).is_dir()
    assert not (project.directory / "expanded").exists()
    assert "reprokit gate: failed" in (tmp_path / "summary").read_text()


@pytest.mark.slow
def test_two_uses_of_the_action_in_one_job_keep_apart(project: Reprokit, tmp_path: Path) -> None:
    uses = []
    for script, status in (("repeats", 0), ("varies", 1)):
        done, outputs = _run_action(project, tmp_path, f"'{sys.executable}' {script}.py")
        assert (done.returncode, outputs["outcome"]) == (status, OUTCOMES[status]), done.stdout + done.stderr
        uses.append(outputs)
    assert len({use[name] for use in uses for name in ("junit", "sarif", "runs")}) == 6
    for use, name, failures in ((uses[0], "repeats", "0"), (uses[1], "varies", "1")):
        suites = ET.parse(use["junit"]).getroot()
        assert (suites[0].get("name"), suites.get("failures")) == (f"{name}: paired", failures)
        assert len(json.loads(Path(use["sarif"]).read_text())["runs"][0]["results"]) == int(failures)
        assert [path.name for path in Path(use["runs"]).iterdir()] == [name]
    summary = (tmp_path / "summary").read_text()
    assert "reprokit gate: passed" in summary
    assert "reprokit gate: failed" in summary


def test_the_action_refuses_quotes_that_are_not_closed(project: Reprokit, tmp_path: Path) -> None:
    done, outputs = _run_action(project, tmp_path, f"'{sys.executable} repeats.py")
    assert (done.returncode, outputs) == (2, {"outcome": "trouble"})


def test_metrics_in_files_of_trackers_are_cases(reprokit: Reprokit) -> None:
    script = """
import os
os.makedirs("mlruns/0/" + "a" * 32 + "/metrics", exist_ok=True)
open("mlruns/0/" + "a" * 32 + "/metrics/loss", "w").write("1 %d 0" % VALUE)
open("model.bin", "w").write("same")
"""
    for value, status in (("7", 0), ("os.getpid()", 1)):
        reprokit.script("train.py", script.replace("VALUE", value))
        done = reprokit.run("gate", "--json", "--", sys.executable, "train.py")
        assert done.returncode == status
        cases = json.loads(done.stdout)["trainings"][0]["cases"]
        (case,) = [case for case in cases if case["name"].startswith("metrics in files: ")]
        assert case["name"] == "metrics in files: loss in mlruns/0/RUN"
        assert case["outcome"] == ("passed" if status == 0 else "failed")


def test_files_without_an_end_are_refused() -> None:
    with pytest.raises(ReprokitError, match="not a regular file"):
        read_accepted(Path("/dev/zero"))
    with pytest.raises(BadGate, match="not a regular file"):
        trainings.read(Path("/dev/zero"), ())
