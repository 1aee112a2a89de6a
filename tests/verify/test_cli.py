"""The commands verify and show, as a user starts them."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

from reprokit.model.outputs import OutputFile
from reprokit.model.run import FAILED, NO_END, RUNNING, Fidelity, ProfileFacts
from reprokit.model.run_warning import RunWarning
from reprokit.model.states import ON, Switch, Uncovered, not_loaded, off
from reprokit.run_files import rundir
from tests.support import Reprokit

from .runs import Building, digest, float32, recording, replayed, training

Pair = tuple[Building, Building]
HOSTILE = "\x1b]0;owned\x07[bold red]x[/bold red]\u202e\u2028\n\x9b31m"
SPELT_OUT = r"\x1b]0;owned\x07[bold red]x[/bold red]\u202e\u2028\x0a\x9b31m"


def reprokit(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a pipe."""
    return Reprokit(cwd or Path.cwd()).run(*map(str, arguments))


def on_terminal(*arguments: str | Path) -> str:
    """What the command writes to a terminal of 120 columns."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "reprokit", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    chunks = []
    try:
        while chunk := os.read(leader, 65536):
            chunks.append(chunk)
    except OSError:  # Linux says EIO when the last writer has gone
        pass
    process.wait()
    os.close(leader)
    return b"".join(chunks).decode()


def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(resources.files("reprokit").joinpath("schemas/verify.schema.json").read_text())
    return found


def hostile(pair: Pair) -> tuple[Path, Path]:
    """Two runs that differ, with terminal escapes and markup wherever a text may stand."""
    left, right = pair
    for run in pair:
        run.run.command.append(HOSTILE)
        run.run.warnings.append(RunWarning(HOSTILE, HOSTILE))
        run.run.host = run.run.reprokit = HOSTILE
        run.run.shim = not_loaded(HOSTILE)
        run.add("warning", text=HOSTILE)
        run.add("framework", name=HOSTILE, version=HOSTILE)
        run.add("predict", name=HOSTILE, digest=digest("x"), shape=HOSTILE, dtype=HOSTILE)
        run.outputs.append(OutputFile(path=HOSTILE, size=1, digest="", note=HOSTILE))
    left.environment[HOSTILE] = HOSTILE
    for run, number in ((left, 1), (right, 2)):
        run.add("log", name=HOSTILE, step=0, epoch=None, value={"dtype": "str", "text": f"{HOSTILE}{number}"})
        run.add("log", name=HOSTILE, process=HOSTILE, step=0, epoch=None, value=float32(number))
    right.run.command.append(HOSTILE)
    return left.write(), right.write()


def assert_harmless(text: str) -> None:
    assert "\x1b]" not in text
    assert not set("\x07\x9b\u202e\u2028") & set(text)


def test_identical_runs(pair: Pair) -> None:
    done = reprokit("verify", "-q", pair[0].write(), pair[1].write())
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "identical: everything that was recorded and is compared is the same, bit for bit"
    assert lines[1].startswith("command             identical    ")
    assert "100 % exact" in done.stdout
    assert lines[-1].startswith("normalized: ")
    assert "\x1b" not in done.stdout


def test_different_runs(bare: Pair) -> None:
    bare[0].losses(0.5, 0.25)
    bare[1].losses(0.5, 0.75)
    done = reprokit("verify", "-q", bare[0].write(), bare[1].write())
    assert (done.returncode, done.stderr) == (1, "")
    expected = "different: loss of process 0 differs first at step 1: 0.25 (3e800000) against 0.75 (3f400000)"
    assert done.stdout.splitlines()[0] == expected


def test_nothing_comparable(bare: Pair) -> None:
    done = reprokit("verify", bare[0].write(), bare[1].write())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("reprokit: nothing-comparable: neither run recorded metrics, weights or outputs")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [("verify", "nowhere", "nowhere"), ("show", "nowhere")])
def test_trouble_is_one_line_and_exit_code_2(command: tuple[str, ...], tmp_path: Path) -> None:
    done = reprokit(*command, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("reprokit: run-not-found: nowhere does not exist")
    assert done.stderr.count("\n") == 1


def test_every_leaf(pair: Pair) -> None:
    paths = pair[0].write(), pair[1].write()
    short, whole = reprokit("verify", *paths).stdout, reprokit("verify", "--all", *paths).stdout
    assert "fc.weight" not in short
    row = next(line for line in whole.splitlines() if "fc.weight" in line)
    assert row.split(maxsplit=2) == ["fc.weight", "identical", f"float32 [10, 64] {digest('weight')}"]
    assert row.startswith("    fc.weight")


def test_facts_that_could_have_changed_the_result_are_counted(pair: Pair) -> None:
    pair[1].environment["cpu"] = {"model": "6502"}
    done = reprokit("verify", pair[0].write(), pair[1].write())
    assert done.returncode == 0
    assert ", although one fact could have changed it" in done.stdout.splitlines()[0]
    assert "cpu.model: Z80 against 6502 (can change results" in done.stdout


def test_json_of_identical_runs_fits_the_schema(pair: Pair) -> None:
    done = reprokit("verify", "--json", pair[0].write(), pair[1].write())
    found = json.loads(done.stdout)
    jsonschema.Draft202012Validator(schema()).validate(found)
    assert (done.returncode, found["verdict"], found["first_difference"]) == (0, "identical", None)


def test_json_of_different_runs_fits_the_schema(pair: Pair) -> None:
    done = reprokit("verify", "--json", *hostile(pair))
    found = json.loads(done.stdout)
    jsonschema.Draft202012Validator(schema()).validate(found)
    assert (done.returncode, found["verdict"], found["first_difference"]["name"]) == (1, "different", "words")
    assert found["left"]["command"][-1] == HOSTILE


def test_the_schema_is_one_and_is_strict(pair: Pair) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    found = json.loads(reprokit("verify", "--json", pair[0].write(), pair[1].write()).stdout)
    changes: list[dict[str, Any]] = [{"verdict": "different"}, {"format": 2}, {"surprise": 1}, {"categories": []}]
    for change in changes:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schema()).validate({**found, **change})


@pytest.mark.parametrize(
    "options", [("verify",), *(pytest.param(("verify", more), marks=pytest.mark.slow) for more in ("--all", "--json"))]
)
def test_what_runs_hold_cannot_act_on_the_terminal(pair: Pair, options: tuple[str, ...]) -> None:
    paths = hostile(pair)
    for text in (reprokit(*options, *paths).stdout, on_terminal(*options, *paths)):
        assert_harmless(text)
        assert "[bold red]x[/bold red]" in text


@pytest.mark.parametrize("options", [("show",), ("show", "--json")])
def test_what_a_run_holds_cannot_act_on_the_terminal(pair: Pair, options: tuple[str, ...]) -> None:
    path = hostile(pair)[0]
    for text in (reprokit(*options, path).stdout, on_terminal(*options, path)):
        assert_harmless(text)
        assert "[bold red]x[/bold red]" in text


def test_errors_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    done = reprokit("show", tmp_path / "\x1b]0;owned\x07")
    assert_harmless(done.stderr)
    assert r"\x1b]0;owned\x07" in done.stderr


def test_a_terminal_gets_colors_and_a_pipe_does_not(pair: Pair) -> None:
    paths = pair[0].write(), pair[1].write()
    assert "\x1b[32midentical" in on_terminal("verify", *paths)
    assert "\x1b" not in reprokit("verify", *paths).stdout


def test_an_ascii_locale_is_enough(pair: Pair) -> None:
    pair[0].run.command.append("naïve")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    command = [sys.executable, "-m", "reprokit", "show", str(pair[0].write())]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0
    assert r"na\xefve" in done.stdout


def test_show_a_finished_recording(pair: Pair) -> None:
    path = pair[0].write()
    done = reprokit("show", path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"recording {path}: exit code 0"
    assert lines[1] == "command      python train.py --rate 0.1"
    text = done.stdout
    assert "9 events, 99 bytes given to 2 processes and 3 threads; 1024 bytes in 1 files" in text
    assert "loss of process 0: 3 steps, first 0.75 (3f400000), last 0.25 (3e800000)" in text
    assert f"Net model#0 of process 0: {digest('weights 1')[:19]}..., 2 tensors" in text
    assert "CPython 3.11.4, torch 2.13.0" in text
    assert "2 epochs" in text
    assert "model.pt: 640 bytes" in text


def test_show_a_replay(pair: Pair) -> None:
    pair[1].run.fidelity = Fidelity(exact=999, moved=1, unused=2)
    pair[1].run.changed = ["torch is 2.12.0, was 2.13.0"]
    text = reprokit("show", pair[1].write()).stdout
    assert f"replay of {pair[0].path}" in text
    assert "99.9 % exact (999 exact, 1 moved, 2 unused)" in text
    assert "changed      torch is 2.12.0, was 2.13.0" in text


@pytest.mark.parametrize(
    ("counts", "meaning"),
    [
        ({"moved": 10}, "all that was recorded was given again, some of it to other threads (as of a pool)"),
        ({"moved": 10, "unused": 1}, "asked for entropy in another way"),
        ({"moved": 10, "derived": 1}, "asked for entropy in another way"),
        ({"moved": 10, "live": 1}, "was given live bytes"),
    ],
)
def test_what_moved_requests_mean(pair: Pair, counts: dict[str, int], meaning: str) -> None:
    pair[1].run.fidelity = Fidelity(exact=15, **counts)
    text = reprokit("verify", pair[0].write(), pair[1].write()).stdout
    assert meaning in next(line for line in text.splitlines() if "replay fidelity" in line)
    assert ("all that was recorded" in pair[1].run.fidelity.words) is meaning.startswith("all")


def test_show_a_run_in_progress(tmp_path: Path) -> None:
    building = training(tmp_path / "run")
    run = building.run
    run.status, run.exit_code, run.duration, run.profile = RUNNING, None, None, None
    run.host, run.launcher_pid, run.launcher_started = os.uname().nodename, os.getpid(), psutil.Process().create_time()
    path = building.write(sealed=False)
    with (path / rundir.METRICS).open("a") as file:
        file.write('{"k": "lo')
    text = reprokit("show", path).stdout
    assert text.splitlines()[0] == f"recording {path}: in progress (process {os.getpid()})"
    assert "entropy      not counted: 0 bytes in 0 files so far" in text
    assert reprokit("verify", path, path).stderr.startswith("reprokit: run-in-progress: ")


def test_show_a_run_whose_launcher_died(tmp_path: Path) -> None:
    building = recording(tmp_path / "run")
    building.run.status, building.run.exit_code = RUNNING, None
    first = reprokit("show", building.write()).stdout.splitlines()[0]
    assert first.endswith(f"{NO_END}; what it had recorded is shown")


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"exit_code": 3}, "exit code 3"),
        ({"exit_code": None, "signal": "SIGSEGV"}, "killed by SIGSEGV"),
        ({"exit_code": None, "status": FAILED}, "failed to start"),
    ],
)
def test_show_a_run_that_failed(tmp_path: Path, change: dict[str, Any], state: str) -> None:
    building = recording(tmp_path / "run")
    for key, value in change.items():
        setattr(building.run, key, value)
    assert reprokit("show", building.write()).stdout.splitlines()[0].endswith(f": {state}")


def test_show_says_what_is_not_covered(tmp_path: Path) -> None:
    building = recording(tmp_path / "run")
    building.run.shim, building.run.agent = not_loaded("static Python"), not_loaded("no Python process began it")
    building.run.profile = ProfileFacts(digest=digest("p"), withheld=4, sealed=False)
    building.run.warnings = [RunWarning("the disk is nearly full", "disk-full")]
    building.outputs.append(OutputFile(path="huge", size=1, digest="", note="not read: too large"))
    text = reprokit("show", building.write()).stdout
    assert "warning      the disk is nearly full" in text
    assert "not covered  entropy: the shim was not loaded: static Python" in text
    assert "metrics, weights and seeds: the agent was not loaded: no Python process" in text
    assert "the bytes of 4 requests by cryptographic libraries" in text
    assert "a process that outlived the command" in text
    assert "the content of 1 outputs, first huge: not read: too large" in text


@pytest.mark.parametrize(("supervisor", "is_said"), [(ON, False), (off("why"), True), (None, True)])
def test_what_the_supervisor_answered_is_covered(tmp_path: Path, supervisor: Switch | None, is_said: bool) -> None:
    building = recording(tmp_path / "run")
    building.run.shim, building.run.supervisor = not_loaded("it is statically linked"), supervisor
    text = reprokit("show", building.write()).stdout
    assert ("entropy: the shim was not loaded" in text) is is_said


def test_show_names_uncovered_sources_and_requests_that_the_supervisor_missed(tmp_path: Path) -> None:
    building = recording(tmp_path / "run")
    building.run.uncovered, building.run.ended = [Uncovered(source="instructions", text="RDRAND in libodd.so")], None
    path = Path(building.write())
    (path / "entropy" / "fresh").write_bytes(bytes(3))
    text = reprokit("show", str(path)).stdout
    assert "not covered  RDRAND in libodd.so" in text
    assert "3 requests that the supervisor did not answer" in text


def test_show_as_json_keeps_the_key_secret(tmp_path: Path) -> None:
    building = training(tmp_path / "run")
    building.run.key = "5ec7e7".ljust(64, "0")
    done = reprokit("show", "--json", building.write())
    found = json.loads(done.stdout)
    assert "5ec7e7" not in done.stdout
    assert found["epochs"] == 2
    assert found["run"]["exit_code"] == 0
    assert {"process": "0", "kind": "weights", "name": "model#0", "at": "end"}.items() <= found["series"][-2].items()


def test_replays_of_one_recording_can_be_compared(tmp_path: Path) -> None:
    original = training(tmp_path / "recording")
    paths = [replayed(original, tmp_path / name).write() for name in ("one", "two")]
    assert reprokit("verify", *paths).returncode == 0


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "fifo"])
def test_a_random_profile_that_is_not_what_was_recorded_is_no_basis(pair: Pair, damage: str) -> None:
    left, right = pair[0].write(), pair[1].write()
    profile = left / rundir.ENTROPY / "0.entropy"
    data = profile.read_bytes()
    profile.unlink()
    if damage == "fifo":
        os.mkfifo(profile)
    elif damage != "gone":
        profile.write_bytes(data[:-1] if damage == "cut" else b"W" + data[1:])
    done = reprokit("verify", left, right)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("reprokit: run-damaged: ")
    shown = reprokit("show", left)
    assert shown.returncode == 0
    assert str(left / rundir.ENTROPY) in shown.stdout


def unread(words: str, descriptor: int, *runs: Path) -> tuple[int, str]:
    """Run the command with a pipe that nobody reads; return its status, and what the other stream has."""
    command = [
        sys.executable,
        "-m",
        "reprokit",
        *(runs[int(word)] if word.isdigit() else word for word in words.split()),
    ]
    reader, writer = os.pipe()
    os.close(reader)
    streams = (writer, subprocess.PIPE) if descriptor == 1 else (subprocess.PIPE, writer)
    done = subprocess.run(command, stdout=streams[0], stderr=streams[1], cwd=runs[0].parent)
    os.close(writer)
    return done.returncode, ((done.stdout or b"") + (done.stderr or b"")).decode()


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("verify -q 0 0", 0),
        ("verify -q 0 1", 1),
        ("show 0", -signal.SIGPIPE),
        pytest.param("diff 0 1 --all", 1, marks=pytest.mark.slow),
        pytest.param("check 0", 1, marks=pytest.mark.slow),
        *(
            pytest.param(words, -signal.SIGPIPE, marks=pytest.mark.slow)
            for words in ("ls .", "show --help", "--version")
        ),
    ],
)
def test_output_that_nobody_reads_takes_no_verdict_away_and_makes_none(pair: Pair, words: str, status: int) -> None:
    """Without a verdict a command ends by SIGPIPE, as other programs do."""
    pair[1].run.exit_code = 1
    runs = [building.write() for building in pair]
    assert unread(words, 1, *runs) == (status, "")


def test_a_pipe_that_broke_elsewhere_is_trouble(tmp_path: Path) -> None:
    script = """
