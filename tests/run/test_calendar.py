"""The time of day in whole runs: told again by default, in all processes, and what scripts make of it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.support import Reprokit

SHELL = """
date '+%F %T.%N'
d=run-$(date +%s); mkdir "$d" && echo result > "$d/result.txt" && ls -d run-*
python3 -c 'import datetime, time; print(datetime.datetime.now(), time.time())'
for i in 1 2 3; do date +%N; done | sort -n
"""


def shell(reprokit: Reprokit, text: str = SHELL) -> list[str]:
    interpreter = str(Path(sys.executable).parent)
    script = reprokit.script("script.sh", f"PATH='{interpreter}':$PATH\n{text}")
    return [str(shutil.which("bash")), str(script)]


def test_dates_are_told_again_in_all_processes(reprokit: Reprokit) -> None:
    """And a directory that is named by the time can be made again."""
    recorded = reprokit.run("record", "-o", "run", "--", *shell(reprokit))
    assert recorded.returncode == 0, recorded.stderr
    assert reprokit.facts("run")["calendar"] is True
    for number in range(2):
        replayed = reprokit.run("replay", "run", "-o", f"again{number}")
        assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr
        assert reprokit.run("verify", "run", f"again{number}").returncode == 0
    [made] = reprokit.directory.glob("run-*")
    assert (made / "result.txt").read_text() == "result\n"


def test_what_is_not_the_recordings_stays_where_it_is(reprokit: Reprokit) -> None:
    text = "d=run-$(date +%s); mkdir -p $d; echo result > $d/result.txt"
    assert reprokit.run("record", "-o", "run", "--", *shell(reprokit, text)).returncode == 0
    [made] = reprokit.directory.glob("run-*")
    (made / "notes.txt").write_text("mine")
    replayed = reprokit.run("replay", "run", "-o", "again")
    assert replayed.returncode == 0
    assert sorted(path.name for path in made.iterdir()) == ["notes.txt", "result.txt"]


def test_without_a_calendar_it_is_another_time(reprokit: Reprokit) -> None:
    command = shell(reprokit, "date +%s.%N")
    recorded = reprokit.run("record", "--no-calendar", "-o", "run", "--", *command)
    assert reprokit.facts("run")["calendar"] is False
    assert reprokit.run("replay", "run", "-o", "again").stdout != recorded.stdout
    assert reprokit.facts("again")["calendar"] is False


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("gawk", ["BEGIN { srand(); print rand(), systime() }"]),
        ("mawk", ["BEGIN { srand(); print rand() }"]),
        (
            "Rscript",
            ["-e", "cat(rnorm(2), format(Sys.time()), Sys.getpid() > 4194304, tools::pskill(Sys.getpid(), 0))"],
        ),
    ],
)
def test_generators_seeded_by_the_time_repeat(program: str, arguments: list[str], reprokit: Reprokit) -> None:
    """R's seed has the process id too, which is a number that repeats."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    recorded = reprokit.run("record", "-o", "run", "--", path, *arguments)
    assert recorded.returncode == 0
    assert reprokit.run("replay", "run", "-o", "again").stdout == recorded.stdout != ""


@pytest.mark.slow
def test_a_script_of_r_and_its_workers_repeat(reprokit: Reprokit) -> None:
    if shutil.which("Rscript") is None:
        pytest.skip("Rscript is not installed")
    script = Path(__file__).parents[1] / "trainings" / "unseeded.R"
    recorded = reprokit.run("record", "-o", "run", "--", "Rscript", str(script))
    assert recorded.returncode == 0, recorded.stderr
    assert reprokit.run("replay", "run", "-o", "again").stdout == recorded.stdout != ""
    compared = reprokit.run("verify", "run", "again").stdout
    assert compared.startswith("identical: "), compared
    assert "model.rds" in compared


def test_too_many_reads_are_said_once(reprokit: Reprokit) -> None:
    script = "import time\nread = time.time\nfor _ in range(2_000_000):\n    read()\nprint(read())"
    recorded = reprokit.run("record", "-o", "run", "--", sys.executable, "-c", script)
    assert recorded.stderr.count("read the clock more often than is recorded") == 1
    [source] = reprokit.facts("run")["uncovered"]
    assert (source["source"], "read the clock more often" in source["text"]) == ("calendar", True)
    assert (reprokit.directory / "run" / "entropy").stat().st_nlink == 2
    replayed = reprokit.run("replay", "run", "-o", "again")
    assert abs(float(replayed.stdout) - float(recorded.stdout)) < 60


MOMENT = 1795947193.4  # 10:13:13 UTC on 29 November 2026
