"""Programs, allocators and machines of other habits: the same bytes in a replay, and no harm where there are none."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from reprokit import entropy
from reprokit.core import native
from tests.native.harness import Shim, run

ALLOCATORS = ("libjemalloc.so.2", "libtcmalloc_minimal.so.4")
DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
SCRIPT = (
    "import os, random, subprocess, sys, threading; print(random.random(), hash('a'))\n"
    "for _ in range(4): t = threading.Thread(target=lambda: print(os.urandom(4).hex())); t.start(); t.join()\n"
    "print(subprocess.run([sys.executable, '-c', 'import os; print(os.urandom(4))'], capture_output=True).stdout)"
)


def test_every_way_is_repeated(shim: Shim, build: Callable[..., str]) -> None:
    program = build("safety.c")
    for way in ("every_descriptor_closed", "own_stack", "clone", "threads_one_after_another", "fork_beside_threads"):
        bare = run([program, way])
        assert (bare.returncode, bare.stderr) == (0, b""), way
        recorded = shim.record([program, way])
        assert (recorded.returncode, recorded.stderr) == (0, b""), way
        replayed = shim.replay([program, way])
        assert (replayed.returncode, replayed.stderr) == (0, b""), way
        assert recorded.stdout == replayed.stdout != bare.stdout, way


def test_a_vfork_child_killed_inside_the_shim(shim: Shim, build: Callable[..., str]) -> None:
    command = [build("safety.c"), "vfork_killed"]
    recorded = shim.record(command)
    assert (recorded.returncode, recorded.stderr) == (0, b"")
    shown = {event.data.hex() for _, event in shim.events() if event.given == 16}
    assert shown == set(recorded.stdout.decode().split())
    for _ in range(2):
        replayed = shim.replay(command)
        assert (replayed.returncode, replayed.stderr) == (0, b"")


def test_modules_at_the_same_address(shim: Shim, build: Callable[..., str]) -> None:
    names = ["liborange.so", "libsodium.so", "liblemon.so", "liblemon.so", "libsodium.so"]
    paths = [build("module.c", "-shared", "-fPIC", output=name) for name in names]
    command = [build("safety.c"), "modules", *paths]
    for options in ({}, {"keyed": True}):
        assert shim.record(command, plan=options).returncode == 0
        assert shim.replay(command, plan=options).returncode == 0
        assert (shim.fidelity().exact, shim.fidelity().requests) == (6, 6)
        [head] = [file.head for file in entropy.processes(shim.entropy("recorded"))]
        assert head.withheld == 4
    assert shim.record(command).returncode == 0
    asked = [(Path(event.module).name, event.withheld) for _, event in shim.events()]
    assert asked == [(name, name == "libsodium.so") for name in names for _ in range(2)]


def test_a_large_environment_on_a_small_stack(shim: Shim, build: Callable[..., str]) -> None:
    command = [build("safety.c"), "large_environment"]
    recorded = shim.record(command)
    assert (recorded.returncode, recorded.stderr) == (0, b"")
    assert shim.replay(command).stdout == recorded.stdout


@pytest.mark.parametrize("first", [True, False], ids=["before the shim", "behind the shim"])
@pytest.mark.parametrize("name", ALLOCATORS)
def test_another_allocator(name: str, first: bool, shim: Shim) -> None:
    found = [Path(directory, name) for directory in DIRECTORIES if Path(directory, name).exists()]
    if not found:
        pytest.skip(f"{name} is not installed")

    def with_allocator(environment: dict[str, str]) -> dict[str, str]:
        both = [str(found[0]), environment["LD_PRELOAD"]]
        return environment | {"LD_PRELOAD": ":".join(both if first else both[::-1])}

    command = [sys.executable, "-c", SCRIPT]
    recorded = run(command, with_allocator(shim.environment("recorded", "record")))
    assert (recorded.returncode, recorded.stderr) == (0, b"")
    replayed = run(command, with_allocator(shim.environment("replayed", "replay", profile="recorded")))
    assert (replayed.returncode, replayed.stderr, replayed.stdout) == (0, b"", recorded.stdout)
    assert shim.fidelity().exact == shim.fidelity().requests


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user cannot write where this one may")
def test_a_run_directory_that_may_not_be_written(build: Callable[..., str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        shim = Shim(Path(directory))
        program = shutil.copy(build("requests.c"), shim.directory / "program")
        shutil.copy(native.shim_path(), shim.directory / "shim.so")
        environment = shim.environment("recorded", "record")
        for path in (shim.directory, *shim.directory.iterdir(), shim.entropy("recorded")):
            path.chmod(0o755)
        done = run([str(program), "16x100"], environment, user=65534, cwd="/")
        assert (done.returncode, done.stderr) == (0, b"")
        assert len(set(done.stdout.split())) == 100
        assert os.listdir(shim.entropy("recorded")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a set-user-ID program")
def test_a_set_user_id_program_runs_without_the_shim(shim: Shim, build: Callable[..., str]) -> None:
    program = Path(shutil.copy(build("requests.c"), shim.directory.parent / "program"))
    environment = shim.environment("recorded", "record")
    os.chown(program, 65534, 65534)
    program.chmod(0o4755)
    done = run([str(program), "16x10"], environment)
    assert done.returncode == 0
    assert len(set(done.stdout.split())) == 10
