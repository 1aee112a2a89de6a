"""``reprokit check`` names what is wrong in a run directory, and verify refuses what was altered."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy
import pytest

from reprokit.agent.capture.store import Part, Store
from reprokit.agent.capture.store import SnapshotContents as Captured
from reprokit.capture import files
from reprokit.core import bounds
from reprokit.core.errors import RunDamaged
from reprokit.model.run import CaptureAsked
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.read.run_check import check
from reprokit.verify.runs import compare, require_whole
from reprokit.verify.show.summary import summarize, warnings
from tests.support import Reprokit, python

from .runs import training

SCRIPT = """
import os, reprokit
open("weights.bin", "wb").write(b"w" * 1000)
reprokit.log(loss=os.urandom(1)[0])
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording as the command line makes it."""
    directory = tmp_path_factory.mktemp("recorded")
    done = Reprokit(directory).run("record", "-o", "run", "--keep-outputs", "1M", "--", *python(SCRIPT))
    assert done.returncode == 0, done.stderr
    return directory / "run"


@pytest.fixture
def whole(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "run"))


def alter(path: Path) -> None:
    """Change one byte in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def entropy_file(run: Path) -> Path:
    return next((run / rundir.ENTROPY).iterdir())


def count_another_request(run: Path) -> None:
    facts = RunDirectory(run).run
    assert facts.profile is not None
    facts.profile = msgspec.structs.replace(facts.profile, events=facts.profile.events + 1)
    rundir.write_json(run / rundir.RUN, facts)


def test_a_recording_is_whole(reprokit: Reprokit, recorded: Path) -> None:
    done = reprokit.run("check", str(recorded), "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["whole"], found["sealed"], found["damaged"]) == (0, True, True, [])
    unchecked = set(found["unchecked"])
    assert {"read.paths", "variables.key", "written.paths"} <= unchecked < {path.name for path in recorded.iterdir()}
    assert reprokit.run("check", str(recorded)).stdout.startswith(f"whole: {recorded}, {found['files']} files of ")


DAMAGES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "run.json": (lambda run: alter(run / "run.json"), "run.json", "run.json"),
    "environment": (lambda run: alter(run / "environment.json"), "environment.json", "altered"),
    "no environment": (lambda run: (run / "environment.json").unlink(), "environment.json", "is missing"),
    "outputs": (lambda run: (run / "outputs.json").unlink(), "outputs.json", "is missing"),
    "metrics": (lambda run: alter(run / "metrics.jsonl"), "metrics.jsonl", ""),
    "entropy": (lambda run: alter(entropy_file(run)), "entropy", "altered"),
    "requests": (count_another_request, "entropy", "counts other requests"),
    "more entropy": (lambda run: shutil.copy(entropy_file(run), run / "entropy" / "0-0.entropy"), "entropy", ""),
    "kept": (lambda run: alter(run / "outputs" / "0"), "outputs/0", "is not the copy of 'weights.bin' that it was"),
    "no kept": (lambda run: (run / "outputs" / "0").unlink(), "outputs/0", "is missing"),
    "shim.plan": (lambda run: alter(run / "shim.plan"), "shim.plan", "its check does not fit"),
    "plan.json": (lambda run: alter(run / "plan.json"), "plan.json", ""),
    "unknown": (lambda run: (run / "sitecustomize.py").touch(0o600), "sitecustomize.py", "is no file of a run"),
    "unknown below": (lambda run: (run / "entropy" / "a.so").touch(0o600), "entropy/a.so", "is no file of a run"),
    "directory": (lambda run: (run / "etc").mkdir(0o700), "etc", "is no directory of a run"),
    "link": (lambda run: (run / "stopped").symlink_to("/etc/passwd"), "stopped", "neither a file nor a directory"),
    "mode": (lambda run: (run / "read.paths").chmod(0o644), "read.paths", "mode 0644"),
    "mode of all": (lambda run: run.chmod(0o755), ".", "mode 0755"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_named(damage: str, whole: Path) -> None:
    do, file, what = DAMAGES[damage]
    do(whole)
    found = [(one.file, one.what) for one in check(whole).damages]
    assert file in dict(found), found
    assert what in dict(found)[file]


def test_damage_and_trouble_have_exit_codes_of_their_own(reprokit: Reprokit, whole: Path) -> None:
    alter(whole / "outputs" / "0")
    done = reprokit.run("check", str(whole))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("damaged: 1 problem: ")
    assert reprokit.run("verify", str(whole), str(whole)).returncode == 2
    assert reprokit.run("check", "nowhere").returncode == 2


def test_verify_refuses_predictions_and_snapshots_that_were_altered(tmp_path: Path) -> None:
    building = training(tmp_path / "run")
    building.predictions("validation", numpy.arange(9, dtype="int64"))
    building.run.capture = CaptureAsked()
    path = building.write()
    Store(str(path / "snapshots")).save(Captured({"step": 7}, [Part("w", "F32", (2,), 8, lambda: bytes(8))]))
    building.run.snapshots = files.collect(path)
    building.run.evaluation = rundir.seal_evaluation(path)
    rundir.write_json(path / rundir.RUN, building.run)
    assert compare(path, path).identical
    [column, *_], [snapshot] = (path / "evaluation").iterdir(), (path / "snapshots").iterdir()
    data = column.read_bytes()
    column.write_bytes(data + b"x")  # behind the rows that lines tell of
    with pytest.raises(RunDamaged, match="evaluation was altered"):
        compare(path, path)
    assert any("evaluation was altered" in warning.text for warning in warnings(summarize(path)))
    column.write_bytes(data)
    alter(snapshot / "tensors.safetensors")
    with pytest.raises(RunDamaged, match=f"{snapshot.name} was altered"):
        compare(path, path)
    shutil.rmtree(snapshot)
    assert compare(path, path).identical, "its digest is in run.json"
    assert ("snapshots/" + snapshot.name, "is missing") in [(one.file, one.what) for one in check(path).damages]


@pytest.mark.parametrize("sealed", [True, False])
def test_entropy_files_are_refused_by_size_and_number_before_they_are_read(
    sealed: bool, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(whole).run
    assert run.profile is not None
    if not sealed:
        run.profile = None
        rundir.write_json(whole / rundir.RUN, run)
    require_whole(whole)
    os.truncate(entropy_file(whole), 1 << 40)
    with pytest.raises(RunDamaged, match="sparse"):
        require_whole(whole)
    os.truncate(entropy_file(whole), 1 << 20)
    if sealed:
        with pytest.raises(RunDamaged, match="another size"):
            require_whole(whole)
    monkeypatch.setattr(bounds, "MAX_FILES", 3)
    for number in range(4):
        shutil.copy(entropy_file(whole), whole / "entropy" / f"{number:016x}-0.entropy")
    with pytest.raises(RunDamaged, match="more than"):
        require_whole(whole)
