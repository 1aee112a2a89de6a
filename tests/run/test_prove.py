"""record --prove names every request to the kernel that nothing recorded, and nothing else."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reprokit.run import prove, strace
from reprokit.run.strace import EntropyRequest
from tests.support import LIMIT, Reprokit, python, wait_until

PROGRAM = Path(__file__).with_name("past_the_shim.c")

ASKS = """
import os, random, subprocess, sys, threading, uuid
print(os.urandom(8).hex(), uuid.uuid4())
with open("/dev/urandom", "rb", buffering=0) as device:
    print(device.read(5).hex())
threads = [threading.Thread(target=os.urandom, args=(9,)) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
sys.stdout.flush()
subprocess.run([sys.executable, "-c", "import os; print(os.urandom(3).hex())"], check=True)
subprocess.run("shuf -i 1-9; true", shell=True, check=True)
if os.fork() == 0:
    print(os.urandom(4).hex(), flush=True)
    os._exit(0)
os.wait()
"""


pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The program that goes past the shim, linked in one way or the other."""
    directory = tmp_path_factory.mktemp("past")

    def compile_program(linking: str) -> str:
        program = directory / linking
        if not program.exists():
            options = ["-static"] if linking == "static" else []
            subprocess.run(["gcc", "-O1", *options, str(PROGRAM), "-o", str(program), "-lpthread"], check=True)
        return str(program)

    return compile_program


def is_supervised(facts: dict[str, Any]) -> bool:
    return bool(facts["supervisor"]["state"] == "on")


def test_every_request_of_a_program_under_the_shim_is_accounted_for(reprokit: Reprokit) -> None:
    done = reprokit.run("record", "--prove", "-o", "recorded", "--", *python(ASKS))
    facts = reprokit.facts("recorded")
    assert done.returncode == 0
    assert facts["proof"]["unaccounted"] == []
    proof = facts["proof"]
    assert proof["problem"] == ""
    assert proof["accounted"] == proof["requests"] > 5
    assert f"{proof['requests']} requests" in done.stderr
    assert not (reprokit.directory / "recorded" / prove.TRACE).exists()
    assert f"{proof['requests']} requests to the kernel" in reprokit.run("show", "recorded").stdout


def test_a_recording_with_a_proof_replays_like_any_other(reprokit: Reprokit) -> None:
    code = f"{ASKS}\nprint(id(object()))"
    recorded = reprokit.run("record", "--prove", "-o", "recorded", "--", *python(code))
    replayed = reprokit.run("replay", "recorded", "-o", "replayed")
    assert replayed.stdout == recorded.stdout
    fidelity = reprokit.facts("replayed")["fidelity"]
    assert (fidelity["moved"], fidelity["derived"], fidelity["live"], fidelity["unused"]) == (0, 0, 0, 0)


@pytest.mark.parametrize("linking", ["dynamic", "static"])
@pytest.mark.parametrize("how", ["getrandom", "device", "thread", "fork", "vfork"])
def test_what_goes_past_the_shim_is_named(
    reprokit: Reprokit, build: Callable[..., str], linking: str, how: str
) -> None:
    program = build(linking)
    done = reprokit.run("record", "--prove", "--no-supervisor", "--", program, how)
    facts = reprokit.facts()
    what = "read of /dev/urandom, 12 bytes" if how == "device" else "getrandom, 24 bytes"
    [line] = [line for line in facts["proof"]["unaccounted"] if what in line]
    assert line.endswith(f"{program}): {what}, by the program itself")
    assert facts["proof"]["accounted"] < facts["proof"]["requests"]
    assert f"of {facts['proof']['requests']} requests were not recorded: " in done.stderr
    assert done.returncode == 0
    assert "requests to the kernel were not recorded" in reprokit.run("show", "last").stdout


@pytest.mark.parametrize("linking", ["dynamic", "static"])
@pytest.mark.parametrize("how", ["getrandom", "device", "thread", "fork", "vfork"])
def test_what_the_supervisor_answers_is_accounted_for(
    reprokit: Reprokit, build: Callable[..., str], linking: str, how: str
) -> None:
    reprokit.run("record", "--prove", "--", build(linking), how)
    facts = reprokit.facts()
    if not is_supervised(facts):
        pytest.skip(f"no supervisor here: {facts['supervisor']}")
    assert facts["proof"]["unaccounted"] == []
    assert facts["proof"]["requests"] == facts["proof"]["accounted"] > 0


def test_what_a_vfork_child_asks_the_shim_for_is_its_parent_s(reprokit: Reprokit) -> None:
    source = """
#include <sys/random.h>
#include <unistd.h>
int main(void) {
    static char bytes[9];
    if (vfork() == 0) _exit(getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes));
    return 0;
}
"""
    program = str(reprokit.directory / "asks")
    subprocess.run(["gcc", "-x", "c", "-", "-o", program], input=source, text=True, check=True)
    reprokit.run("record", "--prove", "--", program)
    proof = reprokit.facts()["proof"]
    assert (proof["requests"], proof["accounted"], proof["unaccounted"]) == (1, 1, [])


@pytest.mark.parametrize("how", ["getrandom", "thread", "fork"])
def test_what_a_keyed_run_counts_is_accounted_for(reprokit: Reprokit, build: Callable[..., str], how: str) -> None:
    """strace sees the first call of a new thread, and a keyed run has no list of calls to look it up in."""
    reprokit.run("record", "--prove", "--keyed", "--", build("static"), how)
    proof = reprokit.facts()["proof"]
    assert proof["unaccounted"] == []
    assert proof["requests"] == proof["accounted"] > 0


def test_reads_that_are_handed_to_the_kernel_in_lists(reprokit: Reprokit) -> None:
    """Those of io_submit are seen; those of io_uring are no system calls, and that is said."""
    program = str(reprokit.directory / "submits")
    subprocess.run(["gcc", str(PROGRAM.with_name("submitted_reads.c")), "-o", program], check=True)
    done = reprokit.run("record", "--prove", "-o", "list", "--", program, "list")
    if done.returncode == 77:
        pytest.skip("this kernel has no asynchronous reads")
    [line] = reprokit.facts("list")["proof"]["unaccounted"]
    assert "io_submit of /dev/urandom, 24 bytes, by " in line
    assert reprokit.facts("list")["proof"]["problem"] == ""
    if reprokit.run("record", "--prove", "-o", "ring", "--", program, "ring").returncode == 77:
        pytest.skip("this kernel has no io_uring")
    proof = reprokit.facts("ring")["proof"]
    assert (proof["requests"], proof["unaccounted"]) == (0, [])
    assert proof["problem"].startswith("submits used io_uring: what is read through it is no system call")


def test_a_shim_that_does_not_record_is_named(reprokit: Reprokit) -> None:
    script = "echo damaged > $REPROKIT_RUN/shim.plan; shuf -i 1-9; true"
    reprokit.run("record", "--prove", "--", "sh", "-c", script)
    lines = reprokit.facts()["proof"]["unaccounted"]
    assert any("/shuf): getrandom, " in line and " by liburandom_hook.so+" in line for line in lines)


def test_the_training_notices_nothing_of_strace(reprokit: Reprokit) -> None:
    code = """
import os, sys
print(sys.stdin.read(), os.environ.get("LD_PRELOAD", "").count("urandom_hook"), sorted(os.listdir("/proc/self/fd")))
print(open(f"/proc/{os.getppid()}/cmdline").read().count("reprokit") > 0, os.getcwd(), sys.argv)
sys.exit(7)
"""
    plain = reprokit.run("record", "--", *python(code), "a b", stdin="hello")
    proved = reprokit.run("record", "--prove", "--", *python(code), "a b", stdin="hello")
    assert proved.stdout == plain.stdout
    assert (plain.returncode, proved.returncode) == (7, 7)


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV"])
def test_death_by_a_signal_is_passed_on(reprokit: Reprokit, name: str) -> None:
    number = signal.Signals[f"SIG{name}"]
    assert reprokit.run("record", "--prove", "--", "sh", "-c", f"kill -{number.value} $$").returncode == -number
    assert reprokit.facts()["proof"]["problem"] == ""


def test_without_strace_nothing_is_started(reprokit: Reprokit, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    words = ("record", "--prove", "-o", "run", "--", sys.executable, "-c", "print('ran')")
    done = reprokit.run(*words, environment={"PATH": str(tmp_path / "bin")})
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.startswith("reprokit: no-proof: --prove needs strace")
    assert not (tmp_path / "run").exists()


def test_where_tracing_is_forbidden_nothing_is_started(reprokit: Reprokit, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    refusing = reprokit.script("bin/strace", "#!/bin/sh\necho 'strace: ptrace: Operation not permitted' >&2\nexit 1\n")
    words = ("record", "--prove", "-o", "run", "--", *python("print('ran')"))
    done = reprokit.run(*words, environment={"PATH": f"{refusing.parent}:{os.environ['PATH']}"})
    assert (done.returncode, done.stdout) == (125, "")
    assert "strace cannot trace here: strace: ptrace: Operation not permitted" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_process_that_goes_on_is_said(reprokit: Reprokit) -> None:
    script = "(while ! [ -e go ]; do sleep 0.05; done) & true"
    running = reprokit.start("record", "--prove", "-o", "run", "--", "sh", "-c", script)
    wait_until(lambda: is_finished(reprokit), "the end of the run")
    (reprokit.directory / "go").touch()
    assert "a process outlived the command" in running.communicate(timeout=LIMIT)[1]
    assert "a process outlived the command" in reprokit.facts("run")["proof"]["problem"]


def is_finished(reprokit: Reprokit) -> bool:
    run = reprokit.directory / "run"
    return run.exists() and reprokit.facts("run")["status"] == "finished"


def test_a_strace_that_was_killed_proves_nothing(reprokit: Reprokit) -> None:
    code = "import os, time; open('begun', 'w').close()\nwhile not os.path.exists('go'): pass\nos._exit(3)"
    running = reprokit.start("record", "--prove", "-o", "run", "--", *python(code))
    wait_until((reprokit.directory / "begun").exists, "the training")
    trace = str(reprokit.directory / "run" / prove.TRACE)
    tracer = next(pid for pid in os.listdir("/proc") if pid.isdigit() and is_tracer(Path("/proc", pid), trace))
    os.kill(int(tracer), signal.SIGKILL)
    wait_until(lambda: not is_tracer(Path("/proc", tracer), trace), "the end of strace")
    (reprokit.directory / "go").touch()
    running.communicate(timeout=LIMIT)
    assert "strace ended before the command" in reprokit.facts("run")["proof"]["problem"]


def is_tracer(process: Path, trace: str) -> bool:
    try:
        return trace.encode() in (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


TRACED = """\
100 [00007f0000000b07] execve("/usr/bin/train", [...], 0x7ffd /* 9 vars */) = 0
100 [00007f0000000001] mmap(NULL, 8192, PROT_READ, MAP_PRIVATE|MAP_DENYWRITE, 3</lib/libc.so.6>, 0) = 0x7f1000000000
100 [00007f0000000001] mmap(0x7f1000001000, 4096, PROT_READ|PROT_EXEC, MAP_PRIVATE, 3</lib/libc.so.6>, 0x1000) = \
0x7f1000001000
100 [00007f1000001010] read(3</etc/hosts>, ""..., 512 <unfinished ...>
101 [00007f1000001020] getrandom( <unfinished ...>
102 [00007f1000001024] getrandom(""..., 8, 0) = 8
100 [00007f1000001010] <... read resumed>""..., 512) = 100
100 [00007f1000001000] clone(child_stack=NULL, flags=CLONE_CHILD_SETTID|SIGCHLD) = 102
100 [00007f1000001000] clone3({flags=CLONE_VM|CLONE_THREAD}, 88) = 101
103 [00007f1000001024] getrandom(""..., 5, 0) = 5
100 [00007f1000001000] vfork() = 103
101 [????????????????] <... getrandom resumed>""..., 16, GRND_NONBLOCK) = 16
102 [000055555555b000] getrandom(""..., 4, 0) = 4
102 [00007f1000001000] execve("/usr/bin/\\"x", [...], 0x7ffd /* 9 vars */) = -1 ENOENT (No such file or directory)
102 [00007f1000001000] execve("/usr/bin/other", [...], 0x7ffd /* 9 vars */) = 0
102 [00007f1000001030] brk(NULL)               = 0x555500000000
102 [00007f2000000001] mmap(NULL, 8192, PROT_READ, MAP_PRIVATE|MAP_DENYWRITE, 3</lib/libc.so.6>, 0) = 0x7f1000000000
102 [00007f1000001010] brk(NULL)               = 0x555500000000
102 [00007f1000001030] read(0</dev/random<char 1:8>>, ""..., 20) = 20
102 [00007f1000001030] read(0</dev/random<char 1:8>>, 0x1, 20) = -1 EFAULT (Bad address)
102 [00007f1000001030] read(0</tmp/getrandom(exec)/random/uuid>, ""..., 20) = 20
102 [00007f1000001030] read(4</proc/sys/kernel/random/uuid>, ""..., 4096) = 37
102 [00007f2000001010] brk(NULL)               = 0x555500000000
102 [00007f1000001030] getrandom(""..., 6, 0)  = 6
102 [????????????????] +++ exited with 0 +++
"""


def test_strace_s_lines_are_read_across_threads_forks_and_calls_cut_in_two(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text(TRACED)
    libc, train, other = "/lib/libc.so.6", "/usr/bin/train", "/usr/bin/other"
    uuid = "/proc/sys/kernel/random/uuid"
    # As if the C library were the shim.
    assert list(strace.requests(trace, libc)) == [
        EntropyRequest(102, train, "getrandom", "", "0", 8, libc, 0x1024, True, 102),
        EntropyRequest(103, train, "getrandom", "", "0", 5, libc, 0x1024, True, 100),
        EntropyRequest(100, train, "getrandom", "", "GRND_NONBLOCK", 16, libc, 0x1020, True, 100),
        EntropyRequest(102, train, "getrandom", "", "0", 4, "", 0x55555555B000, True, 102),
        EntropyRequest(102, other, "read", "/dev/random", "", 20, libc, 0x1030, True, 102),
        EntropyRequest(102, other, "read", uuid, "", 37, libc, 0x1030, True, 102),
        EntropyRequest(102, "", "getrandom", "", "0", 6, "", 0x7F1000001030, False, 102),
    ]
    assert not strace.is_whole(trace)
    trace.write_text(f"{TRACED}100 [????????????????] +++ killed by SIGKILL +++\n")
    assert strace.is_whole(trace)
