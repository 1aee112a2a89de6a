"""Two recordings that add to one file: what each of them added is compared, and not what it found."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import Reprokit

ADDING = """
import os, sqlite3, sys
value = float(sys.argv[1])
database = sqlite3.connect("runs.db")
database.execute("create table if not exists metrics (run_uuid text, key text, value real)")
for step in range(3):
    database.execute("insert into metrics values (?, ?, ?)", (os.urandom(16).hex(), "loss", value + step))
database.commit()
with open("log.csv", "a") as file:
    if not file.tell():
        print("epoch,loss", file=file)
    print(f"0,{value}", file=file)
"""


def recorded(reprokit: Reprokit, name: str, value: str = "0.5") -> None:
    """Record the script, which adds to what is there."""
    done = reprokit.run("record", "-o", name, "--", sys.executable, "train.py", value)
    assert done.returncode == 0, done.stderr


def test_what_recordings_added_is_compared(reprokit: Reprokit) -> None:
    reprokit.script("train.py", ADDING)
    for name in ("first", "second", "third"):
        recorded(reprokit, name)
    recorded(reprokit, "other", "0.75")
    done = reprokit.run("verify", "second", "third")
    assert done.returncode == 0, done.stdout
    assert "; of log.csv and 1 more only what each run added is compared" in done.stdout
    assert "note: the recordings found other content in log.csv, runs.db: what each added is compared" in done.stdout
    done = reprokit.run("verify", "third", "other", "--all")
    assert done.returncode == 1
    assert "runs.db/metrics/1/value/loss" in done.stdout
    assert "0.5 | 0.75" in done.stdout.replace("'", "")
    done = reprokit.run("verify", "first", "second")  # the first made the table and the line of names
    assert done.returncode == 1
    assert "what they left may differ by that alone" in done.stdout


@pytest.mark.slow
def test_rows_that_a_run_changed_or_removed_count(reprokit: Reprokit) -> None:
    reprokit.script("make.py", ADDING)
    reprokit.script(
        "train.py",
        "import sqlite3, sys\ndatabase = sqlite3.connect('runs.db')\n"
        "database.execute('update metrics set value = value * ? where rowid = 1', (float(sys.argv[1]),))\n"
        "database.execute('delete from metrics where rowid = ?', (3 if sys.argv[1] == '2' else 2,))\n"
        "database.commit()\n",
    )
    subprocess.run([sys.executable, "make.py", "0.5"], cwd=reprokit.directory, check=True)
    recorded(reprokit, "first", "2")
    subprocess.run([sys.executable, "make.py", "0.5"], cwd=reprokit.directory, check=True)
    recorded(reprokit, "second", "3")
    done = reprokit.run("verify", "first", "second", "--all")
    assert done.returncode == 1
    assert "runs.db/metrics/removed 2/value/loss" in done.stdout
