"""Programs that cannot reach the run directory, as another user or in another root: recorded like all others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import reprokit as package
from reprokit.entropy import entropy_files
from tests.run.older_glibc import make_older
from tests.support import COMMAND, Done, Reprokit, python

NOBODY = 65534
ASK = ("/usr/bin/od", "-An", "-tx1", "-N8", "/dev/urandom")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")
needs_namespaces = pytest.mark.skipif(
    subprocess.run(["unshare", "-r", "-m", "true"], capture_output=True, check=False).returncode != 0,
    reason="this system allows no user namespaces",
)

# As gosu does it: a static program, which the shim does not see, becomes another user and executes the command.
STATIC = """
#include <unistd.h>
int main(int n, char **v) { return n < 2 || setgid(65534) || setuid(65534) || execv(v[1], v + 1); }
"""
# A process of root has entropy of its own, and then is another user's.
INSIDE = f"""
import os, random
print(os.urandom(4).hex())
os.setgid({NOBODY})
os.setuid({NOBODY})
print(random.random(), len(os.urandom(300_000)), os.urandom(4).hex())
if not os.fork():
    print(os.urandom(4).hex(), flush=True)
    os._exit(0)
os.wait()
"""
# What a hostile program of another user's asks for, by the shim's own way: what is handed out is what it may have.
HOSTILE = f"""
import ctypes, os
call = ctypes.CDLL(None, use_errno=True).syscall
number = {{"x86_64": 257, "aarch64": 56}}[os.uname().machine]
run = os.environ["REPROKIT_RUN"]
os.urandom(4)
own = [name for name in os.listdir(run + "/entropy") if name.endswith(".entropy") and name != "children.entropy"]
hashes = [int(name.partition("-")[0], 16) for name in own]
plan = open(run + "/shim.plan", "rb").read()
os.setgid({NOBODY})
os.setuid({NOBODY})

def ask(task, file, name=0, number_=0):
    numbers = (-100, 0, 0, task | file << 8 | number_ << 16, name, 0x52504B42)
    return call(number, *map(ctypes.c_long, numbers))

for name in hashes:
    for file in range(256):
        fd = ask(1, file, ctypes.c_long(name).value)
        if fd < 0:
            continue
        place = os.readlink(f"/proc/self/fd/{{fd}}").replace(os.path.normpath(run), "RUN")
        if place.endswith(".entropy") and not place.endswith("/children.entropy"):
            assert int.from_bytes(os.pread(fd, 28, 0)[24:], "little") == os.getpid(), place
            place = "OWN"
        elif place.startswith("/memfd"):
            given = os.pread(fd, 4096, 0)
            assert given[24:56] != plan[24:56] and given[:24] == plan[:24] and given[56:1700] == plan[56:1700]
            place = "PLAN"
        print(place.replace(f"{{name:016x}}", "HASH").replace(str(os.getpid()), "PID"))
        os.close(fd)
    for task in (2, 3, 4, 5, 255):
        for file in range(256):
            assert ask(task, file, ctypes.c_long(name).value) in (-1, 0)
