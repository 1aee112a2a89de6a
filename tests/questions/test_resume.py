"""A training that is interrupted and resumed is the whole one, or the parts that its checkpoint lacks are named."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reprokit.model.resumption import ResumeFinding
from reprokit.questions import resume_text
from reprokit.questions.resumed_run import WholeRun, compare_runs
from reprokit.run_files.rundir import RunDirectory
from tests.support import Done, Reprokit, schema_of, shipped_schema, training_text

TRAININGS = Path(__file__).parents[1] / "trainings"
GENERATORS = ["PyTorch generator", "Python generator", "NumPy generator"]
REST = ["other-models", "optimizer", "settings", "schedule", "scaler", *GENERATORS, "data"]
BEGINS_ANEW = training_text("pytorch_begins_anew.py")
ALL = ("average", "optimizer", "schedule", "scaler", "torch", "python", "numpy", "position")


def resume(
    directory: Path,
    training: str,
    *left_out: str,
    options: tuple[str, ...] = ("--at", "12"),
    python: str = sys.executable,
) -> Done:
    shutil.copy(TRAININGS / training, directory / "train.py")
    command = (python, "train.py", *left_out)
    return Reprokit(directory).run("resume", *options, "--json", "-o", "runs", "--", *command)


def found(done: Done, status: int) -> dict[str, Any]:
    assert done.returncode == status, done.stderr
    finding: dict[str, Any] = json.loads(done.stdout)
    return finding


@pytest.mark.extended
def test_a_training_in_the_background_of_a_shell_script_is_interrupted_too(tmp_path: Path) -> None:
    """There it starts with SIGINT ignored."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        finding = found(resume(tmp_path, "pytorch_resumed.py"), 0)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert (finding["verdict"], finding["interrupted_at"], finding["signal"]) == ("exact", 12, "SIGINT")


@pytest.mark.slow
def test_a_whole_checkpoint_is_exact_wherever_the_training_was_interrupted(tmp_path: Path) -> None:
    """The checkpoint is of step 9, in the middle of an epoch: the position is found, and batches that are skipped."""
    finding = found(resume(tmp_path, "pytorch_resumed.py"), 0)
    assert finding["verdict"] == "exact"
    assert (finding["whole_steps"], finding["interrupted_at"], finding["resumed_at"]) == (24, 12, 9)
    assert (finding["is_found"], finding["compared"], finding["files"]) == (True, 15, ["checkpoint.pt"])
    assert (finding["missing"], finding["parts"], finding["first"]) == ([], [], None)
    assert list(finding["runs"]) == ["whole", "interrupted", "resumed"]
    for pair in (("runs/whole", "runs/resumed"), ("runs/resumed", "runs/whole")):
        verified = Reprokit(tmp_path).run("verify", *pair)
        assert verified.returncode == 1
        first = verified.stdout.partition("\n")[0]
        assert "begins with the parameters that step 8 left" in first
        assert first.endswith("all 15 steps from there on are identical")
    report = Reprokit(tmp_path).run("report", "runs/whole", "--format", "markdown").stdout
    assert "## Interrupted and resumed\n\n- exact: the resumed training is the whole one, bit for bit" in report
    assert Reprokit(tmp_path).run("report", "runs/whole", "-o", "report.html").returncode == 0
    assert "Interrupted and resumed</h2>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("left_out", "missing"),
    [
        pytest.param(("schedule",), ["schedule"], id="schedule"),
        *[
            pytest.param(left_out, missing, id="+".join(left_out), marks=pytest.mark.extended)
            for left_out, missing in (
                (("optimizer", "transposed"), ["optimizer", "settings"]),
                (("scaler",), ["scaler"]),
                (("buffers",), ["buffers"]),
                (("average",), ["other-models"]),
                (("torch", "python", "numpy"), GENERATORS),
                (("numpy",), GENERATORS[2:]),
                (("position",), ["data"]),
                (("model",), ["parameters"]),
                (ALL, REST),
            )
        ],
    ],
)
def test_the_parts_that_a_checkpoint_lacks_are_named_and_proved(
    tmp_path: Path, left_out: tuple[str, ...], missing: list[str]
) -> None:
    finding = found(resume(tmp_path, "pytorch_resumed.py", *left_out), 1)
    assert finding["missing"] == missing
    assert finding["proved"]
    assert finding["resumed_at"] == 9


