"""What fails beside the training does not fail the training."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reprokit.model.plan import Plan
from reprokit.model.run import RunFile
from reprokit.model.run_warning import RunWarning
from reprokit.run.part import Closing
from reprokit.run.parts.outputs import OutputsPart
from reprokit.run.process import ExitStatus
from tests.support import Reprokit, python


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A file system of one MiB; None where this user may not mount."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)], capture_output=True)
    yield place if mounted.returncode == 0 else None
    if mounted.returncode == 0:
        subprocess.run(["umount", str(place)], check=True)


FILL = """
import os, sys
try:
    with open("filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
except OSError as error:
    print(error.strerror)
sys.exit(9)
"""

# The same without a mount: no file of the launcher may grow any more.
LIMIT_THE_LAUNCHER = """
import os, resource, sys
resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (1, 1))
print("No space left on device")
sys.exit(9)
"""


def test_a_full_disk_is_a_warning_and_the_status_is_passed_on(reprokit: Reprokit, small_disk: Path | None) -> None:
    code, place = (LIMIT_THE_LAUNCHER, reprokit.directory) if small_disk is None else (FILL, small_disk)
    done = reprokit.record(*python(code), directory=place)
    assert done.returncode == 9
    assert "No space left on device" in done.stdout
    assert "reprokit: warning: " in done.stderr
    assert done.stderr.splitlines()[-1].startswith("reprokit: run: ")
    run = (place / ".reprokit" / "last").resolve()
    assert (run / "run.json").read_text().endswith("}\n"), "what was there stays whole"
    assert not list(run.glob("*.partial"))
    if small_disk is not None:
        facts = reprokit.facts(run)
        assert (facts["status"], facts["exit_code"]) == ("finished", 9), "room for the end was kept"
        assert "disk-full" in [warning["code"] for warning in facts["warnings"]]
        assert not (run / "reserve").exists()


def test_a_disk_that_is_full_at_the_start_is_said(reprokit: Reprokit, small_disk: Path | None) -> None:
    if small_disk is None:
        pytest.skip("file systems cannot be mounted here")
    subprocess.run([sys.executable, "-c", FILL], cwd=small_disk, capture_output=True)
    done = reprokit.record("true", directory=small_disk)
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.startswith("reprokit: cannot-write-run: ")
    assert "No space left on device" in done.stderr


def test_a_disk_that_fills_before_python_starts_is_the_reason(reprokit: Reprokit, small_disk: Path | None) -> None:
    """And not that no Python process began."""
    if small_disk is None:
        pytest.skip("file systems cannot be mounted here")
    fill = 'cat /dev/zero > filler 2> /dev/null; exec "$@"'
    done = reprokit.run("record", "--", "sh", "-c", fill, "sh", *python("print(1)"), directory=small_disk)
    assert (done.returncode, done.stdout) == (0, "1\n")
    agent = reprokit.facts((small_disk / ".reprokit" / "last").resolve())["agent"]
    assert agent["state"] == "not-loaded"
    assert agent["why"] == "the disk was full, so that it may have begun"


def test_a_lack_of_memory_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object, **keywords: object) -> None:
        raise MemoryError

    run = RunFile(run_id="1", kind="record", reprokit="1", command=["true"], working_directory="/")
    plan = Plan(command=("true",), working_directory=tmp_path, mode="record")
    monkeypatch.setattr("reprokit.run.outputs.collect", fail)
    closing = Closing(plan, tmp_path, run, ExitStatus(exit_code=0))
    closing.attempt(lambda: OutputsPart(plan).finish(closing))
    assert RunWarning("MemoryError", "step-failed") in run.warnings
    assert "reprokit: warning: MemoryError [step-failed]\n" in capsys.readouterr().err


def test_a_limit_on_file_sizes_is_a_warning_and_the_status_is_passed_on(reprokit: Reprokit) -> None:
    done = reprokit.record(*python(LIMIT_THE_LAUNCHER))
    assert done.returncode == 9
    assert "reprokit: warning: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_directory_that_goes_away_is_a_warning(reprokit: Reprokit) -> None:
    done = reprokit.record("sh", "-c", 'rm -rf "$REPROKIT_RUN"; exit 4')
    assert done.returncode == 4
    assert "reprokit: warning: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("descriptor", [1, 2])
def test_a_closed_output_changes_nothing(reprokit: Reprokit, descriptor: int) -> None:
    done = reprokit.run("record", "-o", "first", "--", "true")
    wrapped = f'"$0" "$@" {descriptor}>&-'
    from tests.support import COMMAND

    done = subprocess.run(
        ["sh", "-c", wrapped, COMMAND, "record", "-o", "run", "--", "sh", "-c", "exit 6"],
        cwd=reprokit.directory,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 6
    assert reprokit.facts("run")["exit_code"] == 6


def test_a_full_stderr_changes_nothing(reprokit: Reprokit) -> None:
    from tests.support import COMMAND

    with open("/dev/full", "w") as full:
        done = subprocess.run([COMMAND, "record", "--", "sh", "-c", "exit 6"], cwd=reprokit.directory, stderr=full)
    assert done.returncode == 6


def test_an_environment_that_the_system_refuses_is_said(reprokit: Reprokit) -> None:
    done = reprokit.record("true", "x" * 131_000)
    assert done.returncode == 0
    # One string of 128 KiB is what the kernel takes; reprokit's own environment must not be the reason.
    with pytest.raises(OSError, match="Argument list too long"):
        reprokit.start("record", "--", "true", "x" * (1 << 18))


def test_the_host_facts_are_there(reprokit: Reprokit) -> None:
    import json

    script = reprokit.script("train.sh", "#!/bin/sh\nexit 0\n")
    reprokit.record("sh", "train.sh", "--rate", "0.1")
    facts = json.loads((reprokit.last / "environment.json").read_text())
    assert facts["system"]["kernel"] == os.uname().release
    assert facts["cpu"]["count"] == os.cpu_count()
    assert list(facts["files"]) == [script.name]
    assert facts["files"][script.name].startswith("sha256:")
    assert facts["memory"] > 0


def test_the_commit_is_known(reprokit: Reprokit) -> None:
    import json

    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], cwd=reprokit.directory, check=True)
    (reprokit.directory / "train.py").write_text("pass")
    subprocess.run([*git, "add", "train.py"], cwd=reprokit.directory, check=True)
    subprocess.run([*git, "commit", "-qm", "first"], cwd=reprokit.directory, check=True)
    for dirty in (False, True):
        reprokit.record("true")
        facts = json.loads((reprokit.last / "environment.json").read_text())["git"]
        assert len(facts["commit"]) == 40
        assert facts["dirty"] is dirty
        (reprokit.directory / "train.py").write_text("changed")
