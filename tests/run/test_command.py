"""Programs into which the shim cannot load are noticed before they start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from reprokit.run.command import elf_refusal, resolve
from tests.support import Reprokit

SOURCE = '#include <stdio.h>\nint main(void) { puts("ran"); return 3; }\n'


def compile_program(directory: Path, name: str, *options: str) -> Path:
    program = directory / name
    subprocess.run(["gcc", "-x", "c", "-o", str(program), *options, "-"], input=SOURCE, text=True, check=True)
    return program


@pytest.mark.parametrize("option", ["-static", "-static-pie"])
def test_a_static_program_runs_and_the_run_says_that_it_was_not_seen(reprokit: Reprokit, option: str) -> None:
    compile_program(reprokit.directory, "program", option)
    done = reprokit.run("record", "--no-supervisor", "--", "./program")
    assert (done.returncode, done.stdout) == (3, "ran\n")
    assert "reprokit: warning: the shim cannot load: " in done.stderr
    assert "is statically linked" in done.stderr
    assert reprokit.facts()["shim"]["state"] == "not-loaded"
    assert reprokit.facts()["shim"]["why"].endswith("is statically linked")


def test_a_static_interpreter_behind_a_script_and_env_is_found(reprokit: Reprokit) -> None:
    compile_program(reprokit.directory, "interpreter", "-static")
    reprokit.script("train", "#!/usr/bin/env interpreter\n")
    found = f"{reprokit.directory}:/usr/bin:/bin"
    for command in (["./train"], ["train"], ["env", "A=b", "interpreter"], ["/usr/bin/env", "-i", "interpreter"]):
        arguments = ("record", "--no-supervisor", "--", *command)
        done = reprokit.run(*arguments, environment={"PATH": f"{Path(sys.executable).parent}:{found}"})
        assert "is statically linked" in done.stderr, command


def test_musl_and_other_architectures_are_told_apart(tmp_path: Path) -> None:
    glibc = compile_program(tmp_path, "glibc")
    assert elf_refusal(glibc).why == ""
    musl = compile_program(tmp_path, "musl", "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1")
    assert elf_refusal(musl).why == "runs on musl, the shim on glibc"
    other = tmp_path / "other"
    data = bytearray(glibc.read_bytes())
    data[18] ^= 0xFF
    other.write_bytes(data)
    assert elf_refusal(other).why == "is built for another architecture"


@pytest.mark.parametrize("size", [0, 3, 17, 63, 64, 80, 200])
def test_a_program_cut_short_is_no_trouble(tmp_path: Path, size: int) -> None:
    whole = compile_program(tmp_path, "whole").read_bytes()
    cut = tmp_path / "cut"
    cut.write_bytes(whole[:size])
    assert elf_refusal(cut).why in ("", "is not an ELF program", "is statically linked")


def test_a_script_runs_by_its_interpreter(reprokit: Reprokit) -> None:
    interpreter = reprokit.directory / "python"  # no #! line can hold a path with spaces
    interpreter.symlink_to(sys.executable)
    reprokit.script("train.py", f"#!{interpreter}\nimport sys\nprint(sys.argv)\n")
    done = reprokit.record("./train.py", "one")
    assert done.stdout == "['./train.py', 'one']\n"
    assert "warning" not in done.stderr


def test_a_script_without_an_interpreter_runs_by_the_shell(reprokit: Reprokit) -> None:
    reprokit.script("train", 'echo "$0 $1"\n')
    assert reprokit.record("./train", "one").stdout == "./train one\n"


def test_the_search_path_is_searched_as_execvp_does(tmp_path: Path) -> None:
    for directory, mode in (("a", 0o644), ("b", 0o755), ("c", 0o755)):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "tool").write_text("#!/bin/sh\n")
        (tmp_path / directory / "tool").chmod(mode)
    assert resolve(("tool",), f"{tmp_path}/missing:{tmp_path}/a:{tmp_path}/b:{tmp_path}/c", tmp_path).program == str(
        tmp_path / "b" / "tool"
    )
    assert resolve(("tool",), ":/bin", tmp_path / "b").program == "./tool"


def test_a_loop_of_scripts_ends(reprokit: Reprokit) -> None:
    path = reprokit.directory / "loop"
    reprokit.script("loop", f"#!{path}\n")
    done = reprokit.record("./loop")
    assert done.returncode == 126
    assert reprokit.facts()["status"] == "failed-to-start"