@pytest.mark.parametrize(
    ("left_out", "part"),
    [
        pytest.param("of_critic", "optimizer", marks=pytest.mark.extended),
        pytest.param("of_maker", "optimizer", marks=pytest.mark.extended),
        pytest.param("critic", "parameters", marks=pytest.mark.extended),
    ],
)
def test_a_part_of_one_of_two_optimizers_that_take_turns_is_named(tmp_path: Path, left_out: str, part: str) -> None:
    finding = found(resume(tmp_path, "pytorch_resumed_adversaries.py", left_out, options=("--at", "8")), 1)
    assert (finding["resumed_at"], finding["missing"], finding["proved"]) == (6, [part], True)
    assert [named["part"] for named in finding["parts"]] == [part]


@pytest.mark.parametrize(
    ("left_out", "at", "step", "missing"),
    [
        pytest.param((), 9, 7, [], marks=pytest.mark.extended),
        pytest.param(("gradients",), 9, 7, ["gradients"], marks=pytest.mark.extended),
        pytest.param(("generators",), 17, 15, GENERATORS[:2], marks=pytest.mark.extended),
        pytest.param(("flags",), 17, 15, ["module-settings"], marks=pytest.mark.extended),
    ],
)
def test_what_a_loop_by_hand_keeps_between_updates_is_named_and_proved(
    tmp_path: Path, left_out: tuple[str, ...], at: int, step: int, missing: list[str]
) -> None:
    """The checkpoint of step 7 is made in its middle, that of step 15 just before the script draws the next order."""
    options = ("--at", str(at))
    finding = found(resume(tmp_path, "pytorch_resumed_by_hand.py", *left_out, options=options), bool(missing))
    assert (finding["resumed_at"], finding["missing"], finding["proved"]) == (step, missing, bool(missing))


@pytest.mark.extended
def test_a_training_that_is_resumed_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    finding = found(resume(tmp_path, "pytorch_resumed_epochs.py", options=("--at", "20")), 1)
    assert (finding["resumed_at"], finding["missing"], finding["proved"]) == (16, GENERATORS[:1], True)


@pytest.mark.extended
def test_a_long_training_is_not_resumed_to_its_end_where_it_differs_at_once(tmp_path: Path) -> None:
    """The order of batches follows from the generator, which is put in alone first: one trial proves it."""
    finding = found(resume(tmp_path, "pytorch_resumed_epochs.py", "800", options=()), 1)
    assert (finding["missing"], finding["proved"], finding["trials"]) == (GENERATORS[:1], True, 1)
    assert 32 <= finding["compared"] < 3200
    assert list(finding["runs"]) == ["whole", "interrupted", "resumed", "whole-asked", "trial-1"]


def of_script(finding: dict[str, Any]) -> list[str]:
    """Return the variables of the script that a finding names."""
    return [name for part in finding["parts"] if part["part"] == "variables" for name in part["names"]]


@pytest.mark.parametrize(
    "counted", [pytest.param("weight", marks=pytest.mark.extended), pytest.param("rate", marks=pytest.mark.extended)]
)
def test_what_the_script_counts_itself_is_named_and_proved(tmp_path: Path, counted: str) -> None:
    finding = found(resume(tmp_path, "pytorch_resumed_counts.py", counted, options=("--at", "20")), 1)
    assert (finding["resumed_at"], finding["missing"], finding["proved"]) == (16, ["variables"], True)
    assert of_script(finding) == ["train.py: steps: 17 in the whole training, 1 here"]
    files = [file for file in (tmp_path / "runs").rglob("*") if file.is_file()]
    assert [file for file in files if b"not-to-be-saved" in file.read_bytes()] == [], "equal values are not saved"


