"""What the shim does not reach, and the supervisor answers: bare runs differ, each replay equals the recording."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from reprokit import entropy
from reprokit.entropy import fresh_requests
from tests.support import COMMAND, LIMIT, Done, Reprokit, rest_slow, wait_until

HERE = Path(__file__).parent
STATIC = (
    "getrandom",
    "large",
    "bad_address",
    "threads",
    "fork",
    "device",
    "relative",
    "many_reads",
    "uuid",
    "at_random",
    "exec",
    "children",
    "opens",
    "exec_alike",
    "faults",
)
DYNAMIC = ("getrandom", "threads", "fork", "exec", "opens", "faults")  # whose system calls the shim does not see
RUNS_AHEAD = {"device", "relative", "many_reads", "opens"}  # the pipe behind a device is filled beyond what is read

GO = """
package main

import (
	"crypto/rand"
	"fmt"
	"os"
	"sync"
)

func main() {
	var group sync.WaitGroup
	bytes := make([]byte, 16)
	rand.Read(bytes)
	fmt.Printf("%x\\n", bytes)
	for i := 0; i < 4; i++ {
		group.Add(1)
		go func() { defer group.Done(); rand.Read(bytes) }()
		group.Wait()
		fmt.Printf("%x\\n", bytes)
	}
	file, _ := os.Open("/dev/urandom")
	file.Read(bytes)
	fmt.Printf("%x\\n", bytes)
}
"""

RUST = """
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
fn main() {
    println!("{:x}", RandomState::new().build_hasher().finish());
    std::thread::spawn(|| println!("{:x}", RandomState::new().build_hasher().finish())).join().unwrap();
}
"""


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Compile supervised.c with these options, once a session."""
    directory = tmp_path_factory.mktemp("supervised")

    def compile_program(*options: str) -> str:
        program = directory / ("supervised" + "".join(options))
        if not program.exists():
            command = ["gcc", "-D_GNU_SOURCE", "-O1", "-Wall", *options, str(HERE / "supervised.c"), "-lpthread"]
            subprocess.run([*command, "-o", str(program)], check=True)
        return str(program)

    return compile_program


@pytest.fixture
def drop(reprokit: Reprokit) -> str:
    """A static program that starts another one with an empty environment, past every hook."""
    source = (
        "#include <unistd.h>\nint main(int n, char **v) { char *e[] = {0}; return execve(v[1], v + 1, e) + (n < 2); }"
    )
    program = str(reprokit.directory / "drop")
    subprocess.run(["gcc", "-x", "c", "-", "-static", "-o", program], input=source, text=True, check=True)
    return program


