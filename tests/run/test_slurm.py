"""Ranks that Slurm's daemons start: inside of a recording, around one, and after one. The Slurm is a real one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from reprokit import entropy
from reprokit.run_files.rundir import ENTROPY
from tests.slurm import Slurm
from tests.support import COMMAND, LIMIT, Reprokit, wait_until

TASK = """
import os, random, reprokit
rank = os.environ["SLURM_PROCID"]
for step in range(3):
    reprokit.log(step=step, loss=random.random())
with open(f"out{rank}", "w") as file:
    print(os.urandom(8).hex(), file=file)
"""
PAST = "past the supervisor"
PYTHON = sys.executable


@pytest.fixture
def project(reprokit: Reprokit, slurm: Slurm) -> Reprokit:
    reprokit.script("task.py", TASK)
    return reprokit


def processes(run: Path) -> set[str]:
    return {file.head.identity for file in entropy.processes(run / ENTROPY)}


def assert_ranks_replay(project: Reprokit, said: str) -> None:
    """What the run is called "run", its replay "again", and both were said to be."""
    home = project.directory / ".reprokit"
    for run in (home / "run", home / "again"):
        assert {name for name in processes(run) if name.startswith("rank")} == {"rank0", "rank1"}
    assert said.count(PAST) == 1, "once, and not for each task"
    assert "6 exact, 0 moved, 0 derived, 0 live, 0 unused" in said
    assert project.run("verify", "-q", "again").stdout.startswith("identical")
    assert "process rank1" in project.run("show", "run").stdout


def test_ranks_of_srun_are_named_and_replayed_as_those_of_other_launchers(project: Reprokit, slurm: Slurm) -> None:
    command = ("--", "srun", "-n2", PYTHON, "task.py")
    said = project.run("record", "--name", "run", *command, environment=slurm.environment).stderr
    said += project.run("replay", "run", "--name", "again", environment=slurm.environment).stderr
    assert_ranks_replay(project, said)


def test_ranks_inside_of_a_batch_job_are_not_taken_for_its_script(project: Reprokit, slurm: Slurm) -> None:
    """The script has SLURM_PROCID=0 too."""
    script = f"{COMMAND} record --name run -- srun -n2 {PYTHON} task.py && {COMMAND} replay run --name again"
    assert_ranks_replay(project, slurm.batch(script, project.directory))


@pytest.mark.slow
def test_ranks_of_a_job_are_compared_with_each_other(project: Reprokit, slurm: Slurm) -> None:
    training = Path(__file__).parents[1] / "trainings" / "slurm_ranks.py"
    script = f"{COMMAND} record -q -o run -- srun -n2 {PYTHON} {training}; {COMMAND} verify run"
    said = slurm.batch(script, project.directory)
    assert "equal: optimizer#0 on 2 ranks: parameters are equal after each of 5 steps" in said


@pytest.mark.slow
def test_each_rank_records_a_run_of_its_own(project: Reprokit, slurm: Slurm) -> None:
    record = (COMMAND, "record", "-q")
    done = slurm.run("srun", "-n2", *record, "--", PYTHON, "task.py", directory=project.directory)
    assert done.returncode == 0, done.stderr
    runs = sorted(
        path for path in (project.directory / ".reprokit").iterdir() if path.is_dir() and not path.is_symlink()
    )
    assert [processes(run) for run in runs] == [{"0"}, {"0"}]
    place = "exec " + " ".join(record) + f" -o RUN/hosts/rank$SLURM_PROCID -- {PYTHON} task.py"
    (project.directory / "RUN").mkdir()
    done = slurm.run("srun", "-n2", "sh", "-c", place, directory=project.directory)
    assert done.returncode == 0, done.stderr
    done = slurm.run("srun", "-n2", *record, "-o", "one", "--", PYTHON, "task.py", directory=project.directory)
    lines = [
        line for line in done.stderr.splitlines() if line.startswith("reprokit: ") and "reprokit: run: " not in line
    ]
    assert len(lines) == 1, done.stderr
    assert "one exists already" in lines[0] or "one: " in lines[0]
    assert project.run("check", "one").returncode == 0


def test_a_job_that_begins_after_the_run_is_no_part_of_it(project: Reprokit, slurm: Slurm) -> None:
    (project.directory / "later.sh").write_text(f"#!/bin/sh\n{PYTHON} task.py\ntouch done\n")
    command = ("--", "sbatch", "-n1", "--hold", "--parsable", "--output=/dev/null", "later.sh")
    done = project.run("record", "-q", "--name", "run", *command, environment=slurm.environment)
    assert done.returncode == 0
    assert "sbatch was run: a job that begins after this run is no part of it" in done.stderr
    home = project.directory / ".reprokit" / "run"
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    slurm.run("scontrol", "release", done.stdout.strip(), directory=project.directory)
    wait_until((project.directory / "done").exists, "the end of the later job")
    assert (project.directory / "out0").exists()
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
    assert project.run("check", "run").returncode == 0


REQUEUED = """#!/bin/sh
export MASTER_ADDR=127.0.0.1 MASTER_PORT={port} WORLD_SIZE=2
if [ -z "$SLURM_RESTART_COUNT" ]; then {record}; else {restart}; fi
"""


@pytest.mark.extended
@pytest.mark.torch
def test_a_requeued_job_goes_on_from_the_last_keyframe(project: Reprokit, slurm: Slurm) -> None:
    """By the lines of docs/clusters.md; a second start that records again is refused."""
    here, log = project.directory, project.directory / "log.csv"
    shutil.copy(Path(__file__).parents[1] / "trainings" / "continued_ranks.py", here / "train.py")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ranks = f"srun -n2 sh -c 'RANK=$SLURM_PROCID exec {PYTHON} train.py 9'"
    record = f"{COMMAND} record -o run.0 --keyframes 4steps -- {ranks}"
    go_on = f"{COMMAND} continue run.$((SLURM_RESTART_COUNT - 1)) -o run.$SLURM_RESTART_COUNT"
    script = REQUEUED.format(port=port, record=record, restart=f"{record}; {go_on}; {COMMAND} replay run.1 -o again")
    (here / "job.sh").write_text(script)
    (here / "hold-5").touch()
    words = ("sbatch", "--requeue", "--parsable", "-n2", "--open-mode=append", "--output=job.out", "job.sh")
    job = slurm.run(*words, directory=here).stdout.strip()
    wait_until(lambda: log.exists() and log.read_text().count("\n") >= 5, "the fifth epoch")
    assert slurm.run("scontrol", "requeue", job, directory=here).returncode == 0
    (here / "hold-5").unlink()

    def is_pending() -> bool:
        return slurm.run("squeue", "-h", "-o", "%T", directory=here).stdout.strip() == "PENDING"

    wait_until(is_pending, "the requeued job")  # which Slurm lets wait for two minutes
    slurm.run("scontrol", "update", f"jobid={job}", "StartTime=now", directory=here)
    wait_until(lambda: (here / "again" / "run.json").exists() and not is_pending(), "the second start")
    wait_until(lambda: not slurm.run("squeue", "-h", directory=here).stdout, "the job's end")
    said = (here / "job.out").read_text()
    assert "run-exists: run.0 exists already" in said
    assert "from the keyframe of step " in said
    assert project.facts("run.1")["continues"]["step"] > 0
    assert [line.split()[0] for line in log.read_text().splitlines()] == [str(epoch) for epoch in range(9)]
    done = project.run("verify", "run.1", "again", "--ignore", "log.csv")  # opened for each line
    assert done.stdout.startswith("identical: "), done.stdout
    assert "merged by their launcher" in done.stdout


@pytest.mark.parametrize("victim", ["srun", "reprokit"])
def test_what_is_killed_floods_no_terminal(project: Reprokit, slurm: Slurm, victim: str) -> None:
    project.script("task.py", TASK.replace("with open", "import time; time.sleep(30)\nwith open"))
    inner = f"srun -n2 {PYTHON} task.py & echo $! > pid; wait"
    words = [COMMAND, "record", "-q", "--name", "run", "--", "sh", "-c", inner]
    environment = {**os.environ, **slurm.environment}
    process = subprocess.Popen(words, cwd=project.directory, env=environment, stderr=subprocess.PIPE, text=True)
    home = project.directory / ".reprokit" / "run"
    wait_until(lambda: home.exists() and {"rank0", "rank1"} <= processes(home), "the start of both tasks")
    number = int((project.directory / "pid").read_text()) if victim == "srun" else process.pid
    os.kill(number, 9)
    if victim == "reprokit":
        slurm.run("scancel", "--user=root", directory=project.directory)
    _, said = process.communicate(timeout=LIMIT)
    assert len(said.splitlines()) < 10, said
    assert "Traceback" not in said