@pytest.mark.extended
def test_a_training_that_ends_elsewhere_lacks_what_decides_its_end(tmp_path: Path) -> None:
    """All steps that both took are equal, so that a trial counts only if it ends where the whole training does."""
    finding = found(resume(tmp_path, "pytorch_resumed_counts.py", "patience", options=("--at", "20")), 1)
    assert (finding["resumed_at"], finding["compared"], finding["window"]) == (16, 24, 24)
    assert (finding["missing"], finding["proved"]) == (["variables"], True)
    assert of_script(finding) == ["train.py: steps: 17 in the whole training, 1 here"]


@pytest.mark.slow
def test_where_it_shows_is_said_of_what_cannot_be_put_in(tmp_path: Path) -> None:
    """The loop goes on with its own numbers, whatever its variable is set to."""
    finding = found(resume(tmp_path, "pytorch_resumed_counts.py", "loop", options=("--at", "20")), 1)
    assert (finding["resumed_at"], finding["missing"], finding["proved"]) == (16, [], False)
    assert "train.py: number: 17 in the whole training, 1 here" in of_script(finding)
    notes = "; ".join(finding["notes"])
    assert "differs by its loss first" in notes
    assert "the cause is in the forward computation" in notes


@pytest.mark.parametrize(
    ("kind", "missing", "names"),
    [
        pytest.param("nothing", [], [], marks=pytest.mark.slow),
        pytest.param("nothing optimizer", ["optimizer"], [], marks=pytest.mark.extended),
        pytest.param(
            "trainer",
            ["variables"],
            ["train.py: trainer.global_step in main(): 16 in the whole training, 0 here"],
            marks=pytest.mark.extended,
        ),
        pytest.param("rewards", ["variables"], ["train.py: rewards in main()"], marks=pytest.mark.extended),
        pytest.param("closure", ["variables"], None, marks=pytest.mark.extended),
        pytest.param("average", ["variables"], None, marks=pytest.mark.extended),
    ],
)
def test_variables_of_a_script_are_named_only_if_they_matter(
    tmp_path: Path, kind: str, missing: list[str], names: list[str] | None
) -> None:
    finding = found(
        resume(tmp_path, "pytorch_resumed_variables.py", *kind.split(), options=("--at", "20")), len(missing)
    )
    assert (finding["resumed_at"], finding["missing"], finding["proved"]) == (16, missing, bool(missing))
    recorded = (tmp_path / "runs" / "whole" / "answers" / "state.jsonl").read_text()
    assert '"parameters"' in recorded
    assert '"variables"' not in recorded, "the recorded run reads no variables"
    words = {"closure": "anneal.temperature", "average": "average.shadow"}.get(kind)
    assert of_script(finding) == names if names is not None else all(str(words) in name for name in of_script(finding))


@pytest.mark.extended
def test_weights_that_change_behind_an_update_show_where_it_is_resumed(tmp_path: Path) -> None:
    finding = found(resume(tmp_path, "pytorch_resumed_counts.py", "clamped", options=("--at", "20")), 0)
    assert (finding["resumed_at"], finding["is_found"], finding["compared"]) == (16, True, 48)


@pytest.mark.extended
def test_a_trial_counts_in_its_window_only(tmp_path: Path) -> None:
    """The trial takes further steps until it is interrupted, for which no batches are put in."""
    finding = found(resume(tmp_path, "pytorch_resumed_counts.py", "order", options=("--at", "20")), 1)
    assert (finding["resumed_at"], finding["missing"], finding["proved"]) == (16, ["data"], True)
    whole, trial = (RunDirectory(tmp_path / "runs" / name) for name in ("whole", f"trial-{finding['trials']}"))
    compared = compare_runs(WholeRun(whole, whole, 16), trial, window=finding["window"])
    assert compared.is_same


@pytest.mark.gpu
@pytest.mark.parametrize(("left_out", "missing"), [((), []), (("generator",), ["GPU generators"])])
def test_a_training_on_a_gpu(tmp_path: Path, left_out: tuple[str, ...], missing: list[str]) -> None:
    options = ("--after-file", "*.pt")
    finding = found(resume(tmp_path, "pytorch_cuda_resumed.py", *left_out, options=options), len(missing))
    assert (finding["is_found"], finding["resumed_at"], finding["missing"]) == (True, 15, missing)


