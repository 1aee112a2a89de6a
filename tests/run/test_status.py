"""The command's end is reprokit's end: exit status, death by signal, and reprokit's own codes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support import Reprokit, python


@pytest.mark.parametrize("status", [0, 1, 2, 3, 77, 124, 125, 126, 127, 128, 130, 143, 254, 255])
def test_exit_status_is_passed_on(reprokit: Reprokit, status: int) -> None:
    assert reprokit.record("sh", "-c", f"exit {status}").returncode == status
    assert reprokit.facts()["exit_code"] == status
    assert reprokit.facts()["status"] == "finished"


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "ABRT", "KILL", "SEGV", "PIPE", "TERM", "USR1", "XFSZ"])
def test_death_by_a_signal_is_death_by_that_signal(reprokit: Reprokit, name: str) -> None:
    number = signal.Signals[f"SIG{name}"]
    done = reprokit.record("sh", "-c", f"kill -{number.value} $$")
    assert done.returncode == -number
    assert reprokit.facts()["signal"] == f"SIG{name}"
    assert reprokit.facts()["exit_code"] is None


def test_a_real_time_signal_is_passed_on_too(reprokit: Reprokit) -> None:
    assert reprokit.record("sh", "-c", f"kill -{signal.SIGRTMIN + 3} $$").returncode == -(signal.SIGRTMIN + 3)


def test_a_training_killed_by_a_signal_leaves_no_core_of_reprokit(reprokit: Reprokit) -> None:
    reprokit.record("sh", "-c", "ulimit -c 0; kill -SEGV $$")
    assert not list(reprokit.directory.glob("core*"))


def test_nothing_of_reprokit_goes_to_stdout_and_the_last_lines_name_the_run_and_what_is_next(
    reprokit: Reprokit,
) -> None:
    done = reprokit.record("sh", "-c", "echo out; echo err >&2")
    assert done.stdout == "out\n"
    lines = done.stderr.splitlines()
    assert lines[0] == "err"
    assert lines[1:] == [f"reprokit: run: .reprokit/{reprokit.last.name}", "reprokit: next: reprokit replay last"]


@pytest.mark.parametrize(
    ("command", "status", "slug"),
    [
        ("no-such-program", 127, "command-not-found"),
        ("./no-such-script.py", 127, "command-not-found"),
        ("missing/directory/program", 127, "command-not-found"),
        ("./plain.txt", 126, "command-not-executable"),
        ("./directory", 126, "command-not-executable"),
        ("./plain.txt/program", 127, "command-not-found"),
        ("./binary", 126, "command-not-executable"),
        ("./bad-interpreter", 127, "command-not-found"),
        ("./no-interpreter", 126, "command-not-executable"),
    ],
)
def test_a_command_that_cannot_be_run_says_so_and_leaves_nothing(
    reprokit: Reprokit, command: str, status: int, slug: str
) -> None:
    (reprokit.directory / "plain.txt").write_text("text")
    (reprokit.directory / "directory").mkdir()
    reprokit.script("binary", "\0\1\2")
    reprokit.script("bad-interpreter", "#!/no/such/interpreter\n")
    reprokit.script("no-interpreter", "#!\n")
    done = reprokit.record(command)
    assert done.returncode == status
    assert done.stderr.startswith(f"reprokit: {slug}: ")
    assert done.stderr.count("\n") == 1
    assert not (reprokit.directory / ".reprokit").exists()


@pytest.mark.parametrize("arguments", [["record"], ["record", "--"], ["record", "-o", "x"], ["record", "--", ""]])
def test_no_command_is_a_failure_of_reprokits_own(reprokit: Reprokit, arguments: list[str]) -> None:
    done = reprokit.run(*arguments)
    assert done.returncode == 125
    assert done.stderr.startswith("reprokit: no-command: ")


def test_forgotten_dashes_are_pointed_out(reprokit: Reprokit) -> None:
    done = reprokit.run("record", "-o", "x", "python", "my train.py", "-v")
    assert done.returncode == 125
    expected = "put -- before the command to run: reprokit record -o x -- python 'my train.py' -v"
    assert done.stderr == f"reprokit: dashes-missing: {expected} (reprokit help dashes-missing)\n"


def test_dashes_of_the_command_are_its_own(reprokit: Reprokit) -> None:
    done = reprokit.record(*python("import sys; print(sys.argv)"), "--", "-x", "--", "--help")
    assert done.stdout == "['-c', '--', '-x', '--', '--help']\n"


def test_an_unknown_option_is_one_line(reprokit: Reprokit) -> None:
    done = reprokit.run("record", "--no-such-option", "--", "true")
    assert done.returncode == 125
    assert done.stderr.startswith("reprokit: usage: ")
    assert done.stderr.count("\n") == 1


def test_a_run_inside_a_run_is_refused(reprokit: Reprokit) -> None:
    from tests.support import COMMAND

    done = reprokit.record(COMMAND, "record", "--", "true")
    assert done.returncode == 125
    assert "reprokit: nested: " in done.stderr


def test_a_program_of_another_directory_runs_where_the_user_is(reprokit: Reprokit, tmp_path: Path) -> None:
    place = tmp_path / "a place with spaces"
    place.mkdir()
    done = reprokit.record("pwd", directory=place)
    assert done.stdout == f"{place}\n"
