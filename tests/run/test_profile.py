"""reprokit profile runs a command once, within bounds, watches its system calls, and shows what it found."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from reprokit.run.stragglers import processes
from reprokit.run.system_calls import BLOCK, CALLS, TraceReduction, _lines
from tests.support import COMMAND, LIMIT, Done, Reprokit, python, wait_until

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

ENDLESS = """
import sys, time
print("begun", flush=True)
try:
    while True:
        time.sleep(0.01)
finally:
    print("left in order", flush=True)
"""


def profile(reprokit: Reprokit, *arguments: str, **options: Any) -> Done:
    return reprokit.run("profile", "-o", "run", *arguments, **options)


def found(reprokit: Reprokit) -> dict[str, Any]:
    """findings.json, by subject, with the notes."""
    content = json.loads((reprokit.directory / "run" / "findings.json").read_text())
    return {"notes": content["notes"], **{one["subject"]: one for one in content["findings"]}}


def names(one: dict[str, Any]) -> list[str]:
    """Who asked."""
    return [os.path.basename(place["file"]) for place in one["where"]]


@needs_strace
def test_the_sources_of_a_program_and_who_asked(reprokit: Reprokit) -> None:
    code = "import os, subprocess; os.urandom(3); open('/proc/cpuinfo').close()\n"
    code += "subprocess.run(['sh', '-c', 'head -c 3 /dev/urandom > taken; :'])"
    done = profile(reprokit, "--", *python(code))
    assert done.returncode == 0
    facts, subjects = reprokit.facts("run"), found(reprokit)
    assert facts["profiling"]["system_calls"]["state"] == "on"
    assert names(subjects["openat /dev/urandom"]) == ["head"]
    assert subjects["openat /dev/urandom"]["verdict"] == "covered"
    assert names(subjects["openat /proc/cpuinfo"]) == [os.path.basename(sys.executable)]
    assert subjects["getrandom"]["verdict"] == "covered"
    assert "openat /dev/urandom" in done.stdout
    left = os.listdir(reprokit.directory / "run" / "profile")
    assert "system-calls.json" in left
    assert "strace" not in left
    assert not any("strace" in path.name for path in (reprokit.directory / "run" / "entropy").iterdir())


def test_a_profiled_run_is_a_recording_like_any_other(reprokit: Reprokit) -> None:
    code = "import os, random; print(os.urandom(4).hex(), random.random())"
    recorded = profile(reprokit, "--json", "--", *python(code))
    assert json.loads(recorded.stdout)["exit_code"] == 0
    replayed = reprokit.run("replay", "run", "-o", "replayed")
    assert replayed.stdout.strip()
    assert replayed.stdout in recorded.stderr
    assert reprokit.facts("replayed")["fidelity"]["live"] == 0


def test_the_exit_status_is_passed_on(reprokit: Reprokit) -> None:
    done = profile(reprokit, "--", *python("import sys; sys.exit(7)"))
    assert done.returncode == 7
    assert "findings in run" in done.stdout
    assert reprokit.facts("run")["profiling"]["ended"] == ""


def test_a_program_that_is_not_python_has_its_sources_told(reprokit: Reprokit) -> None:
    done = profile(reprokit, "--", "sh", "-c", "head -c 9 /dev/urandom | wc -c; exit 3")
    assert done.returncode == 3
    assert done.stdout.startswith("9\n")
    subjects = found(reprokit)
    assert subjects["device"]["verdict"] == "covered"
    assert any(note.startswith("no Python process was observed") for note in subjects["notes"])


def test_what_was_found_before_a_kill_appears(reprokit: Reprokit) -> None:
    code = "import os, random, time; random.seed(int(time.time())); os.urandom(3); os.kill(os.getpid(), 9)"
    done = profile(reprokit, "--", *python(code))
    assert done.returncode == -signal.SIGKILL
    subjects = found(reprokit)
    assert "the clock in seconds as a seed of random.seed" in subjects
    assert "getrandom" in subjects
    assert "covered" in done.stdout


def test_inputs_that_a_killed_process_kept_are_removed(reprokit: Reprokit) -> None:
    code = "import os; kept = os.environ['REPROKIT_RUN'] + '/profile/captured'; os.makedirs(kept)\n"
    code += "open(kept + '/1-0.pt', 'w').write('large'); os.kill(os.getpid(), 9)"
    profile(reprokit, "--confirm", "2", "--no-system-calls", "--", *python(code))
    assert not (reprokit.directory / "run" / "profile" / "captured").exists()


def test_findings_begin_on_a_line_of_their_own(reprokit: Reprokit) -> None:
    done = profile(reprokit, "--no-system-calls", "--", *python("print('loss 0.5', end='')"))
    assert done.stdout.startswith("loss 0.5\nfindings in run")


def test_binary_output_is_the_program_s_own_and_no_part_of_the_document(reprokit: Reprokit) -> None:
    code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 40); sys.stderr.buffer.write(b'\\xff\\x00')"
    run = [COMMAND, "profile", "--json", "-o", "run", "--", *python(code)]
    done = subprocess.run(run, cwd=reprokit.directory, capture_output=True, check=True, timeout=LIMIT)
    assert json.loads(done.stdout)["findings"] is not None
    assert bytes(range(256)) * 40 in done.stderr


@pytest.mark.extended
def test_a_program_that_forks_a_thousand_times(reprokit: Reprokit) -> None:
    code = """