def bare(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def supervised(
    reprokit: Reprokit, *command: str, times: int = 3, ahead: bool = False, options: tuple[str, ...] = ()
) -> Done:
    """Bare runs differ, the recording differs from them, and every replay equals it."""
    before = {bare(*command) for _ in range(2)}
    assert len(before) == 2
    recorded = reprokit.run("record", *options, "-o", "recorded", "--", *command)
    assert recorded.returncode == 0, recorded.stderr
    assert reprokit.facts("recorded")["supervisor"]["state"] == "on"
    assert recorded.stdout not in before
    for number in range(times):
        replayed = reprokit.run("replay", "recorded", "-o", f"replayed{number}")
        assert (replayed.stdout, replayed.returncode) == (recorded.stdout, 0), replayed.stderr
        fidelity = reprokit.facts(f"replayed{number}")["fidelity"]
        assert fidelity["exact"] > 0
        assert fidelity["moved"] == fidelity["derived"] == fidelity["live"] == 0
        assert fidelity["unused"] == 0 or ahead
    return recorded


@pytest.mark.parametrize("path", rest_slow(STATIC))
def test_a_static_program(path: str, reprokit: Reprokit, build: Callable[..., str]) -> None:
    done = supervised(reprokit, build("-static"), path, ahead=path in RUNS_AHEAD)
    assert "warning" not in done.stderr


def test_what_a_pipe_runs_ahead_is_not_taken_from_another(reprokit: Reprokit, build: Callable[..., str]) -> None:
    recorded = reprokit.run("record", "-o", "recorded", "--", build("-static"), "ahead")
    replayed = reprokit.run("replay", "recorded", "-o", "replayed", environment={"AHEAD": "16000"})
    assert replayed.stdout == recorded.stdout
    fidelity = reprokit.facts("replayed")["fidelity"]
    assert fidelity["exact"] >= 2
    assert fidelity["moved"] == fidelity["derived"] == 0


@pytest.mark.parametrize("path", rest_slow(DYNAMIC))
def test_system_calls_of_a_programs_own(path: str, reprokit: Reprokit, build: Callable[..., str]) -> None:
    supervised(reprokit, build(), path, ahead=path in RUNS_AHEAD)


def test_a_proof_names_nothing_that_was_opened_past_libc(reprokit: Reprokit, build: Callable[..., str]) -> None:
    if shutil.which("strace") is None:
        pytest.skip("no strace")
    done = reprokit.run("record", "--prove", "-o", "recorded", "--", build(), "opens")
    proof = reprokit.facts("recorded")["proof"]
    assert proof["unaccounted"] == [], done.stderr
    assert proof["requests"] == proof["accounted"] >= 14


def test_a_program_that_lost_the_preload(reprokit: Reprokit, build: Callable[..., str], drop: str) -> None:
    """Opens, too, are the supervisor's where there is no shim. env itself has it, and puts it back."""
    supervised(reprokit, drop, build(), "device", ahead=True)
    assert bare(drop, "/usr/bin/env") == ""


@pytest.mark.slow
def test_a_go_program(reprokit: Reprokit) -> None:
    go = shutil.which("go") or shutil.which("go", path=str(Path(sys.executable).parent))
    if go is None:
        pytest.skip("there is no Go toolchain for this platform")
    (reprokit.directory / "main.go").write_text(GO)
    environment = {**os.environ, "GOCACHE": str(reprokit.directory / "cache"), "GO111MODULE": "off"}
    subprocess.run([go, "build", "-o", "program", "main.go"], cwd=reprokit.directory, env=environment, check=True)
    program = str(reprokit.directory / "program")
    supervised(reprokit, program, ahead=True, options=("--include-crypto",))
    if shutil.which("strace") is not None:
        proved = reprokit.run("record", "--prove", "--include-crypto", "-o", "proved", "--", program)
        assert reprokit.facts("proved")["proof"]["unaccounted"] == []
        assert reprokit.run("replay", "proved").stdout == proved.stdout
    # crypto/rand makes keys: without the option every run has its own, and both say so.
    fresh = reprokit.run("record", "-o", "fresh", "--", program)
    again = reprokit.run("replay", "fresh")
    assert set(fresh.stdout.split()).isdisjoint(again.stdout.split())
    assert [done.stderr.count("warning: program: Go's crypto/rand") for done in (fresh, again)] == [1, 1]


ORDERED_BY_CHANCE = """
package main

import (
	"fmt"
	"hash/maphash"
)

func main() {
	table := map[int]int{}
	for i := 0; i < 50; i++ {
		table[i] = i
	}
	for key := range table {
		fmt.Print(key, " ")
	}
	var hash maphash.Hash
	fmt.Println(hash.Sum64())
}
"""
TOOLCHAINS = sorted(
    {place for path in (None, str(Path(sys.executable).parent)) if (place := shutil.which("go", path=path))}
)


@pytest.mark.slow
@pytest.mark.skipif(not TOOLCHAINS, reason="there is no Go toolchain for this platform")
@pytest.mark.parametrize("go", TOOLCHAINS)
def test_a_go_program_that_seeds_itself_from_ticks_is_named(reprokit: Reprokit, go: str) -> None:
    (reprokit.directory / "main.go").write_text(ORDERED_BY_CHANCE)
    environment = {**os.environ, "GOCACHE": str(reprokit.directory / "cache"), "GO111MODULE": "off"}
    subprocess.run([go, "build", "-o", "program", "main.go"], cwd=reprokit.directory, env=environment, check=True)
    told = subprocess.run([go, "version"], env=environment, capture_output=True, text=True, check=True).stdout
    major, minor = map(int, re.findall(r"go(\d+)\.(\d+)", told)[0])
    repeats = (major, minor) >= (1, 22)
    prove = ["--prove"] if shutil.which("strace") else []
    done = reprokit.run("record", *prove, "-o", "recorded", "--", "sh", "-c", "./program > order; rm program")
    assert done.returncode == 0, done.stderr
    facts = reprokit.facts("recorded")
    sources = [(source["source"], source["module"]) for source in facts["uncovered"]]
    assert sources == ([] if repeats else [("ticks", str(reprokit.directory / "program"))])
    assert ("from the processor's ticks, which do not repeat" in done.stderr) == (not repeats)
    if prove:
        assert ("all accounted for" in done.stderr) == repeats
        assert len(facts["proof"]["without_requests"]) == (not repeats)


@pytest.mark.parametrize("options", rest_slow([[], ["-C", "target-feature=+crt-static"]]), ids=["dynamic", "static"])
def test_a_rust_program(options: list[str], reprokit: Reprokit) -> None:
    if shutil.which("rustc") is None:
        pytest.skip("no rustc")
    (reprokit.directory / "main.rs").write_text(RUST)
    subprocess.run(["rustc", *options, "-o", "program", "main.rs"], cwd=reprokit.directory, check=True)
    supervised(reprokit, str(reprokit.directory / "program"))


@pytest.mark.slow
def test_children_of_the_shims_processes_have_its_names(reprokit: Reprokit, build: Callable[..., str]) -> None:
    program = build("-static")
    code = f"import subprocess\nfor path in ('getrandom', 'device'): subprocess.run(['{program}', path])"
    supervised(reprokit, sys.executable, "-c", code, ahead=True)


@pytest.mark.parametrize("path", rest_slow(["getrandom", "device", "uuid"]))
def test_without_it_the_run_says_what_is_not_covered(path: str, reprokit: Reprokit, build: Callable[..., str]) -> None:
    recorded = reprokit.run("record", "--no-supervisor", "-o", "recorded", "--", build("-static"), path)
    facts = reprokit.facts("recorded")
    assert facts["supervisor"] == {"state": "off", "code": "not-asked", "why": "--no-supervisor"}
    assert "statically linked" in facts["uncovered"][0]["text"]
    assert "supervisor off: --no-supervisor" in recorded.stderr
    assert reprokit.run("replay", "recorded", "-o", "replayed").stdout != recorded.stdout
    assert reprokit.facts("replayed")["supervisor"] == facts["supervisor"]  # as it was recorded


def test_a_strict_replay_stops_the_program_and_not_the_launcher(reprokit: Reprokit, build: Callable[..., str]) -> None:
    program = build("-static")
    script = reprokit.script("which", f'#!/bin/sh\nexec "{program}" $(cat which-path)\n')
    (reprokit.directory / "which-path").write_text("getrandom")
    assert reprokit.run("record", "-o", "recorded", "--", str(script)).returncode == 0
    (reprokit.directory / "which-path").write_text("many_reads")
    done = reprokit.run("replay", "recorded", "-o", "exact", "--policy", "strict")
    assert done.returncode == 0, done.stderr  # a feeder runs ahead: no mismatch
    (reprokit.directory / "which-path").write_text("threads")
    done = reprokit.run("replay", "recorded", "-o", "stopped", "--policy", "strict")
    assert done.returncode == 125
    assert "is not in the random profile" in done.stderr
    assert reprokit.facts("stopped")["status"] == "finished"


def go_on(reprokit: Reprokit, program: str, number: int) -> Path:
    """A program that asks for ever goes on when its launcher is sent this signal."""
    run = reprokit.directory / "run"
    with open(reprokit.directory / "letters", "wb") as letters:
        launcher = subprocess.Popen(
            [COMMAND, "record", "-o", str(run), "--", program, "forever"],
            cwd=reprokit.directory, stdout=letters, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    size = (reprokit.directory / "letters").stat
    wait_until(lambda: size().st_size > 20, "the first letters")
    os.kill(launcher.pid, number)
    before = size().st_size
    wait_until(lambda: size().st_size > before + 100, "more letters")
    wait_until(lambda: fresh_requests(run / "entropy") > 10, "the standby's count")
    os.kill(launcher.pid, signal.SIGCONT)
    os.kill(wait_until_found(run, program), signal.SIGTERM)
    launcher.wait()
    return run


def program_of(run: Path, program: str) -> int:
    """The process of this run that executes the program; 0 where there is none."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if (
                os.path.samefile(directory / "exe", program)
                and os.fsencode(run) in (directory / "environ").read_bytes()
            ):
                return int(directory.name)
        except OSError:
            continue
    return 0


def standbys(run: Path) -> list[str]:
    """Processes that have the command line of this run's launcher, whose forks they are."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(run) in (directory / "cmdline").read_bytes():
                found.append((directory / "comm").read_text().strip())
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_nothing_waits_for_a_launcher_that_is_gone(
    number: signal.Signals, reprokit: Reprokit, build: Callable[..., str]
) -> None:
    run = go_on(reprokit, build("-static"), number)
    if number == signal.SIGSTOP:
        warnings = reprokit.facts(run)["warnings"]
        assert any("requests got fresh bytes" in warning["text"] for warning in warnings)


def test_the_standby_ends_with_the_run(reprokit: Reprokit, build: Callable[..., str]) -> None:
    run = reprokit.directory / "run"
    launcher = reprokit.start("record", "-o", str(run), "--", build("-static"), "forever")
    wait_until(lambda: "reprokit-wait" in standbys(run), "the standby")
    child = wait_until_found(run, build("-static"))
    os.kill(child, signal.SIGTERM)
    launcher.communicate()
    wait_until(lambda: not standbys(run), "the end of the standby")


def wait_until_found(run: Path, program: str) -> int:
    wait_until(lambda: program_of(run, program), "the program")
    return program_of(run, program)


def test_a_listener_that_is_there_already_is_left_alone(
    reprokit: Reprokit, build: Callable[..., str], drop: str
) -> None:
    """Inside a supervised run of another tool: the kernel allows one listener."""
    inner = [drop, COMMAND, "record", "-o", "inner", "--", build("-static"), "getrandom"]
    outer = reprokit.run("record", "-o", "outer", "--", *inner)
    assert outer.returncode == 0, outer.stderr
    state = reprokit.facts("inner")["supervisor"]
    assert state["state"] == "off"
    assert state["why"]
    assert "allows one" in state["why"]
    assert len(outer.stdout.split()) == 3


def identities(run: Path) -> set[str]:
    return {file.head.identity for file in entropy.processes(run / "entropy")}


def test_an_exec_is_seen_while_another_thread_asks(reprokit: Reprokit, build: Callable[..., str]) -> None:
    for _ in range(3):
        shutil.rmtree(reprokit.directory / "run", ignore_errors=True)
        done = reprokit.run("record", "-o", "run", "--", build("-static"), "exec_beside_thread")
        assert done.returncode == 0, done.stderr
        assert identities(reprokit.directory / "run") == {"0@", "0+@"}


@pytest.mark.slow
def test_a_program_is_not_written_to_for_the_one_before(reprokit: Reprokit, build: Callable[..., str]) -> None:
    done = reprokit.run("record", "-o", "run", "--", build("-static", "-no-pie"), "exec_behind_first")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["untouched"] * 150


def test_requests_of_programs_that_are_killed_are_not_unanswered_ones(
    reprokit: Reprokit, build: Callable[..., str]
) -> None:
    done = reprokit.run("record", "-o", "run", "--", build("-static"), "killed")
    assert done.returncode == 0
    assert fresh_requests(reprokit.directory / "run" / "entropy") == 0
    assert "fresh bytes" not in done.stderr


def test_an_exec_that_the_standby_let_go_on_is_found_out(reprokit: Reprokit, build: Callable[..., str]) -> None:
    done = reprokit.run("record", "-o", "run", "--", build("-static"), "exec_unseen")
    assert done.returncode == 0
    assert identities(reprokit.directory / "run") == {"0@", "0+@"}


def test_who_takes_in_orphans_is_no_program_of_the_run(reprokit: Reprokit, build: Callable[..., str]) -> None:
    program, run = build("-static"), reprokit.directory / "run"
    record = [COMMAND, "record", "-o", str(run), "--", program, "orphan"]
    done = subprocess.run([program, "reaper", *record], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "as before"
    assert len(list(entropy.processes(run / "entropy"))) == 2  # the orphan's request was answered


def test_signals_do_not_interrupt_what_the_kernel_does_not_let_them(
    reprokit: Reprokit, build: Callable[..., str]
) -> None:
    done = reprokit.run("record", "-o", "run", "--", build(), "signals")
    assert (done.stdout, done.returncode) == ("0\n", 0)


def test_opens_that_no_descriptor_is_left_for_are_counted(reprokit: Reprokit, build: Callable[..., str]) -> None:
    """The launcher has one for each pipe; the program, which may have more, has the device itself then."""
    command = f"ulimit -Sn 128; exec '{COMMAND}' record -o run -- '{build('-static')}' many_devices"
    done = subprocess.run(["bash", "-c", command], cwd=reprokit.directory, capture_output=True, text=True)
    assert done.stdout == "200\n", done.stderr
    assert 100 < fresh_requests(reprokit.directory / "run" / "entropy") < 200
    assert "requests got fresh bytes" in done.stderr
    assert reprokit.facts("run")["status"] == "finished"


@pytest.fixture
def setuid() -> Iterator[Path]:
    """A program that prints its effective user and belongs to another one, where anybody may run it."""
    if os.geteuid() != 0:
        pytest.skip("only root gives a program to another user")
    source = '#include <stdio.h>\n#include <unistd.h>\nint main() { return printf("%d\\n", (int)geteuid()) < 0; }\n'
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        program = Path(directory) / "who"
        subprocess.run(["gcc", "-x", "c", "-", "-o", str(program)], input=source, text=True, check=True)
        os.chown(program, 12345, 12345)
        program.chmod(0o4755)
        yield program


def test_a_setuid_program_gains_its_rights_where_root_starts_it(reprokit: Reprokit, setuid: Path) -> None:
    done = reprokit.record("sh", "-c", f"'{setuid}'; true")
    assert done.stdout == "12345\n"
    assert reprokit.facts()["supervisor"]["state"] == "on"


@pytest.fixture
def anybodys() -> Iterator[Path]:
    """A directory that every user may write to."""
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o777)
        yield Path(directory)


def as_nobody(directory: Path, *arguments: str) -> Done:
    """reprokit, by a user without any rights."""
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"] if os.geteuid() == 0 else []
    help_of = [*user, COMMAND, "--help"]
    if user and (shutil.which("setpriv") is None or subprocess.run(help_of, cwd="/", capture_output=True).returncode):
        pytest.skip("no setpriv, or another user may not run this installation")
    return subprocess.run([*user, COMMAND, *arguments], cwd=directory, capture_output=True, text=True)


def test_another_user_is_told_that_it_does_not(setuid: Path, anybodys: Path) -> None:
    command = ["--", "sh", "-c", f"'{setuid}'; true"]
    done = as_nobody(anybodys, "record", "-o", "run", *command)
    assert done.stdout == "65534\n", done.stderr
    assert f"{setuid} gains no rights in this run" in done.stderr
    facts = json.loads((anybodys / "run" / "run.json").read_text())
    assert facts["supervisor"]["code"] == "no-rights"
    assert {"gains-no-rights"} == {warning["code"] for warning in facts["warnings"]}
    assert as_nobody(anybodys, "record", "--no-supervisor", "-o", "free", *command).stdout == "12345\n"


def test_a_process_that_may_not_be_looked_into_is_said_to_be_uncovered(
    anybodys: Path, build: Callable[..., str]
) -> None:
    program = Path(shutil.copy(build("-static"), anybodys / "program"))
    done = as_nobody(anybodys, "record", "-o", "late", "--", str(program), "hidden")
    assert [len(line) for line in done.stdout.split()] == [32, 32], done.stderr
    assert ": 1 requests got fresh bytes" in done.stderr
    program.chmod(0o111)  # the kernel hides the processes of a program that may not be read
    done = as_nobody(anybodys, "record", "-o", "early", "--", str(program), "hidden")
    assert [len(line) for line in done.stdout.split()] == [32, 32], done.stderr
    assert fresh_requests(anybodys / "early" / "entropy") >= 2  # libc may ask for itself
    uncovered = json.loads((anybodys / "early" / "run.json").read_text())["uncovered"]
    assert any("vDSO could not be made unusable" in one["text"] for one in uncovered) or not has_vdso_getrandom()


def has_vdso_getrandom() -> bool:
    """Whether this kernel gives programs one: Linux 6.11, x86-64 first of all."""
    return tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 11) and os.uname().machine == "x86_64"


@pytest.mark.parametrize("options", [[], ["--no-supervisor"]], ids=["supervised", "not-supervised"])
def test_a_process_that_asks_after_the_commands_end_leaves_a_run_that_replays(
    reprokit: Reprokit, options: list[str]
) -> None:
    late = "(while [ ! -e go ]; do sleep 0.05; done; head -c4 /dev/urandom > late; touch came) >/dev/null 2>&1 &"
    command = f"{late} head -c8 /dev/urandom | od -An -tx1"
    recorded = reprokit.run("record", *options, "-o", "recorded", "--", "sh", "-c", command)
    assert recorded.returncode == 0
    assert reprokit.facts("recorded")["profile"]["sealed"] is False
    (reprokit.directory / "go").touch()
    wait_until((reprokit.directory / "came").exists, "the late process")
    replayed = reprokit.run("replay", "recorded", "-o", "replayed")
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout)
    assert "what a process that outlived the command asked for" in reprokit.run("show", "recorded").stdout


