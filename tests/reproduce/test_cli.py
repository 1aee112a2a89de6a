"""reprokit reproduce on the command line: real runs of small commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import COMMAND, LIMIT, Done, Reprokit, python, rest_slow, wait_until


def journal(directory: Path) -> dict[str, Any]:
    """The journal of a reproduction."""
    found: dict[str, Any] = json.loads((directory / "journal.json").read_text())
    return found


def phases(directory: Path) -> list[str]:
    return [one["phase"] for one in journal(directory)["rounds"]]


def reproduce(reprokit: Reprokit, *command: str, options: tuple[str, ...] = ()) -> Done:
    return reprokit.run("reproduce", "-o", "out", *options, "--", *command)


def test_a_command_that_asks_for_entropy_needs_a_replay_and_nothing_else(reprokit: Reprokit) -> None:
    done = reproduce(reprokit, "sh", "-c", "head -c 16 /dev/urandom > random.bin")
    out = reprokit.directory / "out"
    assert done.returncode == 0
    assert done.stdout.startswith("identical, after 2 rounds: with the recorded entropy, ")
    assert phases(out) == ["bare", "entropy"]
    assert {path.name for path in out.iterdir()} == {"journal.json", "journal.md", "recipe.toml", "runs"}
    assert sorted(f"runs/{path.name}" for path in (out / "runs").iterdir()) == sorted(journal(out)["pair"])
    verified = reprokit.run("verify", *journal(out)["pair"], directory=out)
    assert verified.returncode == 0
    assert out.stat().st_mode & 0o077 == 0


def test_a_command_that_repeats_by_itself_is_said_to(reprokit: Reprokit) -> None:
    done = reproduce(reprokit, "sh", "-c", "echo same > out.txt", options=("--keep-runs", "--pairs", "3"))
    assert done.returncode == 0
    assert "the training repeats by itself" in done.stdout
    assert len(list((reprokit.directory / "out" / "runs").iterdir())) == 5


def test_the_clock_is_recorded_once_entropy_was_not_all_and_the_recipe_goes_straight_there(reprokit: Reprokit) -> None:
    command = ("sh", "-c", "date +%s%N > now.txt")
    done = reproduce(reprokit, *command, options=("--pairs", "1", "--no-calendar"))
    out = reprokit.directory / "out"
    assert done.returncode == 0
    assert phases(out) == ["bare", "cure"]
    assert "needed: --clock" in done.stdout
    recorded = reprokit.run("record", "--recipe", "out/recipe.toml", "-o", "run", "--", *command)
    assert recorded.returncode == 0
    assert reprokit.facts("run")["clock"]
    assert reprokit.run("replay", "run", "-o", "again").returncode == 0
    assert reprokit.run("verify", "run", "again").returncode == 0


def test_the_time_of_day_needs_no_option(reprokit: Reprokit) -> None:
    done = reproduce(reprokit, "sh", "-c", "date +%s%N > now.txt", options=("--pairs", "1"))
    assert (done.returncode, phases(reprokit.directory / "out")) == (0, ["bare", "entropy"])


def test_what_nothing_cures_ends_with_1_and_says_what_was_tried(reprokit: Reprokit) -> None:
    written = "echo braking $(cut -d' ' -f1 /proc/uptime) s > now.txt"
    done = reproduce(reprokit, "sh", "-c", written, options=("--pairs", "1"))
    out = reprokit.directory / "out"
    assert done.returncode == 1
    assert "not reproduced" in done.stdout
    assert "remains: different: now.txt" in done.stdout
    assert "applied, and not enough: --patch threads=1" in done.stdout
    assert "alternative: only files differ" in done.stdout
    assert not (out / "recipe.toml").exists()
    assert len(list((out / "runs").iterdir())) == 2
    assert reprokit.run("verify", *journal(out)["pair"], directory=out).returncode == 1


def test_a_result_beside_a_date_is_not_taken_for_a_time(reprokit: Reprokit) -> None:
    written = "echo 2026-01-01 loss $(cat /proc/uptime) > log.txt"
    done = reproduce(reprokit, "sh", "-c", written, options=("--pairs", "1", "--max-rounds", "2"))
    assert done.returncode == 1
    assert "only files differ" not in done.stdout


def test_state_that_a_run_leaves_behind_is_named(reprokit: Reprokit) -> None:
    state = f"{reprokit.directory}-state"  # a temporary file, which no replay sets aside
    text = f"p = pathlib.Path({state!r}); p.write_bytes(p.read_bytes() + b'x' if p.exists() else b'')"
    command = python(f"import pathlib; {text}; pathlib.Path('copy').write_bytes(p.read_bytes())")
    done = reproduce(reprokit, *command, options=("--max-rounds", "2", "--pairs", "1"))
    assert done.returncode == 1
    assert f"alternative: a run read files that the other writes, before it wrote them itself ({state})" in done.stdout


def test_a_training_that_goes_on_from_its_own_files_repeats(reprokit: Reprokit) -> None:
    text = "p = pathlib.Path('state'); p.write_bytes(p.read_bytes() + b'x' if p.exists() else b'')"
    done = reproduce(reprokit, *python(f"import pathlib; {text}"), options=("--max-rounds", "2", "--pairs", "1"))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        (("sh", "-c", "exit 3"), 125, "training-failed: the training ended with exit status 3"),
        (("sh", "-c", "kill -9 $$"), 125, "training-failed: the training ended by SIGKILL"),
        (("true",), 125, "nothing-comparable: "),
        (("no-such-program",), 127, "command-not-found: "),
        ((), 125, "no-command: "),
    ],
)
def test_what_cannot_be_reproduced_is_said_in_one_line(
    reprokit: Reprokit, command: tuple[str, ...], status: int, words: str
) -> None:
    done = reproduce(reprokit, *command)
    assert done.returncode == status
    assert done.stderr.splitlines()[-1].startswith(f"reprokit: {words}")
    out = reprokit.directory / "out"
    assert not out.exists() or journal(out)["verdict"] == "failed"


def test_a_directory_that_exists_is_left_alone(reprokit: Reprokit) -> None:
    (reprokit.directory / "out").mkdir()
    done = reproduce(reprokit, "true")
    assert (done.returncode, done.stderr.splitlines()[0][:21]) == (125, "reprokit: run-exists:")
    assert list((reprokit.directory / "out").iterdir()) == []


def test_json_is_all_that_comes_on_stdout(reprokit: Reprokit) -> None:
    done = reproduce(reprokit, "sh", "-c", "echo heard; echo same > out.txt", options=("--json",))
    assert json.loads(done.stdout) == journal(reprokit.directory / "out")
    assert done.stderr.count("heard\n") == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("to_group", rest_slow([True, False]))
def test_an_interruption_ends_the_run_and_leaves_a_journal(
    reprokit: Reprokit, number: signal.Signals, to_group: bool
) -> None:
    code = "import pathlib, time; pathlib.Path('started').write_text('x'); time.sleep(60)"
    running = subprocess.Popen(
        [COMMAND, "reproduce", "-o", "out", "--", sys.executable, "-c", code],
        cwd=reprokit.directory,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until((reprokit.directory / "started").exists, "the training to start")
    (os.killpg if to_group else os.kill)(running.pid, number)
    _, told = running.communicate(timeout=LIMIT)
    assert running.returncode == 128 + number
    assert told.splitlines()[-1].startswith("reprokit: interrupted; ")
    out = reprokit.directory / "out"
    found = journal(out)
    assert (found["verdict"], found["why"]) == ("interrupted", f"by {number.name}")
    assert "interrupted" in (out / "journal.md").read_text()
    assert not list(out.glob("recipe*"))
    run = json.loads((out / "runs" / "01-first" / "run.json").read_text())
    assert (run["status"], run["signal"]) == ("finished", number.name)


def test_the_training_that_catches_ctrl_c_and_ends_well_still_ends_the_loop(reprokit: Reprokit) -> None:
    code = (
        "import pathlib, time\n"
        "try:\n    pathlib.Path('started').write_text('x')\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('saved')"
    )
    running = reprokit.start("reproduce", "-o", "out", "--", *python(code), start_new_session=True)
    wait_until((reprokit.directory / "started").exists, "the training to start")
    os.killpg(running.pid, signal.SIGINT)
    out, _ = running.communicate(timeout=LIMIT)
    assert (running.returncode, out) == (130, "saved\n")
    assert journal(reprokit.directory / "out")["verdict"] == "interrupted"
