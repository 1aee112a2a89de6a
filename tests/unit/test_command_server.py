"""Commands that tests run in forked processes: they are what the installed command is, which runs here too."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import COMMAND, LIMIT, SERVER, Reprokit, python

SHOWN = (
    "show last",
    "show last --json",
    "verify last",
    "verify first last --json",
    "check first",
    "ls --json",
    "report last --format markdown",
    "ledger first",
    "diff first/run.json again/run.json",
    "data check first/run.json",
    "knowledge search sort",
    "attest verify first/run.json",
    "rules run first",
    "gc --dry-run",
    "nonsense",
    "verify nowhere",
    "show --help",
)
VARYING = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+Z|\d+\.\d+ s\b")  # a report says when it was written


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Reprokit:
    """A directory with a recording and its replay."""
    reprokit = Reprokit(tmp_path_factory.mktemp("served"))
    assert reprokit.run("record", "-o", "first", "--", *python("print(1)\nopen('out', 'w').write('2')")).returncode == 0
    assert reprokit.run("replay", "first", "-o", "again").returncode == 0
    return reprokit


@pytest.mark.parametrize("words", SHOWN)
def test_a_command_says_and_returns_what_the_installed_one_does(recorded: Reprokit, words: str) -> None:
    installed = subprocess.run([COMMAND, *words.split()], cwd=recorded.directory, capture_output=True, text=True)
    served = recorded.run(*words.split())
    assert served.returncode == installed.returncode
    for here, there in ((served.stdout, installed.stdout), (served.stderr, installed.stderr)):
        assert VARYING.sub("", here) == VARYING.sub("", there)
    assert served.stdout + served.stderr


@pytest.mark.parametrize(("code", "status"), [("exit 3", 3), ("kill -9 $$", -9), ("kill -TERM $$", -15)])
def test_it_ends_as_the_training_ends(reprokit: Reprokit, code: str, status: int) -> None:
    assert reprokit.record("sh", "-c", code).returncode == status


def test_it_has_its_own_place_variables_and_streams(reprokit: Reprokit) -> None:
    code = "import os, sys; print(os.getcwd(), os.environ['OWN'], sys.stdin.read() == ''); print('é', file=sys.stderr)"
    done = reprokit.record(*python(code), environment={"OWN": "1 2"})
    assert done.stdout == f"{reprokit.directory} 1 2 True\n"
    assert "é\n" in done.stderr
    assert "OWN" not in reprokit.record("env").stdout


def test_what_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        SERVER.run(["record", "--", sys.executable, "-c", "import time; time.sleep(4)"], tmp_path, os.environ, 1)


def test_the_server_has_one_thread_and_no_framework() -> None:
    """A process with threads cannot be forked soundly."""
    SERVER.run(["--version"], Path("/"), os.environ, LIMIT)
    assert SERVER.process is not None
    process = Path("/proc", str(SERVER.process.pid))
    assert len(list((process / "task").iterdir())) == 1
    maps = (process / "maps").read_text()
    assert "/msgspec/" in maps
    assert not re.search(r"/(numpy|torch|tensorflow)/", maps)


@pytest.mark.parametrize("name", ["PYTHONHASHSEED", "LC_ALL", "LD_PRELOAD"])
def test_variables_that_are_read_before_python_runs_need_a_process_that_begins_with_them(name: str) -> None:
    assert SERVER.serves({**os.environ, "ANOTHER": "1"})
    assert not SERVER.serves({**os.environ, name: "1"})


def test_a_signal_that_the_tests_ignore_is_ignored_by_commands() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert not SERVER.serves(os.environ)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert SERVER.serves(os.environ)
