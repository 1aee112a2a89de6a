"""Pipes as inputs: digests of what was read, by MiB, whatever the sizes of the reads were."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import COMMAND, LIMIT, Reprokit, training_text

MIB = 1 << 20


def pipes_of(run: Path) -> dict[str, dict[str, Any]]:
    data = json.loads((run / "environment.json").read_text())["data"]
    return {entry["path"]: entry for entry in data if entry["digest"].startswith("pipe-")}


def record(reprokit: Reprokit, run: str, content: bytes, block: int) -> str:
    """Record a training that reads the content from a FIFO, from a substituted process, and from standard input."""
    script = reprokit.script("train.py", training_text("piped_bytes.py"))
    (reprokit.directory / "content").write_bytes(content)
    fifo = reprokit.directory / "fifo"
    if not fifo.exists():
        os.mkfifo(fifo)
    writes = f"dd if=content bs={block} status=none"
    command = f"{COMMAND} record -o {run} -- {sys.executable} {script} fifo <({writes}) -"
    done = subprocess.run(
        ["bash", "-c", f"{writes} of=fifo & {writes} | {command}"],
        cwd=reprokit.directory,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 3 * sum(content)
    return done.stderr


@pytest.mark.slow
def test_what_pipes_gave_is_compared_by_mib(reprokit: Reprokit) -> None:
    content = bytes(range(251)) * (3 * MIB // 251)
    other = bytearray(content)
    other[2 * MIB + 5] ^= 1
    record(reprokit, "first", content, 65536)
    record(reprokit, "same", content, 1001)
    record(reprokit, "other", bytes(other), 65536)
    record(reprokit, "short", content[: MIB + 3], 65536)
    first = pipes_of(reprokit.directory / "first")
    assert sorted(first)[1:] == ["fifo", "stdin"]
    assert sorted(first)[0].startswith("/dev/fd/")
    assert {(entry["size"], len(entry["pieces"])) for entry in first.values()} == {(len(content), 3)}
    assert pipes_of(reprokit.directory / "same") == first
    assert "the pipe gave other bytes from MiB 2 on" in told(reprokit, "first", "other", "fifo")
    assert "the pipe gave other bytes, or one run read less of it, from MiB 1 on" in told(
        reprokit, "first", "short", "stdin"
    )


def told(reprokit: Reprokit, left: str, right: str, name: str) -> str:
    """What verify says of one pipe."""
    lines = reprokit.run("verify", left, right, "--all").stdout.splitlines()
    return "\n".join(line for line in lines if "MiB" in line and name in line)


def test_pipes_within_a_run_are_its_own(reprokit: Reprokit) -> None:
    code = "import subprocess; print(subprocess.run(['cat'], input=b'x' * 2000, capture_output=True).stdout[:3])"
    assert reprokit.run("record", "-o", "run", "--", sys.executable, "-c", code, stdin="not read").returncode == 0
    assert pipes_of(reprokit.directory / "run") == {}
    assert not (reprokit.directory / "run" / "pipes.list").exists()


def test_a_pipe_that_a_killed_training_read_is_known_up_to_its_last_mib(reprokit: Reprokit) -> None:
    code = "import os, sys; sys.stdin.buffer.read(1500000); os.kill(os.getpid(), 9)"
    reprokit.run("record", "-o", "run", "--", sys.executable, "-c", code, stdin="x" * 3 * MIB)
    (entry,) = pipes_of(reprokit.directory / "run").values()
    assert len(entry["pieces"]) == entry["size"] // MIB == 1
