"""reprokit run, --on-nan and reprokit snapshot, around trainings that capture and redo as frameworks' parts do.

What stands for a training here calls the agent's capture itself, or writes the result that an agent would write, so
that each case takes a fraction of a second. The parts of the frameworks have tests of their own.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from reprokit.agent.capture import Part, SnapshotContents, Store, store
from tests.support import COMMAND, Done, Reprokit, python, training_text, wait_until

TRIGGER = {"kind": "gradient", "name": "fc2.weight", "count": 12, "of": 5120, "where": [["train.py", 7, "main"]]}

CAPTURING = training_text("captured_by_itself.py").replace("TRIGGER = {}", f"TRIGGER = {TRIGGER!r}")


def header(run: Path, name: str = "step-00000003") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "snapshots" / name / "snapshot.json").read_text())
    return content


def schema(name: str) -> Any:
    return json.loads(resources.files("reprokit").joinpath(f"schemas/{name}.schema.json").read_text())


# reprokit run


def test_a_run_is_the_command_as_it_is(reprokit: Reprokit) -> None:
    code = "import os, sys; print(sys.stdin.read(), 'LD_PRELOAD' in os.environ); sys.exit(7)"
    done = reprokit.run("run", "--on-nan", "capture", "--", *python(code), stdin="what is piped in")
    assert (done.returncode, done.stdout, done.stderr) == (7, "what is piped in False\n", "")
    assert os.listdir(reprokit.directory / ".reprokit") == [".gitignore"], "nothing to keep, and no last run"


def test_a_run_ends_by_the_signal_that_its_command_died_of(reprokit: Reprokit) -> None:
    options = ("--on-nan", "rollback", "--rollback-every", "7")
    done = reprokit.run("run", *options, "-o", "kept", "--", *python("import os; os.kill(os.getpid(), 9)"))
    assert done.returncode == -signal.SIGKILL
    facts = reprokit.facts("kept")
    assert (facts["kind"], facts["signal"], facts["capture"]["action"]) == ("run", "SIGKILL", "rollback")
    assert facts["capture"]["rollback_every"] == 7
    shown = reprokit.run("show", "kept").stdout
    assert shown.startswith("run kept: killed by SIGKILL")
    assert "records nothing" in reprokit.run("replay", "kept").stderr


def test_a_run_passes_signals_on(reprokit: Reprokit) -> None:
    code = "import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(9)); open('on', 'w'); signal.pause()"
    process = reprokit.start("run", "--on-nan", "capture", "--", *python(code))
    wait_until((reprokit.directory / "on").exists, "the training")
    process.send_signal(signal.SIGUSR1)
    assert process.wait() == 9
    process.communicate()


def test_a_run_has_the_terminal(reprokit: Reprokit) -> None:
    master, slave = pty.openpty()
    words = [COMMAND, "run", "--on-nan", "capture", "--", *python("import sys; print(sys.stdin.isatty())")]
    subprocess.run(words, cwd=reprokit.directory, stdin=slave, stdout=slave, stderr=slave, check=True)
    os.close(slave)
    assert os.read(master, 100) == b"True\r\n"
    os.close(master)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "add --on-nan capture, --tensors, --rules or --patch"),
        (["--max-snapshots", "2"], "need --on-nan too"),
        (["--rollback-every", "5"], "need --on-nan too"),
        (["--on-nan", "skip", "--rollback-every", "5"], "--rollback-every is for --on-nan rollback"),
        (["--on-nan", "capture", "--capture-when", "loss"], "'loss' is no condition"),
        (["--on-nan", "capture", "--capture-when", "loss>many"], "write a finite number after loss>"),
        (["--on-nan", "capture", "--on-capture", "'"], "--on-capture: No closing quotation"),
        (["--on-nan", "capture", "--on-capture", " "], "the command is empty"),
    ],
)
def test_options_that_make_no_sense(reprokit: Reprokit, words: list[str], said: str) -> None:
    done = reprokit.run("run", *words, "--", "true")
    assert done.returncode == 125
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


# A captured step


@pytest.mark.slow
def test_a_snapshot_in_the_fallback_is_listed_by_its_run_and_missed_by_nobody(reprokit: Reprokit) -> None:
    hook = """sh -c 'echo "$REPROKIT_SNAPSHOT" >> seen'"""
    words = ("--on-nan", "capture", "--snapshot-fallback", "other", "--on-capture", hook, "-o")
    for name in ("a", "b"):
        done = reprokit.run("record", *words, name, "--", *python(CAPTURING), "full")
        assert done.returncode == 123
        assert f"reprokit: snapshot: other/{name}/step-00000003: step 3: gradient of fc2.weight" in done.stderr
        assert f"reprokit snapshot explain other/{name}/step-00000003 -- {sys.executable} -c" in done.stderr
        (facts,) = reprokit.facts(reprokit.directory / name)["snapshots"]
        assert (facts["name"], facts["directory"]) == ("step-00000003", str(reprokit.directory / "other" / name))
        assert not list((reprokit.directory / name / "snapshots").iterdir())
        assert f"{facts['directory']}/step-00000003: gradient of fc2.weight" in reprokit.run("show", name).stdout
    assert (
        reprokit.run("record", *words, "c", "--", *python(CAPTURING), "full", environment={"SEED": "2"}).returncode
        == 123
    )
    verified = reprokit.run("verify", "a", "c")
    assert verified.returncode == 1
    assert "a snapshot does not lie in its run, and is not looked at" in " ".join(verified.stdout.split())
    places = [reprokit.directory / "other" / name / "step-00000003" for name in ("a", "b", "c")]
    refused = reprokit.run("record", *words, "a", "--overwrite", "--", *python(CAPTURING))
    assert refused.returncode == 125
    assert "other/a is there already, of another run of this name; remove it, or" in refused.stderr
    assert (reprokit.directory / "a" / "run.json").exists()
    assert (reprokit.directory / "seen").read_text().split() == list(map(str, places))
    for is_there in (True, False):
        if not is_there:
            shutil.rmtree(reprokit.directory / "other")
        assert reprokit.run("check", "a").returncode == 0
        done = reprokit.run("verify", "a", "b")
        assert done.returncode == 0, done.stdout


def test_a_captured_step_ends_the_training_and_starts_the_users_command(reprokit: Reprokit) -> None:
    hook = """sh -c 'echo "$REPROKIT_SNAPSHOT" >> seen; exit 3'"""
    words = ("--on-nan", "capture", "--capture-when", "loss>9", "--on-capture", hook, "-o", "a")
    done = reprokit.run("record", *words, "--", *python(CAPTURING))
    assert done.returncode == 123
    assert not (reprokit.directory / "went-on").exists()
    place = reprokit.directory / "a" / "snapshots" / "step-00000003"
    assert (reprokit.directory / "seen").read_text() == f"{place}\n"
    captured = (
        f"reprokit: captured: step 3: gradient of fc2.weight is not finite; snapshot: {place}; the step was not applied"
    )
    assert captured in done.stderr.splitlines()
    assert "warning: --on-capture: sh ended with status 3 for step-00000003" in done.stderr
    assert (
        "reprokit: snapshot: a/snapshots/step-00000003: step 3: gradient of fc2.weight is not finite (12" in done.stderr
    )
    assert f"reprokit snapshot explain a/snapshots/step-00000003 -- {sys.executable} -c" in done.stderr
    jsonschema.validate(header(reprokit.directory / "a"), schema("snapshot"))
    facts = reprokit.facts("a")
    assert facts["capture"] == {
        "action": "stop", "conditions": ["loss>9"], "max_snapshots": 3, "max_bytes": None, "rollback_every": 100
    }  # fmt: skip
    assert [one["name"] for one in facts["snapshots"]] == ["step-00000003"]
    assert "step-00000003: gradient of fc2.weight" in reprokit.run("show", "a").stdout


def test_a_replay_captures_as_its_recording_did_and_verify_compares(reprokit: Reprokit) -> None:
    seed = {"SEED": "1"}
    for words in (("record", "--on-nan", "capture", "-o", "a", "--", *python(CAPTURING)), ("replay", "a", "-o", "b")):
        assert reprokit.run(*words, environment=seed).returncode == 123
    assert reprokit.facts("b")["capture"] == reprokit.facts("a")["capture"]
    same = reprokit.run("verify", "a", "b")
    assert same.returncode == 0, same.stdout
    assert "snapshots" in same.stdout
    assert reprokit.run("replay", "a", "-o", "c", environment={"SEED": "2"}).returncode == 123
    other = reprokit.run("verify", "a", "c")
    assert other.returncode == 1
    assert "the captured states differ in: random; reprokit diff" in other.stdout
    done = reprokit.run("record", "-o", "d", "--", *python("import reprokit; reprokit.log(a=1)"))
    assert done.returncode == 0
    assert "not asked to capture" in reprokit.run("verify", "a", "d").stdout


def test_a_training_that_goes_on_keeps_so_many_and_no_more(reprokit: Reprokit) -> None:
    words = ("--on-nan", "skip", "--max-snapshots", "2")
    done = reprokit.run("run", *words, "--", *python(CAPTURING))
    assert done.returncode == 0
    assert (reprokit.directory / "went-on").exists()
    assert "no snapshot: there are 2 already, and no more are kept (--max-snapshots)" in done.stderr
    assert "captured: step 5: gradient of fc2.weight is not finite; there is no snapshot of it" in done.stderr
    (run,) = [path for path in (reprokit.directory / ".reprokit").iterdir() if path.is_dir()]
    assert sorted(os.listdir(run / "snapshots")) == ["step-00000003", "step-00000004"]


@pytest.mark.parametrize(
    ("options", "word", "said"),
    [
        ((), "limited", "no snapshot: File too large after 100 bytes: the tensors from w on did not fit"),
        (("--snapshot-size", "100"), "once", "no snapshot: it would have"),
    ],
)
def test_the_trainings_own_stop_happens_without_a_snapshot(
    reprokit: Reprokit, options: tuple[str, ...], word: str, said: str
) -> None:
    done = reprokit.run("run", "-o", "a", "--on-nan", "capture", *options, "--", *python(CAPTURING), word)
    assert done.returncode == 123
    assert said in done.stderr
    assert "there is no snapshot of it; the step was not applied" in done.stderr
    assert os.listdir(reprokit.directory / "a" / "snapshots") == []


def test_a_run_with_snapshots_can_be_overwritten(reprokit: Reprokit) -> None:
    words = ("run", "-o", "a", "--on-nan", "capture", "--overwrite", "--")
    for _ in range(2):
        assert reprokit.run(*words, *python(CAPTURING)).returncode == 123
    assert os.listdir(reprokit.directory / "a" / "snapshots") == ["step-00000003"]
    assert os.listdir(reprokit.directory) == ["a"]


def test_what_a_killed_process_left_half_written_is_removed(reprokit: Reprokit) -> None:
    done = reprokit.run("run", "-o", "a", "--on-nan", "capture", "--", *python(CAPTURING), "killed")
    assert done.returncode == -signal.SIGKILL
    assert "a process ended while it wrote a snapshot, which was removed" in done.stderr
    assert os.listdir(reprokit.directory / "a" / "snapshots") == []


# reprokit snapshot


@pytest.fixture
def snapshot(reprokit: Reprokit) -> Path:
    """A snapshot of a made-up training, with a terminal's escapes in a name."""
    batch = {"list": [{"tensor": "batch.x"}, {"text": "\x1b[31m"}]}
    contents = {
        "framework": "pytorch",
        "step": 7,
        "rank": None,
        "trigger": TRIGGER,
        "versions": {"torch": "2.\x1b[31m"},
        "models": [{"name": "model#0", "class": "Net", "tensors": {"w": "model.w"}}],
        "batches": [{"from": "loader", "value": batch, "sample_axis": 0, "samples": 4}],
        "random": {"python": {"none": True}},
        "gradients": {"fc2.weight": "model.w"},
        "gradient_digests": {"fc2.weight": "00", "fc1.weight": "01"},
        "losses": [(0.5).hex(), "nan"],
        "loss": {"value": "nan", "digest": "00"},
    }
    parts = [Part("model.w", "F32", (2,), 8, lambda: bytes(8)), Part("batch.x", "F16", (4, 1), 8, lambda: bytes(8))]
    return Path(Store(str(reprokit.directory / "snapshots")).save(SnapshotContents(contents, parts)))