assert len(os.listdir("/proc/self/fd")) < 8
"""
HANDED_OUT = {
    *("PLAN", "OWN", "RUN/plan.json", "RUN/metrics.jsonl", "RUN/modules.paths", "RUN/written.paths", "RUN/read.paths"),
    *("RUN/entropy/children.entropy", "RUN/pipes.list", "RUN/objects.jsonl"),  # to append to
    *("RUN/stopped", "RUN/entropy/HASH-PID.new", "RUN/entropy/HASH-PID-0-0.lost", "RUN/entropy/process-ids"),
    *(
        "RUN/trail/HASH.PID.new",
        "RUN/pending/PID-0",
        "RUN/numbers/HASH-0.numbers",
        "RUN/console/HASH-0.console",
        "RUN/evaluation/HASH-0.npy",
        "/proc/PID/mem",
    ),
}


DROP = ("setpriv", "--bounding-set=-sys_ptrace,-sys_admin,-perfmon", "--inh-caps=-all")


def may_drop_rights() -> bool:
    return bool(shutil.which("setpriv")) and not subprocess.run([*DROP, "true"], check=False).returncode


def make_root(directory: Path) -> None:
    """A root for ASK, with a libc of its own."""
    root = directory / "root"
    libraries = subprocess.run(["ldd", ASK[0]], capture_output=True, text=True, check=True).stdout.split()
    for path in (ASK[0], *(word for word in libraries if word.startswith("/"))):
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path[1:])
    (root / "dev").mkdir()
    (root / "dev" / "urandom").touch()
    shutil.copy(ASK[0], root / "od")


def recorded(reprokit: Reprokit, *command: str, silent: bool = True) -> Done:
    """Twice with the same seed and replayed exactly; nothing is left uncovered."""
    keyed = [reprokit.run("record", "--seed", "7", "-o", name, "--", *command) for name in ("first", "second")]
    assert {done.returncode for done in keyed} == {0}, keyed[0].stderr
    assert keyed[0].stdout == keyed[1].stdout
    real = reprokit.run("record", "-o", "real", "--", *command)
    replayed = reprokit.run("replay", "--policy", "strict", "real", "-o", "replayed")
    assert (replayed.returncode, replayed.stdout) == (0, real.stdout), replayed.stderr
    facts = reprokit.facts("replayed")
    assert facts["fidelity"]["exact"] > 0
    assert not any(facts["fidelity"][kind] for kind in ("moved", "derived", "live"))
    assert real.stdout != keyed[0].stdout
    assert not silent or not (facts["uncovered"] or facts["warnings"])
    return real


def commands(tmp_path: Path, way: str) -> list[str]:
    """A command that executes ASK as another user."""
    if way == "static":
        program = str(tmp_path / "static")
        subprocess.run(["gcc", "-x", "c", "-", "-static", "-o", program], input=STATIC, text=True, check=True)
        return [program, *ASK]
    ways = {
        "setpriv": ["setpriv", f"--reuid={NOBODY}", "--clear-groups", *ASK],
        "su": ["su", "nobody", "-s", "/bin/sh", "-c", " ".join((*ASK, ";", *ASK))],
        "sudo": ["sudo", "-n", "-u", "nobody", *ASK],
        "gosu": ["gosu", "nobody", *ASK],
    }
    if not shutil.which(way):
        pytest.skip(f"{way} is not installed")
    return ways[way]


@needs_root
@pytest.mark.parametrize("way", ["setpriv", "su", "static", "sudo", "gosu"])
def test_another_user_is_recorded(way: str, reprokit: Reprokit, tmp_path: Path) -> None:
    recorded(reprokit, *commands(tmp_path, way))


@needs_root
def test_a_process_that_becomes_another_user_goes_on_being_recorded(reprokit: Reprokit) -> None:
    recorded(reprokit, *python(INSIDE))
    lines = [json.loads(line) for line in (reprokit.directory / "real" / "metrics.jsonl").read_text().splitlines()]
    assert [line["k"] for line in lines if line["p"] == "0"][-1] == "end"  # which the agent wrote as nobody


# A forked process draws as another user, before and after it has become that, more than its slot has room for.
DROPPING = f"""
import os, sys
for first in (False, True):
    for _ in range(3):
        if os.fork() == 0:
            mine = os.urandom(16) if first else b""
            os.setgid({NOBODY})
            os.setuid({NOBODY})
            mine += b"".join(os.urandom(3000) for _ in range(50))
            maps = [line.split()[:2] for line in open("/proc/self/maps") if "pool.entropy" in line]
            sizes = [int(end, 16) - int(start, 16) for start, end in (place.split("-") for place, _ in maps)]
            assert all(size == 4096 for size in sizes) and len(maps) <= 2 * first
            print(first, mine.hex(), sum("w" in mode for _, mode in maps), flush=True)
            os._exit(0)
        os.wait()
"""


@pytest.mark.slow
@needs_root
def test_a_forked_process_that_becomes_another_user_reaches_nothing_of_the_pool_but_its_slot(
    reprokit: Reprokit,
) -> None:
    done = recorded(reprokit, *python(DROPPING))
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [(first, int(slots)) for first, _, slots in lines] == [("False", 0)] * 3 + [("True", 1)] * 3
    assert len({given for _, given, _ in lines}) == 6
    kept = entropy_files(reprokit.directory / "real" / "entropy")
    assert sum(path.name.endswith("-rest.entropy") for path in kept) == 3


@needs_root
@pytest.mark.parametrize(
    "command",
    [
        ("setpriv", f"--reuid={NOBODY}", "--clear-groups", *ASK),
        pytest.param(python(INSIDE), marks=pytest.mark.slow),
    ],
)
def test_a_container_whose_root_may_not_look_into_others_memory(command: Sequence[str], reprokit: Reprokit) -> None:
    """As Docker starts one: the shim's requests are numbers, which the supervisor need not read from its memory."""
    if not may_drop_rights():
        pytest.skip("no setpriv, or no right to give up rights")
    done = []
    for arguments in (
        ("record", "-o", "real", "--", *command),
        ("replay", "--policy", "strict", "real", "-o", "again"),
    ):
        call = [*DROP, COMMAND, *arguments]
        done.append(subprocess.run(call, cwd=reprokit.directory, capture_output=True, text=True, check=False))
        assert (done[-1].returncode, "warning" in done[-1].stderr) == (0, False), done[-1].stderr
    assert done[0].stdout == done[1].stdout
    assert reprokit.facts("real")["supervisor"]["state"] == "on"


