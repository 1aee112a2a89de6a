"""Keyed runs: every byte comes from the key and the names of process and thread, and nothing is stored."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from reprokit import entropy
from reprokit.core import native
from reprokit.model.plan import key_of_seed
from tests.native.harness import KEY, SOURCES, Shim
from tests.native.test_paths import RUNS_AHEAD

KEYED: dict[str, Any] = {"keyed": True}
C_PATHS = [
    "getrandom", "getentropy", "syscall", "open", "readv", "large_read", "fopen", "fopen_unbuffered", "freopen",
    "fork", "concurrent_forks", "descriptor_through_exec", "vfork", "posix_spawn", "exec", "system", "popen", "threads",
    "threads_of_threads", "fork_in_thread", "signal_handler", "closed_descriptors", "many",
]  # fmt: skip
COMMANDS = {
    "shell": ["sh", "-c", "seq 500 | sort -R | md5sum; head -c 9 /dev/urandom | od -An -tx1"],
    "python": [sys.executable, "-c", "import os, random, uuid; print(os.urandom(9), random.random(), uuid.uuid4())"],
    "numpy": [sys.executable, "-c", "import numpy; print(numpy.random.default_rng().random(), numpy.random.rand())"],
    "spawn": [sys.executable, str(SOURCES / "children.py"), "spawn"],
}


def holds(shim: Shim, command: list[str], path: str = "") -> None:
    recorded = shim.record(command, plan=KEYED)
    assert (recorded.returncode, recorded.stderr) == (0, b"")
    assert shim.record(command, "again", plan=KEYED).stdout == recorded.stdout
    other = shim.record(command, "other", plan={**KEYED, "key": key_of_seed("another")})
    assert other.stdout != recorded.stdout
    replayed = shim.replay(command, policy="derive" if path in RUNS_AHEAD else "strict", plan=KEYED)
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout)
    fidelity = shim.fidelity()
    assert fidelity.exact == fidelity.requests
    assert fidelity.unused == 0
    assert all(file.head.used == native.constants().RK_HEAD for file in entropy.processes(shim.entropy("recorded")))


@pytest.mark.parametrize("path", C_PATHS)
def test_c(path: str, shim: Shim, build: Callable[..., str]) -> None:
    holds(shim, [build("paths.c"), path], path)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["random_device", "random_device_threads", "ifstream"])
def test_cpp(path: str, shim: Shim, build: Callable[..., str]) -> None:
    holds(shim, [build("paths.cpp"), path])


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_commands(command: list[str], shim: Shim) -> None:
    holds(shim, command)


def chacha20(key: bytes, nonce: int, counter: int) -> bytes:
    """One block, by the book."""
    state = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *struct.unpack("<8I", key)]
    state += struct.unpack("<4I", struct.pack("<QQ", counter, nonce))
    x = list(state)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for i, j, k, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[i] = (x[i] + x[j]) & 0xFFFFFFFF
            x[k] = ((x[k] ^ x[i]) << bits | (x[k] ^ x[i]) >> 32 - bits) & 0xFFFFFFFF

    for _ in range(10):
        for i in range(4):
            quarter(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(x, state, strict=True)))


def stream_key(process: str, thread: str) -> bytes:
    """The key of a thread, made as docs/format.md says."""
    check, inverted = native.check_in_python, (1 << 64) - 1
    nonce = check(process.encode(), 0)
    counter = check(thread.encode(), check(process.encode(), inverted))
    return chacha20(KEY, nonce, counter)[:32]


def stream(process: str, thread: str, size: int) -> bytes:
    key = stream_key(process, thread)
    return b"".join(chacha20(key, 0, block) for block in range(-(-size // 64)))[:size]


def test_the_bytes_are_those_that_the_documentation_says(shim: Shim, build: Callable[..., str]) -> None:
    sizes = ["1x70", "3", "500", "256", "16x40"]
    done = shim.record([build("requests.c"), *sizes, "t700"], plan=KEYED)
    lines = done.stdout.split()
    assert bytes.fromhex(b"".join(lines[:-1]).decode()) == stream("0", "m", 70 + 3 + 500 + 256 + 640)
    assert bytes.fromhex(lines[-1].decode()) == stream("0", "m.1", 700)


def test_no_two_streams_are_equal(shim: Shim, build: Callable[..., str]) -> None:
    command = f"for i in 1 2 3 4 5 6 7 8 9 10; do {build('requests.c')} 8x4 t8 t8 t8 & wait; done"
    for plan in (KEYED, {**KEYED, "key": key_of_seed("another")}):
        lines = shim.record(["sh", "-c", command], plan=plan).stdout.split()
        assert len(lines) == len(set(lines)) == 70


@pytest.mark.parametrize("way", ["forks", "jumps"])
@pytest.mark.parametrize("plan", [{}, KEYED], ids=["kernel", "keyed"])
def test_no_byte_is_given_twice(way: str, plan: dict[str, Any], shim: Shim, build: Callable[..., str]) -> None:
    """Also those that were asked for in advance, where a process forks or a handler jumps out of a request."""
    done = shim.record([build("keyed.c"), way], plan=plan)
    lines = done.stdout.split()
    assert (done.returncode, len(lines)) == (0, {"forks": 5 + 3 * 27 + 20, "jumps": 100}[way])
    assert len(set(lines)) == len(lines)


@pytest.mark.slow
def test_any_length_of_run_costs_no_storage(shim: Shim, build: Callable[..., str]) -> None:
    command = [build("amounts.c"), "10000000", "16"]
    recorded = shim.record(command, plan=KEYED)
    facts = entropy.summarize(shim.entropy("recorded"))
    assert (facts.events, facts.entropy, facts.threads, facts.processes) == (10_000_000, 160_000_000, 1, 1)
    assert facts.size == native.constants().RK_HEAD
    replayed = shim.replay(command, policy="strict", plan=KEYED)
    assert replayed.stdout.split()[0] == recorded.stdout.split()[0]
    assert shim.fidelity().exact == 10_000_000


def test_more_than_was_recorded_is_derived_and_stops_a_strict_replay(shim: Shim, build: Callable[..., str]) -> None:
    program = build("requests.c")
    recorded = shim.record([program, "16", "16"], plan=KEYED).stdout
    replayed = shim.replay([program, "16", "16", "16"], plan=KEYED)
    assert replayed.stdout.startswith(recorded)
    fidelity = shim.fidelity()
    assert (fidelity.exact, fidelity.derived, fidelity.derived_bytes, fidelity.unused) == (2, 1, 16, 0)
    stopped = shim.replay([program, "16", "16", "16"], policy="strict", plan=KEYED)
    assert (stopped.returncode, stopped.stdout) == (125, recorded)
    assert "a request for 16 bytes" in (shim.directory / "replayed" / "stopped").read_text()
    shim.replay([program, "16"], plan=KEYED)
    assert shim.fidelity().unused == 1


def test_cryptographic_libraries_get_real_bytes(shim: Shim) -> None:
    script = "import ssl, os; print(ssl.RAND_bytes(32).hex()); print(os.urandom(16).hex())"
    first, second = (shim.record([sys.executable, "-c", script], plan=KEYED).stdout.split() for _ in range(2))
    assert first[0] != second[0]
    assert first[1] == second[1]
    assert entropy.summarize(shim.entropy("recorded")).withheld > 0


def test_a_run_that_cannot_write_goes_on_with_real_bytes(shim: Shim, build: Callable[..., str]) -> None:
    command = [build("requests.c"), "16"]
    outputs = set()
    for _ in range(2):
        environment = shim.environment("recorded", "record", keyed=True)
        shim.entropy("recorded").rmdir()
        outputs.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert len(outputs) == 2