# What the agent of a redone step does: it reads what is asked for, and writes a result. The words are a program.
REDOING = """
import json, os, sys, time
redo = json.load(open(os.environ["REPROKIT_RUN"] + "/plan.json"))["capture"]["redo"]
def tell(**trial):
    open(redo["progress"], "a").write(json.dumps(trial) + "\\n")
def result(**found):
    open(redo["result"], "w").write(json.dumps(found))
print("the training's own words")
exec(sys.argv[1])
"""

REPRODUCED = {
    "format": 1,
    "reproduced": True,
    "trigger": TRIGGER,
    "gradients": {"equal": 1, "different": ["fc1.weight\x1b[31m"], "nonfinite_equal": True},
    "loss": {"value": "nan", "equal": True},
    "problems": ["something to know"],
}


def redo(reprokit: Reprokit, mode: str, snapshot: Path, program: str, *options: str) -> Done:
    words = python(REDOING)
    return reprokit.run("snapshot", mode, str(snapshot), *options, "--", *words, program)


def test_show(reprokit: Reprokit, snapshot: Path) -> None:
    shown = reprokit.run("snapshot", "show", str(snapshot)).stdout
    assert shown.startswith(f"snapshot {snapshot}: step 7: gradient of fc2.weight is not finite (12 of 5,120 elements)")
    for words in (
        "where        train.py:7 in main",
        "model        model#0: Net, 1 tensor",
        "batch        from loader, 4 samples, F16[4, 1]",
        "gradients    1 of 2 are not finite: fc2.weight",
        "last losses  0.5, nan",
        "2 tensors, 16 bytes; all digests fit",
    ):
        assert words in shown
    assert "\x1b" not in shown
    document = json.loads(reprokit.run("snapshot", "show", "--json", str(snapshot)).stdout)
    jsonschema.validate(document["snapshot"], schema("snapshot"))
    assert document["tensors"][1] == {"name": "batch.x", "dtype": "F16", "shape": [4, 1]}