@needs_root
def test_an_agent_starts_as_another_user(reprokit: Reprokit) -> None:
    other = "/usr/bin/python3"
    if not os.access(other, os.X_OK) or subprocess.run([other, "--version"], check=False).returncode:
        pytest.skip("no Python that all users may execute")
    reprokit.directory.chmod(0o777)
    code = "import random; open('/proc/self/cwd/out', 'w').write(str(random.random()))"
    done = reprokit.record("setpriv", f"--reuid={NOBODY}", "--clear-groups", other, "-c", code)
    assert done.returncode == 0, done.stderr
    assert reprokit.facts()["agent"]["state"] == "loaded"
    assert (reprokit.last / "outputs.json").read_text().count('"path": "out"') == 1


@needs_namespaces
@pytest.mark.parametrize(
    "change", ["mount --bind . . && mount -o remount,bind,ro,nosuid,nodev .", "mount -t tmpfs x ."]
)
def test_a_run_directory_that_is_read_only_or_hidden(change: str, reprokit: Reprokit) -> None:
    unseen = "cd $PWD && ! test -w real -o -w first"
    script = f"{change} && {unseen} && {' '.join(ASK)} && {sys.executable} -c 'import os; print(os.urandom(4))'"
    recorded(reprokit, "unshare", "-r", "-m", "sh", "-c", script)


@pytest.mark.parametrize("hidden", [[], ["--tmpfs", "/tmp", "--tmpfs", str(Path(package.__file__).parent / "_shim")]])
def test_bubblewrap(hidden: list[str], reprokit: Reprokit) -> None:
    """Also where the shim itself is hidden: the dynamic loader is given it all the same."""
    wrap = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--unshare-all", *hidden]
    if not shutil.which("bwrap") or subprocess.run([*wrap, "true"], capture_output=True, check=False).returncode:
        pytest.skip("bubblewrap is not installed, or may not make namespaces")
    done = recorded(reprokit, *wrap, *ASK)
    assert "LD_PRELOAD" not in done.stderr


@needs_namespaces
@pytest.mark.parametrize("is_older", [False, True], ids=["alike", "older"])
def test_another_libc_in_another_root(is_older: bool, reprokit: Reprokit) -> None:
    """Its loader is given the shim if that libc has what it needs; else which files it has is not seen, and said so."""
    make_root(reprokit.directory)
    if is_older:
        make_older(next(reprokit.directory.glob("root/**/libc.so.6")), ASK[0])
    inside = f"mount --bind /dev/urandom root/dev/urandom && chroot root {' '.join(ASK)}"
    recorded(reprokit, "unshare", "-r", "-m", "sh", "-c", inside, silent=not is_older)
    uncovered = [gap["text"] for gap in reprokit.facts("replayed")["uncovered"]]
    assert ["without the shim" in text for text in uncovered] == [True] * is_older


@needs_root
def test_a_hostile_program_gets_no_more_than_its_own(reprokit: Reprokit) -> None:
    done = reprokit.record("sh", "-c", 'shuf -i 1-9 >/dev/null; "$@"', "sh", *python(HOSTILE))
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == HANDED_OUT


# Another tool supervises already, as in some containers: the kernel allows one.
SUPERVISED = """
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int n, char **v) {
    struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {1, all};
    int status;
    if (n < 2 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 98;
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program) < 0) return 99;
    if (!fork()) return execv(v[1], v + 1);
    wait(&status);
    return WEXITSTATUS(status);
}
"""
HIDDEN = ("unshare", "-r", "-m", "sh", "-c", f"echo 1 > out && mount -t tmpfs x . && {' '.join(ASK)}")


