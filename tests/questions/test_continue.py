"""A recording that was killed goes on, as a recording of its own that has the entropy of both."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from reprokit.agent.pytorch.stride import MEASURED
from reprokit.gate import goldens
from reprokit.model.plan import Plan, RecordingOptions
from reprokit.run_files.keyframes import SEAL, read, write_seal
from reprokit.run_files.rundir import RunDirectory
from tests.questions.test_resume_frameworks import TRAINERS
from tests.support import LIMIT, Done, Reprokit, rest_slow, wait_until

TRAININGS = Path(__file__).parents[1] / "trainings"
DRAWS = ("continued_draws.py", "24")
STEPS = ("continued_steps.py", "12", "0")


def killed(reprokit: Reprokit, log: str, lines: int, *arguments: str, who: str = "all") -> list[str]:
    """Start a run, kill it once a log has so many lines, and return these; the training waits for that."""
    path, hold = reprokit.directory / log, reprokit.directory / f"hold-{lines}"
    hold.touch()
    process = reprokit.start(*arguments, start_new_session=True)
    wait_until(lambda: path.exists() and path.read_text().count("\n") >= lines, "the training")
    if who == "all":
        os.killpg(process.pid, signal.SIGKILL)
    elif who == "launcher":
        process.kill()
        process.wait(timeout=LIMIT)
        os.killpg(process.pid, signal.SIGKILL)
    else:
        listed = subprocess.run(
            ["ps", "-o", "pid=,args=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True
        )
        training = next(line for line in listed.stdout.splitlines() if f" {sys.executable} " in line)
        os.kill(int(training.split()[0]), signal.SIGKILL)
    process.communicate(timeout=LIMIT)
    hold.unlink()
    return path.read_text().splitlines()


def recorded(script: str, *arguments: str) -> tuple[str, ...]:
    return "record", "-o", "first", "--", sys.executable, str(TRAININGS / script), *arguments


def go_on(reprokit: Reprokit, run: str, output: str, *words: str) -> Done:
    done = reprokit.run("continue", run, "-o", output, *words)
    assert done.returncode == 0, done.stderr
    return done


def replay(reprokit: Reprokit, run: str, log: str) -> None:
    """Replay a continued run, and compare what it wrote, and all that is compared, with it."""
    before = (reprokit.directory / log).read_text()
    done = reprokit.run("replay", run, "-o", "again")
    assert done.returncode == 0, done.stderr
    assert "0 moved, 0 derived, 0 live, 0 unused" in done.stderr
    assert (reprokit.directory / log).read_text() == before
    done = reprokit.run("verify", run, "again")
    assert done.stdout.startswith("identical: "), done.stdout


def killed_at(reprokit: Reprokit, is_due: Callable[[], bool], *words: str) -> None:
    """Start a training, and kill all of its processes, also those in sessions of their own, once that is due."""
    process = reprokit.start(*words)
    wait_until(is_due, "the training")
    children = psutil.Process(process.pid).children(recursive=True)
    for each in (process, *children):
        each.kill()
    psutil.wait_procs(children, timeout=LIMIT)
    process.communicate(timeout=LIMIT)


def refused(reprokit: Reprokit, *words: str) -> str:
    done = reprokit.run("continue", *words)
    assert done.returncode == 125
    return done.stderr


def test_a_killed_recording_goes_on_with_its_entropy_and_then_with_new(reprokit: Reprokit) -> None:
    lines = killed(reprokit, "log.txt", 9, *recorded(*DRAWS))
    done = go_on(reprokit, "first", "second", "--from-start")
    log = (reprokit.directory / "log.txt").read_text().splitlines()
    assert log[: len(lines)] == lines
    assert [line.split()[0] for line in log] == [str(step) for step in range(24)]
    draws = [word for line in log for word in line.split()[1:]]
    assert len(set(draws)) == len(draws)
    times = [float(line.split()[-1]) for line in log]
    assert times == sorted(times)
    assert times[-1] - times[0] < 60  # on from where the first run was, without what lay between
    facts = reprokit.facts("second")
    assert (facts["kind"], facts["status"], facts["replay_of"]) == ("record", "finished", None)
    assert facts["continues"]["run_id"] == reprokit.facts("first")["run_id"]
    assert "as recorded, " in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("who", rest_slow(["all"], extended=["launcher", "training"]))
def test_the_replay_of_a_continued_run_is_that_of_the_chain(reprokit: Reprokit, who: str) -> None:
    (reprokit.directory / "log.txt").write_text("of another run\n")
    lines = killed(reprokit, "log.txt", 14, *recorded(*DRAWS), who=who)
    go_on(reprokit, "first", "second", "--from-start")
    assert (reprokit.directory / "log.txt").read_text().splitlines()[: len(lines)] == lines
    replay(reprokit, "second", "log.txt")
    assert "goes on from" in reprokit.run("show", "second").stdout
    assert "not readable" not in reprokit.run("check", "second").stdout


@pytest.mark.extended
def test_a_continuation_that_was_killed_goes_on_too(reprokit: Reprokit) -> None:
    first = killed(reprokit, "log.csv", 4, *recorded(*STEPS))
    words = "continue", "first", "-o", "second", "--from-start"
    second = killed(reprokit, "log.csv", 8, *words)
    done = go_on(reprokit, "second", "third", "--from-start")
    assert "the same in both runs, by the trail" in done.stderr
    log = (reprokit.directory / "log.csv").read_text().splitlines()
    assert (len(log), log[: len(first)], log[: len(second)]) == (12, first, second)
    replay(reprokit, "third", "log.csv")


@pytest.mark.slow
def test_a_script_that_was_edited_since_is_not_called_the_same(reprokit: Reprokit) -> None:
    script = reprokit.directory / "train.py"
    script.write_text((TRAININGS / STEPS[0]).read_text())
    command = ("record", "-o", "first", "--", sys.executable, "train.py", *STEPS[1:])
    killed(reprokit, "log.csv", 4, *command)
    script.write_text(script.read_text().replace("RATE = 0.01", "RATE = 0.02"))
    done = go_on(reprokit, "first", "second", "--from-start")
    assert "train.py: its contents differ" in done.stderr
    assert "not that training any more: step 0 is another one" in done.stderr


@pytest.mark.slow
def test_what_cannot_go_on_says_so(reprokit: Reprokit) -> None:
    killed(reprokit, "log.txt", 8, *recorded(*DRAWS))
    assert "not-continued: " in refused(reprokit, "first")
    assert "--from-start" in refused(reprokit, "first")
    profile = max((reprokit.directory / "first/entropy").glob("*-0.entropy"), key=lambda path: path.stat().st_size)
    whole = profile.read_bytes()
    for damaged in (whole[:1500], whole[:1080] + bytes([whole[1080] ^ 1]) + whole[1081:]):
        profile.write_bytes(damaged)
        assert "run-damaged: " in refused(reprokit, "first", "--from-start")
    profile.write_bytes(whole)
    reprokit.run("bundle", "first", "-o", "first.tar.zst", "--with-entropy")
    reprokit.run("unpack", "first.tar.zst", "-o", "unpacked")
    go_on(reprokit, "unpacked", "second", "--from-start")
    assert "exit status 0" in refused(reprokit, "second", "--from-start")
    reprokit.run("replay", "second", "-o", "again")
    assert "is itself a replay" in refused(reprokit, "again", "--from-start")


def keyframed(reprokit: Reprokit, epochs: str, lines: int, *options: str, script: str = STEPS[0]) -> list[str]:
    """Record with keyframes and kill; the script is in the working directory, and prints where nobody notes files."""
    (reprokit.directory / "train.py").write_text((TRAININGS / script).read_text())
    command = "record", "-o", "first", "--keyframes", "5steps", *options, "--", sys.executable, "train.py"
    return killed(reprokit, "log.csv", lines, *command, epochs, "0")


@pytest.mark.slow
def test_a_recording_is_continued_with_the_options_that_it_had(reprokit: Reprokit) -> None:
    """What is saved and judged of tensors begins with the keyframe: until then nothing true is computed."""
    asked = "--rules", "auto", "--on-rule", "true", "--keep-outputs", "1K", "--on-nan", "skip", "--on-capture", "true"
    keyframed(reprokit, "9", 6, *asked)
    go_on(reprokit, "first", "second")
    asked_of = [json.loads((reprokit.directory / run / "options.json").read_text()) for run in ("first", "second")]
    assert asked_of[0] == asked_of[1]
    assert asked_of[1]["rules"]["command"] == asked_of[1]["capture"]["hook"] == "true"
    outputs = json.loads((reprokit.directory / "second/outputs.json").read_text())["files"]
    assert {file["kept"] is None for file in outputs if file["size"] > 1 << 10} == {True}
    facts = reprokit.facts("second")
    step = facts["continues"]["step"]
    assert f"tensors before step {step} are in {reprokit.directory / 'first'} alone, and rules" in str(
        facts["warnings"]
    )
    (index,) = (reprokit.directory / "second/tensors").glob("*.jsonl")
    assert min(json.loads(line).get("step", step) for line in index.read_text().splitlines()) == step


def test_each_field_of_a_plan_is_continued_or_of_another_kind_of_run() -> None:
    of_replays = "replay_of continues profile recorded_at start started_from force variables processors pools changed"
    by_recording = """
        mode command working_directory output overwrite key record_crypto keyed calendar clock supervisor hide_rdrand
        orders trail trail_every trail_strides batch_digests console data environment_size patches recipe question
    """
    of_others = """
        policy tells_progress versions own_variables profiling observed untouched aside timeout varied fresh moved
        is_scratch
    """
    known = {*of_replays.split(), *by_recording.split(), *of_others.split()}
    assert {*Plan.__struct_fields__} - known == {*RecordingOptions.__struct_fields__}


@pytest.mark.slow
@pytest.mark.parametrize("who", ["launcher", pytest.param("training", marks=pytest.mark.extended)])
def test_a_run_goes_on_from_its_last_keyframe_and_so_does_that(reprokit: Reprokit, who: str) -> None:
    """The steps that were skipped are those of the runs before, and a replay from the first step agrees in all."""
    keyframed(reprokit, "12", 5)
    killed(reprokit, "log.csv", 8, "continue", "first", "-o", "second", who=who)
    (reprokit.directory / "first").rename(reprokit.directory / "away")
    if who == "launcher":  # otherwise it was closed, and has what it skipped
        error = refused(reprokit, "second", "-o", "third")
        assert re.search("what comes before its keyframe is lost: .*first does not exist.*--from-start", error), error
        (reprokit.directory / "away").rename(reprokit.directory / "first")
    done = go_on(reprokit, "second", "third")
    step = reprokit.facts("third")["continues"]["step"]
    assert step >= 20
    assert f"from the keyframe of step {step}" in done.stderr
    assert re.search(f"steps {step} to [0-9]+ are the same in both runs|no step of the trail is in both", done.stderr)
    log = (reprokit.directory / "log.csv").read_text()
    assert re.findall("^[0-9]+", log, re.MULTILINE) == [str(epoch) for epoch in range(12)]
    reprokit.run("replay", "third", "-o", "again")
    assert (reprokit.directory / "log.csv").read_text() == log
    done = reprokit.run("verify", "third", "again")
    assert done.stdout.startswith("identical"), done.stdout
    for fact in ("trail", "process metrics", "samples", "weights", "random states", "console"):
        assert re.search(f"^{fact} +identical", done.stdout, re.MULTILINE), done.stdout
    assert "trail of optimizer#0 of process 0: 48 steps" in done.stdout
    assert "12 lines of stdout" in reprokit.run("show", "third").stdout
    assert "second-epoch.pt" in (reprokit.directory / "third/answers/returned").read_text()
    reprokit.run("bundle", "third", "-o", "third.tar.zst")
    reprokit.run("unpack", "third.tar.zst", "-o", "unpacked")
    for run in ("third", "unpacked"):
        assert f"at step {step}, with all of its entropy" in reprokit.run("show", run).stdout
        assert reprokit.run("check", run).stdout.startswith("whole: ")
    if who == "launcher":
        _require_golden(reprokit, "third")


@pytest.mark.slow
@pytest.mark.parametrize(("every", "script"), [("auto", STEPS[0]), ("64", STEPS[0]), ("16", "continued_groups.py")])
def test_a_run_goes_on_from_a_keyframe_among_steps_that_its_trail_passes_over(
    reprokit: Reprokit, every: str, script: str
) -> None:
    keyframed(reprokit, "40", 26, "--trail-every", every, script=script)
    go_on(reprokit, "first", "second")
    assert reprokit.facts("second")["continues"]["step"] > MEASURED
    replay(reprokit, "second", "log.csv")


def _require_golden(reprokit: Reprokit, run: str) -> None:
    """Gate the script with a continued run as its golden, whose first runs are gone."""
    for earlier in ("first", "second"):
        shutil.rmtree(reprokit.directory / earlier)
    golden = RunDirectory(reprokit.directory / run)
    goldens.store(golden.path, reprokit.directory / "goldens/train" / goldens.machine_key(golden.environment() or {}))
    (reprokit.directory / "log.csv").unlink()
    done = reprokit.run("gate", "--golden", "goldens", "--", *golden.run.command)
    assert "train  passed  paired passed, golden passed" in done.stdout, done.stdout


@pytest.mark.slow
def test_a_keyframe_that_does_not_hold_leaves_all_as_it_was(reprokit: Reprokit) -> None:
    lines = keyframed(reprokit, "12", 6)
    checkpoint = (reprokit.directory / "epoch-0.pt").read_bytes()
    script = reprokit.directory / "train.py"
    text = script.read_text()
    script.write_text(text.replace("RATE = 0.01", "RATE = 0.02"))
    assert "a keyframe is for the script as it was (train.py: its contents differ)" in refused(reprokit, "first")
    script.write_text(text)
    for shard in (reprokit.directory / "first/keyframes").glob("*.safetensors"):
        data = bytearray(shard.read_bytes())
        data[-5] ^= 1
        shard.write_bytes(data)
    error = refused(reprokit, "first", "-o", "second")
    assert "keyframe-refused: the run does not go on from the keyframe of step" in error
    assert "--from-start" in error
    assert not (reprokit.directory / "second").exists()
    assert (reprokit.directory / "log.csv").read_text().splitlines() == lines
    assert (reprokit.directory / "epoch-0.pt").read_bytes() == checkpoint
    metrics = reprokit.directory / "first/metrics.jsonl"
    text = metrics.read_text()
    for damaged in (text.replace('"n":2,', '"n":2,,'), text.replace('"n":2,', '"n":99,')):
        metrics.write_text(damaged)
        assert "what comes before its keyframe is lost" in refused(reprokit, "first", "-o", "second")
    metrics.write_text(text)
    (numbers,) = (reprokit.directory / "first/numbers").iterdir()
    numbers.write_bytes(numbers.read_bytes()[:64])
    assert "what comes before its keyframe is lost" in refused(reprokit, "first", "-o", "second")
    write_seal(reprokit.directory / "first")
    assert "its keyframes are of a replay, which a question has left" in refused(reprokit, "first")
    (reprokit.directory / "first/keyframes" / SEAL).unlink()
    for shard in (reprokit.directory / "first/keyframes").glob("*.safetensors"):
        shard.unlink()
    assert "it has no keyframe" in refused(reprokit, "first")


@pytest.mark.slow
def test_a_continuation_that_was_killed_before_its_keyframe_takes_nothing_away(reprokit: Reprokit) -> None:
    keyframed(reprokit, "9", 6)
    checkpoint = (reprokit.directory / "second-epoch.pt").read_bytes()
    killed(reprokit, "log.csv", 1, "continue", "first", "-o", "second")
    go_on(reprokit, "first", "third")
    assert "second-epoch.pt" in (reprokit.directory / "third/answers/returned").read_text()
    assert (reprokit.directory / "second-epoch.pt").read_bytes() == checkpoint


@pytest.mark.slow
def test_what_is_written_or_renamed_right_behind_a_keyframe_is_put_back_or_named(reprokit: Reprokit) -> None:
    here = reprokit.directory
    (here / "train.py").write_text((TRAININGS / "continued_logs.py").read_text())
    (here / "dies").touch()
    done = reprokit.run("record", "-o", "first", "--keyframes", "5steps", "--", sys.executable, "train.py")
    assert done.returncode == -signal.SIGKILL, done.stderr
    (here / "dies").unlink()
    go_on(reprokit, "first", "second")
    assert reprokit.facts("second")["continues"]["step"] == 10
    names = ("before.pt", "kept.pt", "lines.csv", *(f"rotated.log{number}" for number in ("", ".1", ".2", ".3")))
    written = {name: (here / name).read_bytes() for name in names}
    reprokit.run("replay", "second", "-o", "again")
    differing = [name for name in names if (here / name).read_bytes() != written[name]]
    assert differing == ["lines.csv", "rotated.log.3"]
    warnings = [warning["text"] for warning in reprokit.facts("second")["warnings"]]
    (told,) = [text for text in warnings if "may hold what was not computed" in text]
    assert told.endswith("not computed: lines.csv, rotated.log.3"), told


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("spawn", marks=pytest.mark.extended)])
def test_ranks_go_on_together_from_the_last_keyframe_that_all_have(reprokit: Reprokit, launcher: str) -> None:
    """DDP's forward passes are left out with their collectives; the ranks wait for each other at the keyframe."""
    (reprokit.directory / "train.py").write_text((TRAININGS / "continued_ranks.py").read_text())
    runner = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    command = (*runner, "train.py", "9") if launcher == "torchrun" else (sys.executable, "train.py", "9")
    log = reprokit.directory / "log.csv"
    recording = "record", "-o", "first", "--keyframes", "4steps", "--", *command
    (reprokit.directory / "hold-5").touch()
    killed_at(reprokit, lambda: log.exists() and log.read_text().count("\n") >= 5, *recording)
    (reprokit.directory / "hold-5").unlink()
    keyframes = reprokit.directory / "first/keyframes"
    last = max(each.step for each in read(reprokit.directory / "first"))
    index = next(iter(sorted(keyframes.glob("*.jsonl"))))
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    shard = next(line["shard"] for line in lines if line.get("step") == last)
    (keyframes / f"{index.stem}-{shard:06d}.safetensors").unlink()
    done = go_on(reprokit, "first", "second")
    step = reprokit.facts("second")["continues"]["step"]
    assert 0 < step < last
    assert f"from the keyframe of step {step}" in done.stderr
    assert re.search(f"steps {step} to [0-9]+ are the same in both runs", done.stderr), done.stderr
    done = reprokit.run("replay", "second", "-o", "again")
    assert done.returncode == 0, done.stderr
    done = reprokit.run("verify", "second", "again", "--ignore", "log.csv")
    assert done.stdout.startswith("identical: "), done.stdout
    assert re.search("trail +identical +2 compared", done.stdout), done.stdout
    for path in keyframes.glob(f"{index.stem}-*.safetensors"):
        path.unlink()
    assert "its ranks have no keyframe of the same step" in refused(reprokit, "first", "-o", "third")


