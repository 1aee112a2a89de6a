"""Every path by which entropy reaches a program: bare runs differ, each replay equals the recording."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from tests.native.harness import SOURCES, Shim, run

C_PATHS = [
    "getrandom",
    "getrandom_flags",
    "getrandom_sources",
    "getentropy",
    "syscall",
    "syscall_read",
    "open",
    "open_random",
    "open64",
    "openat",
    "openat_directory",
    "odd_spelling",
    "symlink",
    "read_write",
    "readv",
    "pread",
    "preadv",
    "fortified_read",
    "large_read",
    "mmap",
    "dup",
    "dup2",
    "dup3",
    "fcntl",
    "fopen",
    "fopen_large",
    "fopen_unbuffered",
    "fdopen",
    "freopen",
    "stdin",
    "stdin_read",
    "fork",
    "concurrent_forks",
    "descriptor_through_fork",
    "descriptor_through_exec",
    "stdin_through_exec",
    "vfork",
    "empty_environment",
    "posix_spawn",
    "exec",
    "execlp",
    "execle",
    "system",
    "popen",
    "threads",
    "threads_of_threads",
    "c11_thread",
    "fork_in_thread",
    "signal_handler",
    "closed_descriptors",
    "reused_descriptor",
    "many",
]
GLIBC_2_36 = ["arc4random", "arc4random_buf", "arc4random_uniform"]
CPP_PATHS = [
    "random_device",
    "random_device_token",
    "random_device_rdrand",
    "random_device_threads",
    "async",
    "ifstream",
    "ifstream_unbuffered",
]
RUNS_AHEAD = {"freopen"}  # the pipe behind it is filled beyond what is read


def stdin_of(path: str) -> IO[bytes] | int:
    return open("/dev/urandom", "rb", buffering=0) if path in ("stdin", "stdin_read") else subprocess.DEVNULL


def holds(shim: Shim, command: list[str], path: str) -> None:
    bare = [run(command, stdin=stdin_of(path)) for _ in range(2)]
    assert bare[0].returncode == 0, bare[0].stderr
    assert bare[0].stdout != bare[1].stdout
    recorded = shim.record(command, stdin=stdin_of(path))
    assert (recorded.returncode, recorded.stderr) == (0, b"")
    assert recorded.stdout not in (bare[0].stdout, bare[1].stdout)
    other = shim.record(command, "other", stdin=stdin_of(path))
    assert other.stdout != recorded.stdout
    assert shim.replay(command, profile="other", stdin=stdin_of(path)).stdout == other.stdout
    for _ in range(3):
        replayed = shim.replay(command, stdin=stdin_of(path))
        assert (replayed.returncode, replayed.stderr) == (0, b"")
        assert replayed.stdout == recorded.stdout
        fidelity = shim.fidelity()
        assert fidelity.exact == fidelity.requests > 0
        assert fidelity.unused == 0 or path in RUNS_AHEAD


def test_every_path_of_the_program_is_tried(build: Callable[..., str]) -> None:
    listed = subprocess.run([build("paths.c")], capture_output=True, text=True, check=True).stdout.split()
    assert set(listed) - set(GLIBC_2_36) == set(C_PATHS)


@pytest.mark.parametrize("path", C_PATHS)
def test_c(path: str, shim: Shim, build: Callable[..., str], tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/urandom")
    holds(shim, [build("paths.c"), path, str(link)], path)


@pytest.mark.parametrize("path", GLIBC_2_36)
def test_arc4random(path: str, shim: Shim, build: Callable[..., str]) -> None:
    if run([build("paths.c"), path]).returncode == 97:
        pytest.skip("this glibc has no arc4random")
    holds(shim, [build("paths.c"), path], path)


@pytest.mark.slow
def test_objects_of_another_library_are_not_touched(shim: Shim, build: Callable[..., str]) -> None:
    command = [build("paths.cpp"), "random_device_of_another_library"]
    recorded = shim.record(command, stdin=subprocess.DEVNULL)
    assert (recorded.returncode, recorded.stderr) == (0, b"")
    assert shim.replay(command, stdin=subprocess.DEVNULL).stdout == recorded.stdout


@pytest.mark.parametrize("path", CPP_PATHS)
def test_cpp(path: str, shim: Shim, build: Callable[..., str]) -> None:
    if path == "random_device_rdrand" and "rdrand" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no RDRAND")
    holds(shim, [build("paths.cpp"), path], path)


@pytest.mark.parametrize(
    "command",
    [
        "head -c 16 /dev/urandom | od -An -tx1",
        "od -An -tx1 -N16 /dev/urandom",
        "od -An -tx1 -N16 < /dev/urandom",
        "seq 500 | sort -R | md5sum",
        "shuf -i 1-1000 | md5sum",
        "exec 3</dev/urandom; head -c 9 <&3 | od -An -tx1; (head -c 9 <&3 | od -An -tx1)",
        "for i in 1 2 3; do head -c 4 /dev/urandom | od -An -tx1 & wait; done",
        "dd if=/dev/urandom bs=3 count=5 2>/dev/null | od -An -tx1",
    ],
)
def test_shell(command: str, shim: Shim) -> None:
    holds(shim, ["sh", "-c", command], command)


PYTHON = {
    "urandom": "import os; print(os.urandom(33).hex(), os.getrandom(5).hex())",
    "hash": "print(hash('a'), sorted({'a', 'b', 'c'}, key=hash))",
    "random": "import random; print(random.random(), random.SystemRandom().random())",
    "uuid": "import uuid; print(uuid.uuid4())",
    "file": "print(open('/dev/urandom', 'rb', buffering=0).read(9).hex(), open('/dev/urandom', 'rb').read(9).hex())",
    "numpy": "import numpy; print(numpy.random.default_rng().random(), numpy.random.rand())",
    "numpy_file": "import numpy; print(numpy.fromfile('/dev/urandom', dtype='u1', count=99))",
    "subprocess": "import subprocess, sys; c = [sys.executable, '-c', 'import os; print(os.urandom(8).hex())']\n"
    "for options in ({}, {'close_fds': False}, {'env': {}}, {'preexec_fn': int}, {'start_new_session': True}):\n"
    "    print(subprocess.run(c, capture_output=True, **options).stdout)",
    "pool_fork": "import multiprocessing as m, os\n"
    "with m.get_context('fork').Pool(1) as p: print(p.map(os.urandom, [4] * 9, chunksize=1))",
    "processes_fork": "import multiprocessing as m, os\n"
    "def work(q): q.put(os.urandom(8).hex())\n"
    "c = m.get_context('fork'); q = [c.Queue() for _ in range(4)]; p = [c.Process(target=work, args=(x,)) for x in q]\n"
    "[x.start() for x in p]; print([x.get() for x in q]); [x.join() for x in p]",
    "executor": "import concurrent.futures as f, os, threading\n"
    "def work(i): return os.urandom(4).hex()\n"
    "print([f.ThreadPoolExecutor(1).submit(work, i).result() for i in range(4)])",
    "threads": "import threading, random\nout = {}\n"
    "def work(i): out[i] = random.Random().random()\n"
    "t = [threading.Thread(target=work, args=(i,)) for i in range(4)]\n"
    "[x.start() for x in t]; [x.join() for x in t]; print(sorted(out.items()))",
    "tempfile": "import tempfile; print(next(tempfile._get_candidate_names()))",
}


@pytest.mark.parametrize("script", PYTHON.values(), ids=PYTHON.keys())
def test_python(script: str, shim: Shim) -> None:
    holds(shim, [sys.executable, *([] if "numpy" in script else ["-S"]), "-c", script], script)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_python_multiprocessing(method: str, shim: Shim) -> None:
    holds(shim, [sys.executable, str(SOURCES / "children.py"), method], method)