@needs_namespaces
def test_what_cannot_be_recorded_is_said_everywhere(reprokit: Reprokit) -> None:
    recording = reprokit.run("record", "--no-supervisor", "-o", "recording", "--", *HIDDEN)
    facts = reprokit.facts("recording")
    assert [program["reason"] for program in facts["out_of_reach"]] == ["plan"]
    words = facts["uncovered"][0]["text"]
    assert (recording.returncode, f"warning: {words}" in recording.stderr) == (0, True)
    strict = reprokit.run("replay", "--policy", "strict", "recording", "-o", "strict")
    assert (strict.returncode, f"replay-stopped: {words}" in strict.stderr) == (125, True)
    loose = reprokit.run("replay", "recording", "-o", "loose")
    assert (loose.returncode, f"warning: {words}" in loose.stderr) == (0, True)
    compared = reprokit.run("verify", "recording", "loose").stdout
    assert f"note: of the left run, {words}" in compared
    assert f"note: of the right run, {words}" in compared
    assert words in reprokit.run("show", "recording").stdout
    reported = reprokit.run("report", "recording", "loose").stdout
    assert words in reported.split("identical")[0]  # before the verdict


@needs_namespaces
def test_a_proof_counts_what_a_program_out_of_reach_asks_for(reprokit: Reprokit) -> None:
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    done = reprokit.run("record", "--prove", "--no-supervisor", "--", *HIDDEN)
    assert "all accounted for" not in done.stderr
    assert any("/dev/urandom, 8 bytes" in line for line in reprokit.facts()["proof"]["unaccounted"])


@needs_root
@pytest.mark.parametrize("way", ["setpriv", "su", "static", "chroot"])
def test_a_lost_program_of_another_user_is_named(way: str, reprokit: Reprokit, tmp_path: Path) -> None:
    reprokit.directory.joinpath("bin").mkdir()
    shutil.copy("/bin/sh", reprokit.directory)
    command = ["chroot", ".", "/sh"] if way == "chroot" else commands(tmp_path, way)
    done = reprokit.run("record", "--no-supervisor", "--", *command)
    assert "had neither shim nor supervisor" in done.stderr
    assert reprokit.facts()["out_of_reach"][0]["reason"] == ("shim" if way == "chroot" else "plan")


@needs_root
@pytest.mark.parametrize("how", ["./od", "PATH=. env od", "exec ./od"])
def test_a_program_that_gains_rights_is_named_where_nobody_supervises(how: str, reprokit: Reprokit) -> None:
    program = Path(shutil.copy(ASK[0], reprokit.directory / "od"))
    os.chown(program, 12345, -1)
    program.chmod(0o4755)
    done = reprokit.run(
        "record", "--no-supervisor", "--", "/bin/sh", "-c", how.replace("env", "/usr/bin/env") + " -N1 /dev/zero"
    )
    assert "had neither shim nor supervisor" in done.stderr
    assert [program["reason"] for program in reprokit.facts()["out_of_reach"]] == ["shim"]


@needs_root
def test_a_program_that_the_supervisor_may_not_look_into_is_named(reprokit: Reprokit) -> None:
    """As in Docker, and without the shim: neither the paths that it opens are known, nor can it be answered."""
    if not may_drop_rights():
        pytest.skip("no setpriv, or no right to give up rights")
    make_root(reprokit.directory)
    command = [*DROP, COMMAND, "record", "--", "chroot", f"--userspec={NOBODY}", "root", *ASK[:-1], "/od"]
    done = subprocess.run(command, cwd=reprokit.directory, capture_output=True, text=True, check=False)
    assert "had neither shim nor supervisor" in done.stderr
    assert reprokit.facts()["out_of_reach"] == [{"identity": "0+", "reason": "unseen"}]


@pytest.mark.slow
@needs_namespaces
def test_a_gate_without_a_supervisor_does_not_pass_what_it_did_not_record(reprokit: Reprokit) -> None:
    program = str(reprokit.directory / "supervised")
    subprocess.run(["gcc", "-x", "c", "-", "-o", program], input=SUPERVISED, text=True, check=True)
    command, variables = [program, COMMAND, "gate", "--", *HIDDEN], {**os.environ, "TMPDIR": str(reprokit.directory)}
    done = subprocess.run(command, cwd=reprokit.directory, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "had neither shim nor supervisor" in done.stdout