@pytest.mark.extended
@pytest.mark.skipif(not TRAINERS.exists(), reason=f"{TRAINERS} is not there: make .venv-trainers/.installed")
@pytest.mark.parametrize("trainer", ["lightning", "transformers"])
def test_a_trainer_goes_on_and_what_it_logs_from_memory_is_said(reprokit: Reprokit, trainer: str) -> None:
    (reprokit.directory / "train.py").write_text((TRAININGS / f"keyframed_{trainer}.py").read_text())
    first = reprokit.directory / "first"
    recording = "record", "-o", "first", "--keyframes", "5steps", "--", str(TRAINERS), "train.py", "64"
    killed_at(reprokit, lambda: (first / "keyframes").exists() and any(k.step > 25 for k in read(first)), *recording)
    done = go_on(reprokit, "first", "second")
    step = reprokit.facts("second")["continues"]["step"]
    assert f"is of the fast-forward until step {step}" in reprokit.run("show", "second").stdout
    assert "the same in both runs, by the trail" in done.stderr or "no step of the trail is in both" in done.stderr
    reprokit.run("replay", "second", "-o", "again")
    done = reprokit.run("verify", "second", "again")
    for fact in ("trail", "process metrics", "samples", "weights", "random states"):
        assert re.search(f"^{fact} +identical", done.stdout, re.MULTILINE), done.stdout
    assert "64 steps" in done.stdout
