"""Programs that the shim does not fit, or that expect no preloaded library: they run as they do bare, and repeat."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.run.older_glibc import make_older
from tests.support import COMMAND, Done, Reprokit, rest_slow

HERE = Path(__file__).parent
LOADER = b"/lib64/ld-linux-x86-64.so.2"
SHIM_IS_LOADED = "import os; print(os.urandom(4).hex(), 'liburandom_hook.so' in open('/proc/self/maps').read())"

SANITIZERS = {
    "address": ["-fsanitize=address"],
    "address with undefined": ["-fsanitize=address,undefined"],
    "address, static": ["-fsanitize=address", "-static-libasan"],
    "thread": ["-fsanitize=thread"],
    "thread, static": ["-fsanitize=thread", "-static-libtsan"],
    "leak": ["-fsanitize=leak"],
    "undefined": ["-fsanitize=undefined"],
}

MISTAKES = """
#include <stdlib.h>
#include <unistd.h>
#include <sys/random.h>
int main(int number, char **arguments) {
    char *bytes = malloc(8);
    switch (*arguments[1]) {
    case 'o': return getrandom(bytes, 16, 0) == 0;
    case 'f': free(bytes); return bytes[number];
    case 'l': bytes = malloc(number); bytes = NULL; return 0;
    default: return write(2, bytes, 64) < 0;
    }
}
"""


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


# ---- sanitizers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", rest_slow(SANITIZERS.values()), ids=SANITIZERS)
def test_a_program_with_a_sanitizer(options: list[str], reprokit: Reprokit) -> None:
    """With any environment, and as the parent of others, the shim is in it and records what it asks for once."""
    program = compiled(reprokit.directory / "program", "gcc", *options)
    command = f"{program}; env -i {program}; {program} run {program} run {sys.executable} -c pass"
    done = repeats(reprokit, "sh", "-c", command)
    assert len(set(done.stdout.split())) == 8
    assert "Sanitizer" not in done.stderr
    assert reprokit.facts("replayed")["fidelity"]["unused"] == 0


@pytest.mark.parametrize("sanitizer", rest_slow(["leak", "address"]))
def test_a_proof_of_a_program_that_looks_for_leaks(sanitizer: str, reprokit: Reprokit) -> None:
    """Under strace the search would wait for a thread that has ended."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    program = compiled(reprokit.directory / "program", "gcc", f"-fsanitize={sanitizer}")
    done = reprokit.run("record", "--prove", "-o", "run", "--", program, environment={"LSAN_OPTIONS": "verbosity=0"})
    assert done.returncode == 0, done.stderr
    assert reprokit.facts("run")["proof"]["unaccounted"] == []


@pytest.mark.parametrize("options", [["-fsanitize=address"], ["-fsanitize=address", "-shared-libasan"]])
@pytest.mark.slow
def test_a_program_with_clangs_sanitizer(options: list[str], reprokit: Reprokit) -> None:
    """Clang links the runtime into the program, before which no library stands."""
    program = compiled(reprokit.directory / "program", "clang", *options)
    if subprocess.run([program], capture_output=True).returncode:
        pytest.skip("a program with this runtime does not start here")
    repeats(reprokit, program, "run", "env", "-i", program)


@pytest.mark.slow
def test_the_options_of_a_sanitizer_are_kept(reprokit: Reprokit) -> None:
    """And what it finds is found, with the same exit status."""
    program = compiled(reprokit.directory / "program", "gcc", "-fsanitize=address", "-w", source=MISTAKES)
    options = {"ASAN_OPTIONS": "exitcode=33:detect_leaks=1"}
    for mistake in ("overflow", "freed", "leak", "beyond"):
        bare, recorded = (
            subprocess.run([*words, program, mistake], env={**os.environ, **options}, capture_output=True)
            for words in ((), (COMMAND, "record", "-o", str(reprokit.directory / mistake), "--"))
        )
        assert (bare.returncode, recorded.returncode) == (33, 33), recorded.stderr
        kinds = {text.partition(b"SUMMARY: ")[2].split()[1] for text in (bare.stderr, recorded.stderr)}
        assert len(kinds) == 1
    said = reprokit.record("sh", "-c", 'echo "$ASAN_OPTIONS"; env -i sh -c "echo \\$ASAN_OPTIONS"', environment=options)
    assert said.stdout.splitlines() == [
        "exitcode=33:detect_leaks=1:verify_asan_link_order=0",
        "verify_asan_link_order=0",
    ]


def test_a_python_with_a_preloaded_sanitizer(reprokit: Reprokit) -> None:
    """As extensions with AddressSanitizer are tried."""
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    script = reprokit.script("training.py", SHIM_IS_LOADED)
    python = f"LD_PRELOAD={runtime} ASAN_OPTIONS=detect_leaks=0 {sys.executable} {script}"
    bare = subprocess.run(["sh", "-c", python], capture_output=True)
    if not Path(runtime).is_absolute() or bare.returncode:
        pytest.skip("Python does not start here with libasan")
    assert repeats(reprokit, "sh", "-c", f"{python}; {python}").stdout.count("True") == 2


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
