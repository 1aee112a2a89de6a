"""Programs that the shim does not fit: they run as they do bare, and repeat."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.older_glibc import make_older
from tests.support import COMMAND, Done, Reprokit, rest_slow

HERE = Path(__file__).parent
LOADER = b"/lib64/ld-linux-x86-64.so.2"
SHIM_IS_LOADED = "import os; print(os.urandom(4).hex(), 'liburandom_hook.so' in open('/proc/self/maps').read())"

def compiled(output: Path, *command: str, source: str = "") -> str:
    """Build a program, or skip where this compiler is not installed or lacks the runtime."""
    inputs = ["-x", "c", "-"] if source else [str(HERE / "asking.c")]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run([*command, *inputs, "-o", str(output)], input=source, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{' '.join(command)} cannot build a program here")
    return str(output)


@pytest.fixture
def on_musl(reprokit: Reprokit) -> str:
    return compiled(reprokit.directory / "on_musl", "musl-gcc")


def repeats(reprokit: Reprokit, *command: str) -> Done:
    """Record a command whose bare runs differ, and replay it: the same output, by recorded bytes alone."""
    recorded = reprokit.run("record", "-o", "recorded", "--", *command)
    assert recorded.returncode == 0, recorded.stderr
    replayed = reprokit.run("replay", "recorded", "-o", "replayed")
    assert (replayed.stdout, replayed.returncode) == (recorded.stdout, 0), replayed.stderr
    fidelity = reprokit.facts("replayed")["fidelity"]
    assert fidelity["moved"] == fidelity["derived"] == fidelity["live"] == 0
    assert fidelity["exact"] >= 2
    assert "warning" not in recorded.stderr + replayed.stderr
    assert "Error" not in recorded.stderr + replayed.stderr  # as musl's loader says
    return recorded


# ---- musl -------------------------------------------------------------------------------------------------------


def test_a_program_on_musl_and_its_children(reprokit: Reprokit, on_musl: str) -> None:
    """The supervisor answers the program; a child on glibc has the shim again, which its parent left aside."""
    first = repeats(reprokit, on_musl, "run", on_musl, "run", sys.executable, "-c", SHIM_IS_LOADED)
    lines = first.stdout.split()
    assert len(set(lines[:5])) == 5
    assert lines[5:] == ["True"]
    assert reprokit.facts("recorded")["shim"]["why"].endswith("runs on musl, the shim on glibc")


def test_programs_on_musl_as_helpers_of_a_training(reprokit: Reprokit, on_musl: str) -> None:
    """By path, by name, behind #! and env, with an empty environment, and in place of the process itself."""
    reprokit.script("script", f"#!{on_musl}\n")
    code = f"""
import os, subprocess
run = lambda *words, **options: print(subprocess.run(words, capture_output=True, **options))
run({on_musl!r}, env={{}})
run("./script")
os.environ["PATH"] = os.getcwd() + ":" + os.environ["PATH"]
run("on_musl")
run("env", "-i", {on_musl!r})
run("sh", "-c", "on_musl; on_musl")
os.execv({on_musl!r}, ["on_musl"])
"""
    script = reprokit.script("training.py", code)
    done = repeats(reprokit, sys.executable, str(script))
    assert done.stdout.count("returncode=0") == 5
    assert done.stdout.count("stderr=b''") == 5


@pytest.mark.parametrize("options", rest_slow([["-static"], ["-static-pie"]]), ids=["static", "static-pie"])
def test_a_program_on_musl_that_a_static_one_starts(options: list[str], reprokit: Reprokit, on_musl: str) -> None:
    """No hook of the shim sees this exec."""
    starter = compiled(reprokit.directory / "starter", "musl-gcc", *options)
    repeats(reprokit, "sh", "-c", f"{starter} run {on_musl}; {starter} run /bin/true")


