"""Seeds from the clock and from process ids, through the whole of record, replay, verify and show."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reprokit.core.errors import RunDamaged
from reprokit.run.seeds import MAX_LINE, MAX_SIZE, SeedsByProcess, hand_on
from tests.support import Reprokit, python, training_text

SCRIPT = training_text("seeded_children.py")


@pytest.mark.slow
def test_seeds_in_children_and_threads(reprokit: Reprokit) -> None:
    script = str(reprokit.script("train.py", SCRIPT))
    recorded = reprokit.run("record", "--no-calendar", "-o", "recorded", "--", sys.executable, script)
    for number in range(2):
        replayed = reprokit.run("replay", "recorded", "-o", f"replayed{number}")
        assert replayed.stdout == recorded.stdout != ""
        assert "seeds: 0 as the training asked, 28 given again as recorded" in replayed.stderr
        assert stat.S_IMODE((reprokit.directory / f"replayed{number}" / "seeds.jsonl").stat().st_mode) == 0o600
    assert not (reprokit.directory / "recorded" / "seeds.jsonl").exists()
    verified = reprokit.run("verify", "recorded", "replayed0", "--all")
    assert verified.returncode == 0, verified.stdout
    assert "seeds replaced in process 0/1" in verified.stdout
    shown = reprokit.run("show", "replayed0").stdout
    assert "process 0: 12 seeds replaced by the recorded, first train.py:13: random.seed: recorded " in shown


@pytest.mark.extended
@pytest.mark.torch
def test_a_seed_that_the_framework_hands_on(reprokit: Reprokit) -> None:
    """DistributedSampler seeds a generator in each epoch, in a file of PyTorch's."""
    script = training_text("pytorch_distributed_sampler.py")
    command = [sys.executable, str(reprokit.script("train.py", script))]
    bare = [subprocess.run(command, cwd=reprokit.directory, capture_output=True, text=True).stdout for _ in range(2)]
    recorded = reprokit.run("record", "--no-calendar", "-o", "recorded", "--", *command)
    assert len({*bare, recorded.stdout}) == 3
    for number in range(2):
        replayed = reprokit.run("replay", "recorded", "-o", f"replayed{number}")
        assert replayed.stdout == recorded.stdout != ""
        assert "seeds: 1 as the training asked, 3 given again as recorded" in replayed.stderr
    assert reprokit.run("verify", "recorded", "replayed0").returncode == 0


@pytest.mark.extended
@pytest.mark.parametrize("n_replayed", [2, 8], ids=["more", "fewer"])
def test_a_cross_validation_in_worker_processes(reprokit: Reprokit, n_replayed: int) -> None:
    """Whether the script's thread or one of joblib's clones an estimator for a worker changes from run to run."""
    script = training_text("joblib_folds.py")
    command = [sys.executable, "-W", "ignore", str(reprokit.script("train.py", script))]
    reprokit.script("ahead", str(10 - n_replayed))
    recorded = reprokit.run("record", "-o", "recorded", "--", *command)
    reprokit.script("ahead", str(n_replayed))
    for number in range(2):
        replayed = reprokit.run("replay", "recorded", "-o", f"replayed{number}")
        assert replayed.stdout == recorded.stdout != ""


@pytest.mark.slow
def test_a_pool_whose_workers_take_tasks_as_they_come(reprokit: Reprokit) -> None:
    script = """
import multiprocessing, random, time
def task(number):
    time.sleep(random.Random(number).random() / 100)
    return random.Random(number).random()
with multiprocessing.get_context("fork").Pool(3) as pool:
    print(pool.map(task, range(40), chunksize=1))
    pool.close()
    pool.join()
open("done", "w").write("done")
"""
    command = [sys.executable, str(reprokit.script("train.py", script))]
    recorded = reprokit.run("record", "-o", "recorded", "--", *command)
    replayed = reprokit.run("replay", "recorded", "-o", "replayed")
    assert replayed.stdout == recorded.stdout != ""
    assert "seeds: 80 as the training asked, 0 given again as recorded" in replayed.stderr
    seeds = [row for row in _categories(reprokit, "recorded", "replayed") if row["name"] == "seeds"]
    assert seeds[0]["verdict"] in ("identical", "information")


def _categories(reprokit: Reprokit, *runs: str) -> Any:
    return json.loads(reprokit.run("verify", *runs, "--json").stdout)["categories"]


def line(kind: str = "seed", p: str = "0", n: int = 0, **fields: Any) -> bytes:
    content = {"k": kind, "p": p, "n": n, "t": 0.0, **fields}
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def seed(value: Any, p: str = "0", n: int = 1, call: str = "random.seed", **fields: Any) -> bytes:
    return line(p=p, n=n, call=call, argument="", where="train.py:1", value=value, **fields)


def gathered(*lines: bytes) -> list[Any]:
    seeds = SeedsByProcess()
    for one in lines:
        seeds.take(one)
    return [json.loads(text) for text in seeds.lines() if text.strip()]


