"""The time of day and the process id with ``--clock``: given again, and no thread or process waits wrongly for it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable

import pytest

from reprokit import entropy
from reprokit.entropy.files import ClockRead
from tests.native.harness import Shim, run
from tests.support import Reprokit, training_text

CLOCK = {"clock": True}
REPEATED = [
    "seed", "clock_gettime", "gettimeofday", "timespec_get", "time", "threads", "processes", "signals", "family",
    "programs", "lookups",
]  # fmt: skip


def recorded_and_replayed(shim: Shim, command: list[str], replays: int = 3) -> tuple[bytes, list[bytes]]:
    done = [shim.record(command, plan=CLOCK), *(shim.replay(command, plan=CLOCK) for _ in range(replays))]
    assert [(one.returncode, one.stderr) for one in done] == [(0, b"")] * (1 + replays)
    return done[0].stdout, [one.stdout for one in done[1:]]


@pytest.mark.parametrize("path", REPEATED)
def test_what_was_read_is_read_again(path: str, shim: Shim, build: Callable[..., str]) -> None:
    command = [build("clock.c"), path]
    bare = [run(command) for _ in range(2)]
    assert [(one.returncode, one.stderr) for one in bare] == [(0, b"")] * 2
    assert bare[0].stdout != bare[1].stdout
    recorded, replayed = recorded_and_replayed(shim, command)
    assert recorded not in [one.stdout for one in bare]
    assert replayed == [recorded] * 3
    assert shim.fidelity().clock > 0
    assert shim.fidelity().clock_past == 0


def test_a_generator_seeded_from_the_system_clock(shim: Shim, build: Callable[..., str]) -> None:
    command = [build("clock.cpp"), "seed"]
    assert run(command).stdout != run(command).stdout
    recorded, replayed = recorded_and_replayed(shim, command)
    assert replayed == [recorded] * 3


@pytest.mark.parametrize("path", ["seed", "clock_gettime"])
def test_without_the_option_nothing_of_it_is_recorded(path: str, shim: Shim, build: Callable[..., str]) -> None:
    command = [build("clock.c"), path]
    recorded = shim.record(command)
    assert shim.events() == []
    assert shim.replay(command).stdout != recorded.stdout


@pytest.mark.parametrize(("source", "path"), [("clock.c", "clock_gettime"), ("clock.cpp", "seed")])
def test_who_reads_the_clock_is_told(source: str, path: str, shim: Shim, build: Callable[..., str]) -> None:
    """Of std::chrono it is the caller, not libstdc++."""
    command = [build(source), path]
    shim.record(command)
    told = (shim.directory / "recorded" / "modules.paths").read_text().splitlines()
    assert f"clock {os.path.realpath(command[0])}" in told
    assert not any("libstdc++" in line for line in told if line.startswith("clock "))


def test_the_monotonic_clock_is_real(shim: Shim, build: Callable[..., str]) -> None:
    recorded, replayed = recorded_and_replayed(shim, [build("clock.c"), "monotonic"], replays=2)
    assert shim.events() == []
    first, second, third = ([int(word) for word in line.split()] for line in (recorded, *replayed))
    assert first[:2] < second[:2] < third[:2]
    assert first[1] < second[1] < third[1]


@pytest.mark.parametrize("recorded", ["deadlines", "seed"])
def test_deadlines_of_a_recorded_time_lie_in_the_future(recorded: str, shim: Shim, build: Callable[..., str]) -> None:
    program = build("clock.c")
    expected = [line + " in time" for line in ("semaphore", "condition", "c11", "mutex", "futex", "sleep")]
    assert shim.record([program, recorded], plan=CLOCK).returncode == 0
    for _ in range(2):
        replayed = shim.replay([program, "deadlines"], plan=CLOCK)
        assert (replayed.returncode, replayed.stdout.decode().splitlines()) == (0, expected)


def test_cpp_waits_until_a_recorded_time(shim: Shim, build: Callable[..., str]) -> None:
    recorded, replayed = recorded_and_replayed(shim, [build("clock.cpp"), "wait"], replays=2)
    assert [recorded, *replayed] == [b"in time\n"] * 3


def test_a_waiting_thread_can_be_cancelled(shim: Shim, build: Callable[..., str]) -> None:
    command = [build("clock.c"), "cancelled"]
    recorded, replayed = recorded_and_replayed(shim, command, replays=2)
    assert {run(command).stdout, recorded, *replayed} == {b"semaphore\ncondition\nsleep\n"}


def test_a_loop_that_waits_for_a_moment_ends(shim: Shim, build: Callable[..., str]) -> None:
    program = build("clock.c")
    shim.record([program, "seed"], plan=CLOCK)
    replayed = shim.replay([program, "loop"], policy="strict", plan=CLOCK)
    assert (replayed.returncode, replayed.stdout) == (0, b"over\n")
    assert shim.fidelity().clock == 1
    assert shim.fidelity().clock_past > 1


def test_more_reads_than_recorded_leave_the_entropy_as_it_was(shim: Shim, build: Callable[..., str]) -> None:
    command = [build("clock.c"), "more_reads_when_replayed"]
    recorded = shim.record(command, plan=CLOCK, extra={"READS": "3"})
    replayed = shim.replay(command, policy="strict", plan=CLOCK, extra={"READS": "5000"})
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout)
    fidelity = shim.fidelity()
    assert (fidelity.exact, fidelity.requests, fidelity.unused) == (1, 1, 0)
    assert (fidelity.clock, fidelity.clock_past) == (4, 4997)


def test_reads_of_the_clock_are_no_entropy(shim: Shim, build: Callable[..., str]) -> None:
    shim.record([build("clock.c"), "more_reads_when_replayed"], plan=CLOCK, extra={"READS": "10000"})
    facts = entropy.summarize(shim.entropy("recorded"))
    assert (facts.events, facts.entropy, facts.threads) == (1, 8, 1)
    reads = [record for _, record in shim.events() if isinstance(record, ClockRead)]
    assert len(reads) == 10_001
    assert {read.thread for read in reads} == {"m#clock"}
    [path] = entropy.entropy_files(shim.entropy("recorded"))
    assert entropy.EntropyFile(path).head.used < 10_001 * 12 + 65536  # the clock's last chunk


def test_native_code_is_given_no_process_id_that_somebody_has(shim: Shim, build: Callable[..., str]) -> None:
    ids = {int(shim.record([build("clock.c"), "time"], plan=CLOCK).stdout.split()[1]) for _ in range(2)}
    assert len(ids) == 1  # of one key and identity
    assert 1 << 22 < min(ids) <= 999_999_999
    shim.record(["sh", "-c", f"{build('clock.c')} processes; {build('clock.c')} processes"], plan=CLOCK)
    lines = shim.record([build("clock.c"), "processes"], plan=CLOCK).stdout.splitlines()
    assert len({line.split()[0] for line in lines}) == 4


def test_parents_and_programs_agree_on_their_numbers(shim: Shim, build: Callable[..., str]) -> None:
    lines = shim.record([build("clock.c"), "programs"], plan=CLOCK).stdout.split(b"\n")
    pairs = [[int(word) for word in line.split()[:2]] for line in lines if line]
    parent = pairs[0][0]
    assert [pair[0] for pair in pairs[1:3]] == [parent, parent]  # system's shell gave way to the program
    assert pairs[3][0] not in (parent, 0)  # the shell
    assert len({pair[1] for pair in pairs[1:]} | {parent}) == 4
    heads = [file.head for file in entropy.processes(shim.entropy("recorded"))]
    assert {parent, *(pair[1] for pair in pairs[1:])} <= {head.stand_in for head in heads}


def test_the_number_is_the_recorded_one(shim: Shim, build: Callable[..., str]) -> None:
    command = [build("clock.c"), "time"]
    recorded = shim.record(command, plan=CLOCK)
    replayed = shim.replay(command, plan={**CLOCK, "key": bytes(32)})  # it is not made again
    assert replayed.stdout == recorded.stdout
    [path] = entropy.entropy_files(shim.entropy("replayed"))
    assert entropy.EntropyFile(path).head.stand_in == int(recorded.stdout.split()[1])


@pytest.mark.parametrize("number", [1, 2**22, 10**9, 2**63])
def test_a_recorded_number_that_somebody_could_have_is_not_given(
    number: int, shim: Shim, build: Callable[..., str]
) -> None:
    command = [build("clock.c"), "time"]
    recorded = shim.record(command, plan=CLOCK)
    [path] = entropy.entropy_files(shim.entropy("recorded"))
    with path.open("r+b") as file:
        file.seek(672)
        file.write(number.to_bytes(8, "little"))
    assert shim.replay(command, plan=CLOCK).stdout == recorded.stdout


BASH = """
echo $RANDOM $RANDOM $$ $PPID
(echo $RANDOM $BASHPID)
echo $RANDOM | cat
bash -c 'echo $RANDOM $PPID $$'
bash -c 'echo $$ > started; exec sleep 60' & until [ -s started ]; do sleep 0.01; done
kill $(cat started); wait $!; echo $?
"""


def test_the_random_numbers_of_bash(reprokit: Reprokit) -> None:
    bash = shutil.which("bash")
    assert bash
    (reprokit.directory / "script").write_text(BASH)
    recorded = reprokit.run("record", "--clock", "-o", "run", "--", bash, "script")
    (reprokit.directory / "started").unlink()
    replayed = reprokit.run("replay", "run")
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout)
    assert recorded.stdout.splitlines()[-1] == str(128 + signal.SIGTERM)
    (reprokit.directory / "started").unlink()
    assert reprokit.run("record", "--clock", "--", bash, "script").stdout != recorded.stdout


def test_a_keyed_run_records_the_clock_nevertheless(shim: Shim, build: Callable[..., str]) -> None:
    command = [build("clock.c"), "more_reads_when_replayed"]
    plan = {"clock": True, "keyed": True}
    recorded = shim.record(command, plan=plan, extra={"READS": "100"})
    for _ in range(2):
        assert shim.replay(command, plan=plan, extra={"READS": "100"}).stdout == recorded.stdout
    assert (shim.fidelity().clock, shim.fidelity().clock_past) == (101, 0)
    seed = [build("clock.c"), "seed"]
    assert shim.record(seed, plan=plan).stdout == shim.replay(seed, plan=plan).stdout


PYTHON = training_text("clocked_python.py")


def test_python(shim: Shim) -> None:
    command = [sys.executable, "-c", PYTHON]
    recorded, replayed = recorded_and_replayed(shim, command)
    assert replayed == [recorded] * 3
    lines = recorded.decode().splitlines()
    assert lines[0].endswith(" True")
    assert lines[1:3] == ["signal", "False True"]
    assert lines[3].endswith(" True, True)")
    assert lines[4] == "False True"
    assert shim.record(command, "again", plan=CLOCK).stdout != recorded


@pytest.mark.tf114
def test_python_of_2018_waits_by_the_time_of_day(shim: Shim) -> None:
    """CPython 3.7's locks take deadlines by CLOCK_REALTIME."""
    recorded, replayed = recorded_and_replayed(shim, [os.environ["REPROKIT_TF114_PYTHON"], "-c", PYTHON], replays=2)
    assert replayed == [recorded] * 2
    assert recorded.decode().splitlines()[2] == "False True"


def test_the_option_is_kept_in_the_run_and_replayed(reprokit: Reprokit, build: Callable[..., str]) -> None:
    recorded = reprokit.run("record", "--clock", "-o", "run", "--", build("clock.c"), "seed")
    assert reprokit.facts("run")["clock"] is True
    replayed = reprokit.run("replay", "run", "-o", "again")
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout)
    assert "reads of the clock: 1 as recorded, 0 beyond" in replayed.stderr
    for name in ("run", "again"):
        shown = json.loads(reprokit.run("show", "--entropy", "--json", name).stdout)
        [told] = {process["stand_in"] for process in shown["processes"]}
        assert 1 << 22 < told <= 999_999_999
        assert (
            f"process 0 of clock-c was told {told} as its process id" in reprokit.run("show", "--entropy", name).stdout
        )
    # Another recording has another key, and so another number in the place of the process id.
    numbers = {reprokit.run("record", "--clock", "--", build("clock.c"), "time").stdout.split()[1] for _ in range(2)}
    assert len(numbers) == 2