@pytest.mark.parametrize("command", ["show", "reproduce"])
def test_a_snapshot_that_was_altered_is_refused(reprokit: Reprokit, snapshot: Path, command: str) -> None:
    place = snapshot / "tensors.safetensors"
    place.write_bytes(place.read_bytes()[:-1] + b"\1")
    rest = () if command == "show" else ("--", "touch", "started")
    done = reprokit.run("snapshot", command, str(snapshot), *rest)
    assert done.returncode == 2
    assert re.fullmatch(r"reprokit: bad-snapshot: .*/tensors.safetensors was altered: .*\n", done.stderr)
    assert not (reprokit.directory / "started").exists()


def test_a_step_that_comes_to_the_same_again(reprokit: Reprokit, snapshot: Path) -> None:
    done = redo(reprokit, "reproduce", snapshot, f"result(**{REPRODUCED!r}); sys.exit(5)")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        "the training's own words",
        "reproduced with other gradients than captured: gradient of fc2.weight is not finite (12 of 5,120 elements)",
        "gradients  1 of 2 are bitwise as captured",
        "           another: fc1.weight\\x1b[31m",
        "loss       nan, bitwise as captured",
        "note       something to know",
    ]
    assert [path.name for path in reprokit.directory.iterdir()] == ["snapshots"], "nothing else is left"