def test_a_program_on_musl_without_a_supervisor(reprokit: Reprokit, on_musl: str) -> None:
    done = reprokit.run(
        "record", "--no-supervisor", "-o", "run", "--", on_musl, "run", sys.executable, "-c", SHIM_IS_LOADED
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[3] == "True"
    assert "runs on musl, the shim on glibc" in done.stderr
    assert any(gap["source"] == "command" for gap in reprokit.facts("run")["uncovered"])
    helper = reprokit.run("record", "--no-supervisor", "-o", "helper", "--", "sh", "-c", on_musl)
    assert helper.returncode == 0, helper.stderr
    assert "those of another libc" in reprokit.run("show", "helper").stdout


# ---- an older glibc -----------------------------------------------------------------------------------------------


@pytest.fixture
def with_older_glibc(reprokit: Reprokit) -> str:
    """A program with a loader and a libc of its own, for which the shim is too new."""
    listed = subprocess.run(["ldd", sys.executable], capture_output=True, text=True, check=True).stdout.split()
    for name in ("libc.so.6", "ld-linux"):
        shutil.copy(next(word for word in listed if f"/{name}" in word), reprokit.directory / name)
    loader = f"-Wl,--dynamic-linker={reprokit.directory}/ld-linux,-rpath=$ORIGIN"
    program = compiled(reprokit.directory / "program", "gcc", loader)
    if not make_older(reprokit.directory / "libc.so.6", program):
        pytest.skip("the shim needs no newer glibc than any program built here")
    return program


def test_a_program_with_an_older_glibc_of_its_own(reprokit: Reprokit, with_older_glibc: str) -> None:
    """The loader would end it for the shim. The supervisor answers instead, and its children have the shim again."""
    command = [with_older_glibc, "run", sys.executable, "-c", SHIM_IS_LOADED]
    recorded = reprokit.run("record", "-o", "recorded", "--", *command)
    replayed = reprokit.run("replay", "recorded")
    for done in (recorded, replayed):
        assert done.returncode == 0, done.stderr
        assert "version `GLIBC" not in done.stderr
        assert "a program ran without the shim (in another root, with an older glibc" in done.stderr
    assert recorded.stdout == replayed.stdout
    assert recorded.stdout.split()[3] == "True"


# ---- files that are no whole program -------------------------------------------------------------------------------


def without_loader(program: bytearray) -> None:
    at = program.index(LOADER)
    program[at : at + len(LOADER)] = b"/lib64/ld-nowhere-64.so.222"


def with_another_loader(program: bytearray) -> None:
    at = program.index(LOADER)
    program[at : at + len(LOADER)] = b"/etc/passwd".ljust(len(LOADER), b"\0")


def with_headers_beyond(program: bytearray) -> None:
    program[32:40] = b"\xf8" + b"\xff" * 7


def with_many_headers(program: bytearray) -> None:
    program[56:58] = b"\xff\xff"


def cut_in_headers(program: bytearray) -> None:
    del program[200:]


def cut_behind_headers(program: bytearray) -> None:
    del program[5000:]


DAMAGES: list[tuple[Callable[[bytearray], None], int]] = [
    (without_loader, 127),
    (with_another_loader, 126),
    (with_headers_beyond, 126),
    (with_many_headers, 126),
    (cut_in_headers, 126),
    (cut_behind_headers, -signal.SIGSEGV),
]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the damages are for the loader's path on x86-64")
def test_a_damaged_program_fails_as_it_does_bare(reprokit: Reprokit) -> None:
    """As the command with the exit status of a shell and one line, as a helper with the kernel's error."""
    helpers = "import subprocess\n"
    for damage, status in DAMAGES:
        data = bytearray(Path("/bin/true").read_bytes())
        damage(data)
        program = reprokit.script(damage.__name__, "")
        program.write_bytes(data)
        done = reprokit.run("record", "--overwrite", "-o", "run", "--", str(program))
        assert done.returncode == status, (damage.__name__, done.stderr)
        assert len([line for line in done.stderr.splitlines() if "run: " not in line]) == 1, done.stderr
        helpers += f"try: print(subprocess.run({str(program)!r}))\nexcept OSError as error: print(error)\n"
    bare = subprocess.run([sys.executable, "-c", helpers], capture_output=True, text=True)
    assert reprokit.record(sys.executable, "-c", helpers).stdout == bare.stdout


def test_a_missing_loader_is_named(reprokit: Reprokit) -> None:
    program = compiled(reprokit.directory / "program", "gcc", "-Wl,--dynamic-linker=/nowhere/ld.so")
    done = subprocess.run([COMMAND, "record", "--", program], cwd=reprokit.directory, capture_output=True, text=True)
    assert done.returncode == 127
    assert "the dynamic loader that it names is missing; it cannot be run" in done.stderr