import os
for number in range(1000):
    child = os.fork()
    if child == 0:
        os.urandom(1)
        os._exit(0)
    os.waitpid(child, 0)
"""
    done = profile(reprokit, "--", *python(code))
    assert done.returncode == 0, done.stderr
    one = found(reprokit)["getrandom"]
    assert one["calls"] >= 1000
    assert one["processes"] >= 1000
    assert len(done.stdout.splitlines()) < 40


def test_seconds_end_a_training_in_good_order(reprokit: Reprokit) -> None:
    done = profile(reprokit, "--seconds", "2", "--", *python(ENDLESS))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("begun\nleft in order\n")
    assert "the training was ended after 2 seconds, as asked" in done.stderr
    assert "Traceback" not in done.stderr
    facts = reprokit.facts("run")
    assert (facts["profiling"]["ended"], facts["exit_code"], facts["signal"]) == ("2 seconds", 0, None)


@pytest.mark.slow
@pytest.mark.torch
def test_seconds_count_from_the_first_step(reprokit: Reprokit) -> None:
    training = Path(__file__).parent.parent / "trainings" / "pytorch_late_steps.py"
    done = profile(reprokit, "--no-operators", "--seconds", "1", "--", sys.executable, str(training))
    assert done.returncode == 0, done.stderr
    facts = reprokit.facts("run")
    assert facts["profiling"]["ended"] == "1 seconds"
    assert facts["duration"] > 4
    (path,) = reprokit.directory.glob("run/profile/*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sum(line["steps"] for line in lines if line["kind"] == "process") > 1


def test_seconds_end_a_program_that_is_not_python_and_ignores_interrupts(reprokit: Reprokit) -> None:
    script = "trap '' INT; while :; do sleep 0.1; done"
    done = profile(reprokit, "--seconds", "1", "--", "sh", "-c", script)
    assert done.returncode == 0
    assert reprokit.facts("run")["profiling"]["ended"] == "1 seconds"


def test_seconds_end_the_python_beneath_a_shell_and_nothing_goes_on(reprokit: Reprokit) -> None:
    reprokit.script("endless.py", ENDLESS)
    script = f"{sys.executable} endless.py & {sys.executable} endless.py; touch never"
    done = profile(reprokit, "--seconds", "3", "--", "sh", "-c", script)
    assert done.returncode == 0
    assert "left in order" in done.stdout
    assert not (reprokit.directory / "never").exists()
    assert list(processes(reprokit.directory / "run")) == []


def test_steps_end_a_training_once_an_agent_has_seen_them(reprokit: Reprokit) -> None:
    code = "import os, time\nopen(os.path.join(os.environ['REPROKIT_RUN'], 'profile', 'enough'), 'w').close()\n"
    done = profile(reprokit, "--steps", "5", "--", *python(code + ENDLESS))
    assert done.returncode == 0
    assert "left in order" in done.stdout
    assert reprokit.facts("run")["profiling"]["ended"] == "5 steps"


def test_a_training_that_ends_before_its_bound_has_its_own_status(reprokit: Reprokit) -> None:
    done = profile(reprokit, "--seconds", "100", "--steps", "100", "--", *python("import sys; sys.exit(4)"))
    assert done.returncode == 4
    assert reprokit.facts("run")["profiling"]["ended"] == ""


def test_without_strace_the_shim_s_own_log_is_used_and_that_is_said(reprokit: Reprokit) -> None:
    environment = {"PATH": str(reprokit.directory)}
    done = profile(reprokit, "--", *python("import os; os.urandom(3)"), environment=environment)
    assert done.returncode == 0
    assert "system calls are not watched, the shim's own log is used: strace is not on PATH" in done.stderr
    assert reprokit.facts("run")["profiling"]["system_calls"]["why"] == "strace is not on PATH"
    subjects = found(reprokit)
    assert subjects["getrandom"]["kind"] == "source"
    assert any("strace is not on PATH" in note for note in subjects["notes"])


def test_where_ptrace_is_forbidden_that_is_said(reprokit: Reprokit) -> None:
    text = "#!/bin/sh\necho 'strace: ptrace(PTRACE_TRACEME, ...): Operation not permitted' >&2\nexit 1\n"
    reprokit.script("strace", text)
    environment = {"PATH": f"{reprokit.directory}:{os.environ['PATH']}"}
    done = profile(reprokit, "--", *python("import os; os.urandom(3)"), environment=environment)
    assert done.returncode == 0
    assert "strace cannot trace here: strace: ptrace" in done.stderr
    assert "getrandom" in found(reprokit)


def test_system_calls_that_nobody_wants_are_not_watched(reprokit: Reprokit) -> None:
    done = profile(reprokit, "--no-system-calls", "--", *python("import os; os.urandom(3)"))
    assert reprokit.facts("run")["profiling"]["system_calls"]["code"] == "not-asked"
    assert "system calls are not watched" not in done.stderr


@pytest.mark.parametrize("option", [("--steps", "0"), ("--seconds", "-1"), ("--confirm", "1"), ("--seconds", "nan")])
def test_bounds_that_make_no_sense_are_refused(reprokit: Reprokit, option: tuple[str, str]) -> None:
    done = profile(reprokit, *option, "--", "true")
    assert done.returncode == 125
    assert done.stderr.startswith("reprokit: usage: ")
    assert not (reprokit.directory / "run").exists()


def test_a_command_that_does_not_exist_has_the_usual_status(reprokit: Reprokit) -> None:
    assert profile(reprokit, "--", "no-such-command").returncode == 127
    assert reprokit.run("profile").returncode == 125


def test_the_filter_has_nothing_that_a_training_does_all_the_time() -> None:
    assert {call.lstrip("?") for call in CALLS} == {
        *("getrandom", "openat", "open", "execve", "execveat", "clone", "clone3", "fork", "vfork")
    }


def reduced(*lines: bytes) -> list[tuple[str, str, int, int]]:
    reduction = TraceReduction()
    for line in lines:
        reduction.add(line)
    return [(call.source, os.path.basename(call.program), call.pid, call.calls) for call in reduction.calls()]


def test_threads_and_forks_belong_to_their_process_and_program() -> None:
    assert reduced(
        b'7 execve("/usr/bin/python3", ["python3"], 0x7ff /* 3 vars */) = 0',
        b"7 clone3({flags=CLONE_VM|CLONE_THREAD|CLONE_SIGHAND, exit_signal=0} => {parent_tid=[8]}, 88) = 8",
        b'8 openat(AT_FDCWD, "/dev/urandom", O_RDONLY) = 3',
        b'9 openat(AT_FDCWD, "/dev/urandom", O_RDONLY <unfinished ...>',
        b"7 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|SIGCHLD) = 9",
        b"9 <... openat resumed>) = 4",
        b'7 getrandom(""..., 8, GRND_NONBLOCK) = 8',
    ) == [
        ("/dev/urandom", "python3", 7, 1),
        ("/dev/urandom", "python3", 9, 1),
        ("getrandom", "python3", 7, 1),
    ]


def test_calls_that_failed_and_files_that_matter_to_nobody_are_left_out() -> None:
    assert (
        reduced(
            b'7 openat(AT_FDCWD, "/dev/nvidiactl", O_RDWR) = -1 ENOENT (No such file or directory)',
            b'7 openat(AT_FDCWD, "/dev/null", O_RDWR) = 3',
            b'7 openat(AT_FDCWD, "/home/x/dev/urandom", O_RDWR) = 3',
            b'7 getrandom(""..., 8, GRND_NONBLOCK) = -1 EAGAIN (Resource temporarily unavailable)',
            b"7 +++ exited with 0 +++",
            b"\xff\x00 what",
        )
        == []
    )
    assert reduced(
        b'7 openat(AT_FDCWD, "/dev/nvidia0", O_RDWR) = 3',
        b'7 openat(AT_FDCWD, "/sys/devices/system/cpu/cpu3/topology/core_id", O_RDONLY) = 3',
        b'7 openat(AT_FDCWD, "/sys/devices/system/cpu/online", O_RDONLY) = 3',
    ) == [("/sys/devices/system/cpu", "", 7, 2), ("/dev/nvidia0", "", 7, 1)]


def test_the_trace_is_read_while_it_grows_and_taken_from_the_disk(tmp_path: Path) -> None:
    trace, ended = tmp_path / "trace", threading.Event()
    lines: list[bytes] = []
    reader = threading.Thread(target=lambda: lines.extend(_lines(trace, ended)))
    reader.start()
    line = b"x" * 999 + b"\n"
    with open(trace, "wb") as file:
        for _ in range(3 * BLOCK // len(line)):
            file.write(line)
        file.flush()
        wait_until(lambda: len(lines) == file.tell() // len(line), "the first lines")
        os.fsync(file.fileno())
        wait_until(lambda: os.stat(trace).st_blocks * 512 < BLOCK, "the disk to be free again")
        file.write(b"the last\nhalf a line")
    ended.set()
    reader.join()
    assert lines[-1] == b"the last"


@pytest.mark.slow
def test_a_process_that_outlives_the_command_holds_nothing_up(reprokit: Reprokit) -> None:
    run = [COMMAND, "profile", "-o", "run", "--", "sh", "-c", "sleep 600 & echo $! > number"]
    done = subprocess.run(run, cwd=reprokit.directory, stdout=subprocess.DEVNULL, check=False, timeout=LIMIT)
    os.kill(int((reprokit.directory / "number").read_text()), signal.SIGKILL)
    assert done.returncode == 0
    assert any("outlived the command" in note for note in found(reprokit)["notes"])