@pytest.mark.extended
def test_it_is_interrupted_by_a_kill_once_a_file_is_there(tmp_path: Path) -> None:
    options = ("--after-file", "*.pt", "--signal", "KILL")
    finding = found(resume(tmp_path, "pytorch_resumed.py", options=options), 0)
    assert (finding["signal"], finding["interrupted_at"], finding["resumed_at"]) == ("SIGKILL", 4, 3)


@pytest.mark.slow
def test_what_cannot_be_told_is_trouble(tmp_path: Path) -> None:
    none = resume(tmp_path, "pytorch_resumed.py", "all")
    assert none.returncode == 2
    assert "has left no file after 12 steps" in none.stderr


@pytest.mark.extended
def test_a_moment_that_never_comes_is_trouble(tmp_path: Path) -> None:
    for options, words in (
        (("--at", "24"), "takes 24 steps, so it cannot be interrupted at step 24"),
        (("--after-file", "*.zip"), r"no new *.zip came before its last step"),
        (("--resume-with", "true"), "the resumed training took no step"),
    ):
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        done = resume(tmp_path, "pytorch_resumed.py", options=options)
        assert done.returncode == 2
        assert words in done.stderr
    done = Reprokit(tmp_path).run("resume", "--", sys.executable, "-c", "print(1)")
    assert done.returncode == 2
    assert "no optimizer took a step" in done.stderr


@pytest.mark.extended
def test_a_gate_fails_unless_the_resumed_training_is_exact(tmp_path: Path) -> None:
    shutil.copy(TRAININGS / "pytorch_resumed.py", tmp_path / "train.py")
    for left_out, status in (("nothing", 0), ("scaler", 1)):
        command = (sys.executable, "train.py", left_out)
        files = ("--junit", "junit.xml", "--sarif", "gate.sarif")
        done = Reprokit(tmp_path).run("gate", "--clean", "--exact-resume", "--json", *files, "--", *command)
        assert done.returncode == status, done.stderr
        for name in ("junit.xml", "gate.sarif"):
            assert ("the checkpoint lacks the loss scaler" in (tmp_path / name).read_text()) == bool(status)
        cases = json.loads(done.stdout)["trainings"][0]["cases"]
        (case,) = (case for case in cases if case["name"] == "exact resume")
        assert case["outcome"] == ("failed" if status else "passed")
        assert not status or "the checkpoint lacks the loss scaler" in case["message"]


