"""What a killed question left is removed by the next one; what may be somebody's stays."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from reprokit.questions.scratch import LOCK
from tests.support import LIMIT, Reprokit

TRAINING = str(Path(__file__).parents[1] / "trainings/pytorch_long.py")


def killed_question(directory: Path) -> Path:
    """Kill a question once its replay takes steps; return what it leaves when its processes have ended."""
    asking = Reprokit(directory).start("ask", "run", "weights", "--steps", "2990-2999")
    deadline = time.monotonic() + LIMIT
    while not (left := list(directory.glob(".ask-*/replay/trail"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(asking.pid, signal.SIGKILL)
    asking.communicate(timeout=LIMIT)
    place = left[0].parents[1]
    with open(place / LOCK, "r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until its launcher has ended, too
    return place


@pytest.mark.slow
def test_what_a_killed_question_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    reprokit = Reprokit(tmp_path)
    assert reprokit.run("record", "-o", "run", "--", sys.executable, TRAINING).returncode == 0
    left = killed_question(tmp_path)
    kept = [tmp_path / f".ask-{name}" for name in ("alive", "elsewhere", "beginning", "other")]
    for path in kept:
        shutil.copytree(left, path)
    (kept[1] / LOCK).write_text("another-host")
    (kept[2] / LOCK).unlink()
    file = kept[3] / "replay/run.json"
    run = json.loads(file.read_text())
    run["replay_of"]["run_id"] = "0" * 32
    file.write_text(json.dumps(run))
    (tmp_path / ".take-link").symlink_to(tmp_path / "run")
    with open(kept[0] / LOCK, "r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        asked = reprokit.run("ask", "run", "losses", "--steps", "2")
    assert asked.returncode == 0, asked.stderr
    assert sorted(tmp_path.glob(".[at]*")) == sorted([*kept, tmp_path / ".take-link"])
    assert (tmp_path / "run/run.json").is_file()
