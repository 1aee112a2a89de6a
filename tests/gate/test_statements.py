"""What gate --sign states: of runs that it executed itself, bound to what they were executed from."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reprokit.evidence.attest import keys
from tests.support import Done, Reprokit

REPEATS = """
import random, reprokit
reprokit.log(step=0, loss=random.random())
open("model.bin", "w").write(str(random.random()))
"""
VARIES = REPEATS + 'open("log.txt", "w").write(str(__import__("time").monotonic_ns()))\n'


@pytest.fixture
def project(tmp_path: Path) -> Reprokit:
    """A checkout with a commit and a file that git does not know, and keys outside of it."""
    keys.make(tmp_path / "key")
    reprokit = Reprokit(tmp_path / "project")
    reprokit.directory.mkdir()
    reprokit.script("repeats.py", REPEATS)
    for arguments in (("init",), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "first")):
        subprocess.run(["git", *arguments], cwd=reprokit.directory, check=True, capture_output=True)
    reprokit.script("varies.py", VARIES)
    return reprokit


def gate(project: Reprokit, script: str, *options: str) -> Done:
    signing = ("--sign", "../key", "--statements", "../statements")
    return project.run("gate", *signing, *options, "--", sys.executable, f"{script}.py")


def stated(project: Reprokit, name: str) -> dict[str, Any]:
    content = json.loads((project.directory.parent / "statements" / name).read_text())
    predicate: dict[str, Any] = json.loads(base64.b64decode(content["payload"]))["predicate"]
    return predicate


def test_a_gate_states_what_it_executed(project: Reprokit) -> None:
    done = gate(project, "repeats", "-o", "../runs")
    assert done.returncode == 0, done.stderr
    command = shlex.join([sys.executable, "repeats.py"])
    asked = ["--key", "../key.pub", "--executed", "--verdict", "identical", "--command", command, "--max-age", "1h"]
    verified = project.run("attest", "verify", "../statements/repeats.json", "model.bin", *asked)
    assert verified.returncode == 0, verified.stderr
    assert "Both runs were executed by the process that made this" in verified.stdout
    assert "source: changed, commit" in verified.stdout
    predicate = stated(project, "repeats.json")
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=project.directory, capture_output=True, text=True, check=True
    )
    for run, name in zip(predicate["runs"], ("recording-1", "replay-1"), strict=True):
        record = (project.directory.parent / "runs" / "repeats" / name / "run.json").read_bytes()
        assert run["record"]["sha256"] == hashlib.sha256(record).hexdigest()
        assert run["source"]["commit"] == head.stdout.strip()
        assert len(run["source"]["changes"]["sha256"]) == 64
        assert (run["host"], run["machine"] != "") == (os.uname().nodename, True)


def test_what_did_not_pass_is_never_stated_as_identical(project: Reprokit) -> None:
    assert gate(project, "varies", "--pairs", "2").returncode == 1
    assert [stated(project, name)["verdict"] for name in ("varies.json", "varies+2.json")] == ["different"] * 2
    assert gate(project, "repeats", "--golden", "../goldens").returncode == 2
    predicate = stated(project, "repeats.json")
    assert predicate["verdict"] == "failed"
    assert "there is no golden" in predicate["attention"][0]


@pytest.mark.slow
def test_what_was_ignored_is_stated_and_asks_for_consent(project: Reprokit) -> None:
    done = gate(project, "varies", "--ignore", "log.txt", "--ignore-console", "never printed")
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("gate passed: every training is bitwise identical; 1 file was ignored as declared")
    assert "--ignore-console 'never printed': 0 times" in done.stdout
    predicate = stated(project, "varies.json")
    assert (predicate["verdict"], predicate["counts"]["ignored"]) == ("identical", 1)
    assert [(rule["rule"], rule["times"]) for rule in predicate["ignored"]] == [("log.txt", 1), ("never printed", 0)]
    asked = ["attest", "verify", "../statements/varies.json", "--key", "../key.pub", "--partial"]
    refused = project.run(*asked, "--verdict", "identical")
    assert (refused.returncode, refused.stderr.count("\n")) == (4, 1)
    assert "1 differences were ignored, as its signer declared; --allow-ignored accepts that" in refused.stderr
    accepted = project.run(*asked, "--verdict", "identical", "--allow-ignored")
    assert accepted.returncode == 0
    assert "ignored: --ignore log.txt (the command line): 1 difference\n" in accepted.stdout


def test_what_signing_needs_is_asked_for_before_the_training(project: Reprokit) -> None:
    """And a statement of an earlier gate is not left where one of this gate is looked for."""
    place = project.directory.parent / "statements"
    project.script("nothing.py", "open('started', 'w').close()\n")
    for options in (
        ["--sign", "../key"],
        ["--statements", "../other"],
        ["--sign", "../no", "--statements", "../other"],
    ):
        assert project.run("gate", *options, "--", sys.executable, "nothing.py").returncode == 2
    place.write_text("a file")
    assert "cannot-write-report" in gate(project, "nothing").stderr
    assert not (project.directory / "started").exists()
    place.unlink()
    place.mkdir()
    (place / "failing.json").write_text("of an earlier gate")
    project.script("failing.py", "raise SystemExit(3)\n")
    assert gate(project, "failing").returncode == 2
    assert list(place.iterdir()) == []
