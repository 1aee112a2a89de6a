"""A gate that starts from what a run has left behind proves nothing: it says so, or starts from a fresh copy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reprokit.run.checkout_copy import CheckoutCopy
from reprokit.run_files import state_files
from reprokit.run_files.rundir import RunDirectory
from tests.support import Done, Reprokit

RESUMES = """
import os, random, reprokit
start = int(open("ckpt").read()) if os.path.exists("ckpt") else 0
for step in range(start, 3):
    open("ckpt", "w").write(str(step + 1))
reprokit.log(step=3, loss=0.5)
"""
KEEPS_TO_ITSELF = """
import os, reprokit, shutil
shutil.rmtree("d", ignore_errors=True)
os.makedirs("d.tmp")
for name in ("d.tmp/model", "best"):
    open(name, "w").write("1")
os.rename("d.tmp", "d")
for name in ("best", "d/model", "mlruns/meta.yaml", ".cache/huggingface/x", "wandb/settings"):
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    if not os.path.exists(name):
        open(name, "w").write("1")
    open(name).read()
reprokit.log(step=0, loss=1.0)
"""


def gate(reprokit: Reprokit, *options: str) -> Done:
    return reprokit.run("gate", *options, "--", sys.executable, "train.py")


def state(done: Done) -> str:
    """What the case of that name says; empty where it passed."""
    return next((line.partition("state: ")[2] for line in done.stdout.splitlines() if "state: " in line), "")


def test_a_gate_of_a_finished_checkpoint_is_not_green(reprokit: Reprokit) -> None:
    reprokit.script("train.py", RESUMES)
    done = gate(reprokit)
    assert (done.returncode, state(done)) == (0, "")  # the replay starts without what its recording wrote
    done = gate(reprokit)
    assert done.returncode == 1, done.stdout
    assert "recording-1 read ckpt, which an earlier run left; replay-1 read ckpt, which" in state(done)
    done = gate(reprokit, "--allow-state", "--json")
    assert done.returncode == 0
    assert "recording-1 read ckpt, which an earlier run left" in json.loads(done.stdout)["trainings"][0]["notes"][-1]
    assert gate(reprokit, "--data", "ckpt").returncode == 0
    for command in (["init", "-q"], ["add", "ckpt"]):  # a source, by whomever it was made
        subprocess.run(["git", *command], cwd=reprokit.directory, check=True)
    assert gate(reprokit).returncode == 0


def test_what_a_run_goes_on_from_is_state_whoever_wrote_it(reprokit: Reprokit) -> None:
    reprokit.script("train.py", RESUMES)
    (reprokit.directory / "ckpt").write_text("1")
    done = gate(reprokit)
    assert (done.returncode, state(done).split(";")[0]) == (1, "recording-1 read ckpt before it wrote it")


def test_a_recording_that_was_made_before_is_an_earlier_run(reprokit: Reprokit) -> None:
    reprokit.script("train.py", RESUMES)
    assert reprokit.record(sys.executable, "train.py").returncode == 0
    done = reprokit.run("replay", "--here", "last")
    assert done.returncode == 0, done.stderr
    recording, replay = sorted((reprokit.directory / ".reprokit").glob("2*"), key=lambda run: run.stat().st_ctime)
    words = "a run read files that the other writes, before it wrote them itself"
    for command in (["verify"], ["report", "--format", "markdown"]):
        assert words in reprokit.run(*command, str(recording), str(replay)).stdout
    assert "recording-1 read ckpt, which an earlier run left" in state(gate(reprokit))


def test_what_a_run_writes_itself_and_caches_are_no_state(reprokit: Reprokit) -> None:
    reprokit.script("train.py", KEEPS_TO_ITSELF)
    done = gate(reprokit)
    assert "state: " not in done.stdout, done.stdout


@pytest.mark.slow
def test_a_clean_gate_starts_each_run_from_the_same_copy(reprokit: Reprokit, tmp_path: Path) -> None:
    reprokit.script("train.py", RESUMES + "assert open('real/a').read() == open('link/a').read() == 'data'\n")
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").write_text("data")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / ".gitignore").write_text("*\n")
    (tmp_path / "temporary").mkdir()
    os.environ["TMPDIR"], before = str(tmp_path / "temporary"), os.environ.get("TMPDIR")
    try:
        done = gate(reprokit, "--clean", "--pairs", "2", "--vary", "time-zone", "--max-overhead", "1000")
        assert done.returncode == 0, done.stdout + done.stderr
        assert not (tmp_path / "ckpt").exists()
        (tmp_path / "ckpt").write_text("1")
        assert gate(reprokit, "--clean").returncode == 1
        done = gate(reprokit, "--clean", "--allow-state", "-o", "kept")
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        os.environ.pop("TMPDIR")
        os.environ.update({"TMPDIR": before} if before else {})
    assert (tmp_path / "ckpt").read_text() == "1"
    assert sorted(os.listdir(tmp_path / "kept" / "train")) == ["recording-1", "replay-1"]
    done = reprokit.run("verify", "kept/train/recording-1", "kept/train/replay-1")
    assert (done.returncode, "a run read files" in done.stdout) == (0, False)
    facts = reprokit.facts("kept/train/replay-1")
    assert facts["working_directory"] == facts["fresh"] == str(tmp_path / "kept" / "train" / "checkout" / tmp_path.name)


@pytest.mark.parametrize(
    ("opens", "is_read"),
    [
        ('open("file", "r+")', True),
        ('open("file", "a+")', True),
        ('open("file", "w+")', False),
        ('open("new", "a+")', 0),
    ],
)
def test_a_file_that_is_opened_for_both_is_read(opens: str, is_read: bool, reprokit: Reprokit) -> None:
    (reprokit.directory / "file").write_text("1")
    assert reprokit.record(sys.executable, "-c", opens).returncode == 0
    found = {os.path.basename(path) for path in state_files.read_first(RunDirectory(reprokit.last))}
    assert ("file" in found, "new" in found) == (bool(is_read), False)


@pytest.mark.slow
def test_a_training_without_a_step_is_said(reprokit: Reprokit) -> None:
    script = "import torch\nmodel = torch.nn.Linear(1, 1)\nopen('model', 'w').close()\n"
    made = f"{script}torch.optim.SGD(model.parameters(), 0.1)\n"
    for text, is_said in ((script, False), (made, True)):  # without an optimizer, whatever was trained is not PyTorch's
        assert reprokit.record(sys.executable, "-c", text).returncode == 0
        verified = reprokit.run("verify", "last", "last").stdout
        assert ("neither was seen to take a step with it" in verified) is is_said


def test_links_of_a_copy_stay_within_it(tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "deeper" / "t"
    (source / "a").mkdir(parents=True)
    target.mkdir(parents=True)
    for name, text in (("in", str(source / "a")), ("a/up", "../b"), ("out", "../elsewhere"), ("far", "/nowhere")):
        (source / name).symlink_to(text)
    CheckoutCopy(source, target, linked=()).make()
    found = {name: os.readlink(target / name) for name in ("in", "a/up", "out", "far")}
    assert found == {"in": "a", "a/up": "../b", "out": str(tmp_path / "elsewhere"), "far": "/nowhere"}