def test_one_that_does_not_and_the_document(reprokit: Reprokit, snapshot: Path) -> None:
    found = {**REPRODUCED, "reproduced": False, "trigger": None}
    assert redo(reprokit, "reproduce", snapshot, f"result(**{found!r})").returncode == 1
    done = redo(reprokit, "reproduce", snapshot, f"result(**{found!r})", "--json")
    assert (done.returncode, done.stderr) == (1, "the training's own words\n")
    document = json.loads(done.stdout)
    jsonschema.validate(document, schema("snapshot-result"))
    assert (document["mode"], document["snapshot"], document["reproduced"]) == ("reproduce", str(snapshot), False)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("sys.exit(4)", "the script ended with exit status 4 before its first step came"),
        ("os.kill(os.getpid(), 9)", "the script ended by SIGKILL before its first step came"),
        ("result(trouble='fc9.weight is (2,) and the model has none')", "fc9.weight is (2,) and the model has none"),
        ("open(redo['result'], 'w').write('{')", "cannot be read"),
    ],
)
def test_trouble(reprokit: Reprokit, snapshot: Path, program: str, said: str) -> None:
    done = redo(reprokit, "explain", snapshot, program)
    assert done.returncode == 2
    assert done.stderr.startswith("reprokit: not-redone: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_first_step_that_never_comes_is_waited_for_as_long_as_asked(reprokit: Reprokit, snapshot: Path) -> None:
    done = redo(reprokit, "reproduce", snapshot, "time.sleep(600)", "--seconds", "0.5")
    assert done.returncode == 2
    assert "its first step did not come in 0.5 s; the script was ended" in done.stderr


def test_a_search_goes_on_in_another_process_and_its_progress_is_shown(reprokit: Reprokit, snapshot: Path) -> None:
    program = """
n = len(redo["trials"])
tell(running=[n])
if n < 4:  # the second process is killed in its trial, the first asks for another
    tell(text=f"trial {n}\\x1b[31m", samples=[0], reproduced=True)
    result(again=True) if n == 0 else os.kill(os.getpid(), 9)
else:
    result(reproduced=True, samples=[2], of=4, trials=3, smallest=True, only_full=False)
"""
    done = redo(reprokit, "minimize", snapshot, program)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "reprokit: trial 0\\x1b[31m\nreprokit: trial 2\\x1b[31m\n"
    assert done.stdout.splitlines()[-1] == "1 of 4 samples are enough: sample 2 (counted from 0; 3 trials)"


def test_a_script_that_always_dies_is_given_up(reprokit: Reprokit, snapshot: Path) -> None:
    done = redo(reprokit, "minimize", snapshot, "tell(running=[1]); os.kill(os.getpid(), 9)")
    assert done.returncode == 2
    assert "by SIGKILL in the middle of a trial, 4 times" in done.stderr


def test_an_explanation(reprokit: Reprokit, snapshot: Path) -> None:
    entry = {"name": "self", "dtype": "float32", "shape": [4], "min": (0.0).hex(), "zeros": 3, "nonfinite": 0}
    found = {
        **REPRODUCED,
        "phase": "backward",
        "operation": "SqrtBackward0",
        "layer": "net.norm",
        "where": [["train.py", 3, "loss"]],
        "inputs": [entry],
        "outputs": [{**entry, "nonfinite": 3}],
        "words": "sqrt of 0 has an infinite gradient; 3 of 4 inputs are 0",
    }
    lines = redo(reprokit, "explain", snapshot, f"result(**{found!r})").stdout.splitlines()
    assert lines[1:7] == [
        "reproduced with other gradients than captured: sqrt of 0 has an infinite gradient; 3 of 4 inputs are 0",
        "operation  SqrtBackward0",
        "in         the backward pass, layer net.norm",
        "where      train.py:3 in loss",
        "inputs     self: float32[4], min 0, 3 zero",
        "outputs    self: float32[4], min 0, 3 zero, 3 not finite",
    ]


def test_the_patches_of_the_run_are_applied_again(reprokit: Reprokit) -> None:
    words = ("run", "--on-nan", "capture", "-o", "a", "--patch", "threads=1", "--", *python(CAPTURING), "once")
    assert reprokit.run(*words).returncode == 123
    program = "result(reproduced=os.environ.get('OMP_NUM_THREADS') == '1')"
    place = reprokit.directory / "a" / "snapshots" / "step-00000003"
    assert redo(reprokit, "reproduce", place, program).returncode == 0
    (place.parent.parent / "run.json").unlink()
    assert redo(reprokit, "reproduce", place, program).returncode == 1


def test_a_format_of_the_future(reprokit: Reprokit, snapshot: Path) -> None:
    content = {**json.loads((snapshot / "snapshot.json").read_text()), "format": 2}
    content["check"] = store.seal(content)
    (snapshot / "snapshot.json").write_text(json.dumps(content))
    done = reprokit.run("snapshot", "show", str(snapshot))
    assert "has format 2, this reprokit reads up to 1; upgrade reprokit" in done.stderr