from reprokit.cli.main import main
from reprokit.verify.show import run_list
def runs(place): raise BrokenPipeError(32, "Broken pipe")
run_list.runs = runs
main(["ls", "."])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr[:49]) == (2, "reprokit: system: the system refused: Broken pipe")


@pytest.mark.slow
def test_an_error_that_nobody_reads_is_one_all_the_same(pair: Pair) -> None:
    runs = [building.write() for building in pair]
    assert unread("verify 0 missing", 2, *runs) == (2, "")
    assert unread("verify 0 1", 2, *runs)[0] == 0  # what is said beside the verdict
    status, text = unread("verify 0 missing", 1, *runs)
    assert (status, len(text.splitlines())) == (2, 1)


@pytest.mark.parametrize(("second", "status"), [(0, 0), (1, 1)])
def test_a_pipeline_keeps_the_verdict(pair: Pair, second: int, status: int) -> None:
    pair[1].run.exit_code = 1
    runs = [building.write() for building in pair]
    script = 'set -o pipefail; "$0" -m reprokit verify --all --json "$1" "$2" | head -n 1; exit "$?"'
    done = subprocess.run(["bash", "-c", script, sys.executable, runs[0], runs[second]], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (status, "{\n", "")


def test_stdout_may_be_closed_or_full(pair: Pair) -> None:
    runs = [str(building.write()) for building in pair]
    closed = subprocess.run(
        ["sh", "-c", f"exec '{sys.executable}' -m reprokit show '{runs[0]}' >&-"], capture_output=True
    )
    assert (closed.returncode, closed.stderr) == (0, b"")
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "reprokit", "verify", *runs], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert (
        done.stderr.decode() == "reprokit: system: the system refused: No space left on device (reprokit help system)\n"
    )


