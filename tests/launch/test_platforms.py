"""On other platforms recording says so in one line; the rest of the command line works."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Another platform as far as Python code can tell: its name, and what its standard library lacks.
ELSEWHERE = """
import ctypes, os, platform, signal, sys
import reprokit.cli.main
kind, *arguments = sys.argv[1:]
if kind == "windows":
    sys.platform = "win32"
    for name in ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGCHLD", "pthread_sigmask", "sigwaitinfo"):
        delattr(signal, name)
    del os.confstr, os.uname, os.fork
elif kind == "macos":
    sys.platform = "darwin"
    del signal.sigtimedwait, os.sched_getaffinity
elif kind == "musl":
    def confstr(name):
        raise ValueError("unrecognized configuration name")
    os.confstr = confstr
elif kind == "riscv":
    platform.machine = lambda: "riscv64"
reprokit.cli.main.main(arguments)
"""


def run(kind: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", ELSEWHERE, kind, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("kind", ["windows", "macos", "musl", "riscv"])
@pytest.mark.parametrize("arguments", [["record", "--", "true"], ["replay", "run"]])
def test_recording_is_refused_in_one_line(kind: str, arguments: list[str]) -> None:
    done = run(kind, *arguments)
    assert done.returncode == 125
    assert done.stderr.startswith("reprokit: not-supported: recording and replaying need ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("kind", ["windows", "macos", "musl", "riscv"])
def test_the_rest_of_the_command_line_is_there(kind: str) -> None:
    assert run(kind, "--help").returncode == 0
    done = run(kind, "show", "no-such-run")
    assert done.returncode == 2
    assert done.stderr.startswith("reprokit: run-not-found: ")


@pytest.mark.parametrize("kind", ["windows", "macos", "musl"])
def test_doctor_says_what_is_missing(kind: str) -> None:
    done = run(kind, "doctor")
    assert done.returncode == 2
    assert "no  platform: recording and replaying need " in done.stdout
    assert "Traceback" not in done.stderr