@pytest.mark.parametrize(
    ("kind", "fact", "name", "missing"),
    [
        *(
            pytest.param(*case, marks=pytest.mark.slow if case[0] == "files" else pytest.mark.extended)
            for case in [
                ("files", "outputs", "best-10.pt", "best"),
                ("average", "outputs", "final.pt", "average.copied"),
                ("deque", "console", "stdout", "recent"),
                ("closure", "console", "stdout", "add"),
                ("function", "console", "stdout", "counted"),
                ("class", "console", "stdout", "Best"),
                ("counter", "console", "stdout", "numbers"),
                ("iterator", "console", "stdout", "rates"),
                ("logged", "process metrics", "logged mean", "recent"),
                ("directory", "outputs", "counted-23", "numbers"),
            ]
        ),
    ],
)
def test_what_differs_beside_the_steps_is_named_with_its_cause(
    tmp_path: Path, kind: str, fact: str, name: str, missing: str
) -> None:
    finding = found(resume(tmp_path, "pytorch_resumed_beside.py", kind), 1)
    assert (finding["verdict"], finding["first"], finding["compared"]) == ("not exact", None, 14)
    assert (fact, name) in {(other["fact"], other["name"]) for other in finding["others"]}
    assert finding["proved"], finding
    (part,) = finding["parts"]
    assert [part["part"]] == finding["missing"]
    assert all(re.search(rf"\b{re.escape(missing)}\b", text) for text in part["names"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["appended", pytest.param("nothing", marks=pytest.mark.extended)])
def test_what_a_resumed_training_adds_or_says_of_itself_is_no_difference(tmp_path: Path, kind: str) -> None:
    """It appends to a log, which then holds some steps twice, and prints that it goes on."""
    finding = found(resume(tmp_path, "pytorch_resumed_beside.py", kind), 0)
    assert (finding["verdict"], finding["others"], finding["resumed_at"]) == ("exact", [], 10)


@pytest.mark.slow
def test_what_was_declared_may_differ_and_stands_in_the_verdict(tmp_path: Path) -> None:
    (tmp_path / "reprokit.toml").write_text('ignore_console = ["token [0-9]+"]\n')
    options: tuple[str, ...] = ("--at", "12", "--ignore", "token.txt")
    finding = found(resume(tmp_path, "pytorch_resumed_beside.py", "token", options=options), 0)
    applied = [(ignored["rule"], ignored["origin"], ignored["times"]) for ignored in finding["ignores"]]
    assert applied == [("token.txt", "the command line", 1), ("token [0-9]+", "reprokit.toml", 1)]
    shutil.rmtree(tmp_path / "runs")
    options = (*options, "--no-ignores", "--ignore", "new.txt")
    finding = found(resume(tmp_path, "pytorch_resumed_beside.py", "token", options=options), 1)
    assert [(other["fact"], other["name"]) for other in finding["others"]] == [("console", "stdout")]
    text = list(resume_text.lines(msgspec.convert(finding, ResumeFinding)))
    assert "  what of it is no result may be declared: --ignore-console REGEX" in text
    assert sum(line.startswith("  ignored: --ignore ") for line in text) == 2
    assert [ignored["times"] for ignored in finding["ignores"]] == [1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["trail", pytest.param("checkpoint*", marks=pytest.mark.extended)])
def test_weights_and_the_trail_are_never_ignored(tmp_path: Path, rule: str) -> None:
    done = resume(tmp_path, "pytorch_resumed_beside.py", "average", options=("--at", "12", "--ignore", rule))
    assert done.returncode == 2
    assert "always compared" in done.stderr


@pytest.mark.extended
def test_files_in_hidden_places_are_noted_as_not_compared(tmp_path: Path) -> None:
    ended = resume(tmp_path, "pytorch_resumed_beside.py", "hidden")
    (note,) = found(ended, 0)["notes"]
    assert note.startswith("not compared: 1 file was written to a cache or a hidden place")
    assert note.endswith("first .cache/counted")


@pytest.mark.extended
def test_a_checkpoint_outside_of_the_copies_is_named(tmp_path: Path) -> None:
    """All trainings share it, so that the resumed one could find what the whole one has left last."""
    shared = tmp_path / "shared.pt"
    (tmp_path / "work").mkdir()
    ended = resume(tmp_path / "work", "pytorch_resumed_beside.py", "nothing", str(shared))
    assert ended.returncode == 2
    assert f"it read {shared}, which lies outside of the copies" in ended.stderr


@pytest.mark.extended
def test_nothing_is_claimed_of_what_was_printed_and_not_kept(tmp_path: Path) -> None:
    finding = found(resume(tmp_path, "pytorch_resumed_beside.py", "much"), 1)
    assert (finding["first"], finding["trials"], finding["compared"]) == (None, 0, 14)
    ((fact, compared),) = [(other["fact"], other["compared"]) for other in finding["others"]]
    assert (fact, compared) == ("console", False)


@pytest.mark.slow
def test_a_training_that_reads_nothing_of_the_first_one_is_none_that_resumes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BEGINS_ANEW)
    done = Reprokit(tmp_path).run("resume", "--", sys.executable, "train.py")
    assert done.returncode == 2
    assert "read none of the files that the interrupted one left" in done.stderr
    assert "--resume-with" in done.stderr
    assert "training 4" not in done.stderr


def test_the_document_has_a_schema() -> None:
    schema = shipped_schema("resume")
    assert schema == schema_of(ResumeFinding, schema["$id"], title=schema["title"])