def test_more_than_two_runs_are_each_compared_with_the_first(tmp_path: Path, reprokit: Reprokit) -> None:
    for name, loss in (("first", 0.5), ("second", 0.5), ("third", 0.25)):
        building = recording(tmp_path / name)
        building.losses(1.0, loss)
        building.write()
    done = reprokit.run("verify", "first", "second", "third")
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert lines[0] == "different: 1 of 2 runs differs from first"
    assert lines[1].split()[:2] == ["second", "identical"]
    assert lines[2].split()[:2] == ["third", "different"]
    assert "differs first at step 1" in lines[2]
    document = json.loads(reprokit.run("verify", "first", "second", "third", "--json").stdout)
    assert document["verdict"] == "different"
    assert [each["verdict"] for each in document["comparisons"]] == ["identical", "different"]
    same = reprokit.run("verify", "first", "second", "second")
    assert (same.returncode, same.stdout.splitlines()[0]) == (
        0,
        "identical: each of 2 runs with first, as its line says",
    )
    again = reprokit.run("verify", "first", "second", "first").stdout.splitlines()
    assert again[0] == (
        "identical: the run with first, as its line says; 1 more compared it with itself, which proves nothing"
    )
    assert again[-1].startswith("note: this compares a run with itself")
    itself = reprokit.run("verify", "first", "first", "first").stdout.splitlines()[0]
    assert itself == "identical: this is one run compared with itself, which proves nothing"
    refused = reprokit.run("verify", "first", "second", "third", "--all")
    assert (refused.returncode, "--all and --ranks are for two" in refused.stderr) == (2, True)