@pytest.mark.parametrize("options", [[], ["--no-supervisor"]], ids=["supervised", "not-supervised"])
def test_helpers_that_end_with_the_command_leave_a_sealed_run(reprokit: Reprokit, options: list[str]) -> None:
    code = "import multiprocessing as m\nif __name__ == '__main__':\n    m.get_context('spawn').Pool(1).map(abs, [1])"
    script = reprokit.script("pool.py", code)
    assert reprokit.run("record", *options, "-o", "recorded", "--", sys.executable, str(script)).returncode == 0
    assert reprokit.facts("recorded")["profile"]["sealed"] is True


def test_what_a_daemon_starts_is_past_the_supervisor_and_later_no_part_of_the_run(reprokit: Reprokit) -> None:
    """As tasks of Slurm: only the environment leads to the run."""
    waiting = "env -0 > variables.new; mv variables.new variables; while test ! -e go; do sleep 0.05; done"
    recording = reprokit.start("record", "-q", "-o", "run", "--", "sh", "-c", waiting)
    variables, code = (
        reprokit.directory / "variables",
        "import os, reprokit; reprokit.log(step=0, value=os.urandom(4).hex())",
    )
    wait_until(variables.exists, "the command's start")
    pairs = (line.split("=", 1) for line in variables.read_text().rstrip("\0").split("\0"))
    environment = {**dict(pairs), "REPROKIT_ID": "daemon"}
    task = [sys.executable, "-c", code]
    subprocess.run(task, env=environment, check=True)
    (reprokit.directory / "go").touch()
    _, said = recording.communicate(timeout=LIMIT)
    assert said.count("past the supervisor") == 1
    (uncovered,) = reprokit.facts("run")["uncovered"]
    assert (uncovered["source"], "started by a daemon" in uncovered["text"]) == ("program", True)
    shown = reprokit.run("show", "run").stdout
    assert "log value of process daemon: " in shown
    before = {path: path.read_bytes() for path in (reprokit.directory / "run").rglob("*") if path.is_file()}
    subprocess.run(task, env=environment, check=True)
    assert {path: path.read_bytes() for path in (reprokit.directory / "run").rglob("*") if path.is_file()} == before