def test_calls_are_numbered_by_process_thread_and_place() -> None:
    assert gathered(
        seed(1), seed(2), seed(3, thread="@a"), seed(4, p="0/1"), seed(5, call="other"), seed({"bytes": "00"})
    ) == [
        ["0", "", 0, "random.seed", "train.py:1", 1],
        ["0", "", 1, "random.seed", "train.py:1", 2],
        ["0", "@a", 0, "random.seed", "train.py:1", 3],
        ["0", "", 0, "other", "train.py:1", 5],
        ["0", "", 2, "random.seed", "train.py:1", {"bytes": "00"}],
        ["0/1", "", 0, "random.seed", "train.py:1", 4],
    ]


def test_a_seed_without_a_value_counts_all_the_same() -> None:
    without = line(call="random.seed", argument="<Thing>", where="train.py:1", n=1)
    assert gathered(without, seed(7)) == [["0", "", 1, "random.seed", "train.py:1", 7]]


def test_seeds_of_two_processes_of_the_same_name_are_not_given_again() -> None:
    lines = [line("agent", n=0), seed(1), line("agent", p="0/1", n=0), seed(2, p="0/1"), line("agent", n=0), seed(3)]
    assert gathered(*lines) == [["0/1", "", 0, "random.seed", "train.py:1", 2]]


@pytest.mark.parametrize(
    "hostile",
    [
        seed(1 << 64),
        seed(0.5),
        seed([[[[[[[[[[[[[1]]]]]]]]]]]]]),
        seed("x" * MAX_LINE),
        seed([0.5]),
        b'{"k":"seed","p":"0","n":1,"call":"c","where":"w","value":' + b"[" * 100000 + b"\n",
        b'{"k":"seed","p":"0","n":1,"call":"c","where":"w","value":' + b"9" * 100000 + b"}\n",
        b'{"k":"seed","p":7,"n":1,"call":"c","where":"w","value":1}\n',
        b'{"k":"seed",\xff\n',
        b'{"k":"seed",\n',
        b"\0" * 1000,
    ],
    ids=range(11),
)
def test_hostile_lines_are_left_out(hostile: bytes) -> None:
    assert gathered(hostile, seed(1, call="good")) == [["0", "", 0, "good", "train.py:1", 1]]


def test_the_file_is_bounded() -> None:
    seeds = SeedsByProcess()
    long = "x" * (MAX_LINE - 200)
    for _ in range(2 * MAX_SIZE // MAX_LINE):
        seeds.take(seed(long))
    assert sum(map(len, seeds.lines())) <= MAX_SIZE
    assert seeds.left_out > 0


def test_a_recording_without_metrics_or_with_a_link_for_them(reprokit: Reprokit, tmp_path: Path) -> None:
    reprokit.run("record", "-o", "recorded", "--", "true")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    assert hand_on(tmp_path / "recorded", tmp_path / "one") == ""
    os.symlink("/dev/zero", tmp_path / "recorded" / "metrics.jsonl")
    with pytest.raises(RunDamaged, match="--force replays without them"):
        hand_on(tmp_path / "recorded", tmp_path / "two")
    assert "none is given again" in hand_on(tmp_path / "recorded", tmp_path / "two", force=True)
    assert (tmp_path / "two" / "seeds.jsonl").read_bytes().strip() == b""


def test_altered_seeds_stop_a_replay_unless_it_is_forced(reprokit: Reprokit) -> None:
    reprokit.run("record", "-o", "recorded", "--", *python("import random; print(random.seed(12345))"))
    lines = reprokit.directory / "recorded" / "metrics.jsonl"
    whole = lines.read_bytes()
    for data in whole.replace(b"12345", b"12344"), None:
        if data is None:
            lines.unlink()
        else:
            lines.write_bytes(data)
        stopped = reprokit.run("replay", "recorded", "-o", "stopped")
        assert (stopped.returncode, stopped.stdout) == (125, "")
        assert "reprokit: run-damaged: the recorded seeds cannot be given again" in stopped.stderr
        assert not (reprokit.directory / "stopped").exists()
    lines.write_bytes(whole.replace(b"12345", b"12344"))
    forced = reprokit.run("replay", "recorded", "-o", "forced", "--force")
    assert (forced.returncode, forced.stdout) == (0, "None\n")
    assert "none is given again" in forced.stderr
    assert (reprokit.directory / "forced" / "seeds.jsonl").read_bytes().strip() == b""


def test_half_a_line_is_damage_unless_a_run_was_cut_off_there() -> None:
    seeds = SeedsByProcess()
    seeds.take(seed(2)[:-20])
    assert seeds.damaged == 0
    seeds.take(seed(2)[:-20] + b"\n")
    assert seeds.damaged == 1


def test_a_fifo_in_the_place_of_a_file_of_the_run_is_not_waited_for(reprokit: Reprokit) -> None:
    code = """
import os, random, time
run = os.environ["REPROKIT_RUN"]
for name in ("seeds.jsonl", "metrics.jsonl", "modules.paths", "written.paths") if os.path.exists("foul") else ():
    if os.path.exists(f"{run}/{name}"):
        os.unlink(f"{run}/{name}")
    os.mkfifo(f"{run}/{name}")
random.seed(time.time())
open("out", "w").close()
print("done")
"""
    script = reprokit.script("train.py", code)
    assert reprokit.run("record", "-o", "recorded", "--", sys.executable, str(script)).returncode == 0
    (reprokit.directory / "foul").touch()
    replayed = reprokit.run("replay", "recorded", "-o", "replayed")
    assert (replayed.returncode, replayed.stdout) == (0, "done\n")
