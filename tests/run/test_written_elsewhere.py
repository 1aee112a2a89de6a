"""What is written later, or where no output is looked for, is counted and said: no verdict passes over it."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from reprokit.core.difference import Verdict
from reprokit.evidence.attest.statement import statement
from reprokit.evidence.report.gather import gather
from reprokit.model.outputs import OutputsFile
from reprokit.run import stragglers
from reprokit.run.output_places import PlaceNames
from reprokit.run_files import names
from reprokit.verify.runs import compare
from reprokit.verify.verdict import verdict_line
from tests.support import Reprokit, python, rest_slow

# A saver that the training does not wait for, as asynchronous checkpoints have.
SAVES_LATER = """
import subprocess, sys
open("ok.bin", "w").write("1")
code = "import time; time.sleep(60); open('model.bin', 'w').write(str(time.time_ns()))"
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
for _ in range(2):
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **quiet)
"""


def listed(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "outputs.json").read_text())
    return content


@pytest.mark.parametrize("options", [(), ("--no-supervisor",)])
def test_processes_that_outlive_the_command_are_said_everywhere(reprokit: Reprokit, options: tuple[str, ...]) -> None:
    runs = [reprokit.directory / name for name in ("a", "b")]
    try:
        done = reprokit.run("record", *options, "-o", "a", "--", *python(SAVES_LATER))
        assert "2 processes (python" in done.stderr
        assert reprokit.run("replay", *options, "a", "-o", "b").returncode == 0
    finally:
        for run in runs:
            stragglers.end(run)
    assert reprokit.facts("a")["outliving"][0]["processes"] == 2
    comparison = compare(*runs)
    assert comparison.verdict is Verdict.IDENTICAL
    assert "; processes outlived the command, and what they wrote later is not compared" in verdict_line(comparison)
    assert sum("outlived the command" in note for note in comparison.notes) == 2
    facts = gather(runs)
    assert sum("was closed too early: 2 processes" in text for text in facts.attention) == 2
    content = statement(facts, "test-result")["predicate"]
    assert content["result"] == "WARNED"  # not PASSED
    assert "2 processes (python" in reprokit.run("show", "a").stdout


def test_a_process_that_hides_its_variables_is_counted(reprokit: Reprokit) -> None:
    """A supervisor sees it, though nothing in its environment says that it is of the run."""
    code = "import os\npid = os.fork()\nif not pid:\n    os.setsid(); os.closerange(0, 3)\n"
    code += "    os.execve('/bin/sleep', ['sleep', '1000'], {})\nprint(pid)\nopen('out', 'w').write('1')"
    done = reprokit.run("record", "-o", "a", "--", *python(code))
    os.kill(int(done.stdout), signal.SIGKILL)
    if reprokit.facts("a")["supervisor"]["state"] != "on":
        pytest.skip("there is no supervisor here")
    assert "1 process" in done.stderr
    assert "outlived the command" in done.stderr


WRITES_ELSEWHERE = """
import os, shutil, time
shutil.rmtree(".cache", ignore_errors=True)
open("ok.bin", "w").write("1")
for name in (".cache/model/w.bin", ".keras/w.bin", ".git/w.bin", "env/w.bin", "__pycache__/w.bin",
             "__pycache__/m.cpython-311.pyc", ".cache/matplotlib/fonts.json", ".git/index", "packed.tmp/w.bin"):
    os.makedirs(os.path.dirname(name), exist_ok=True)
    open(name, "w").write(str(time.monotonic_ns()))
os.rename("packed.tmp", ".cache/packed")
"""


def test_files_in_caches_environments_and_hidden_places_are_counted(reprokit: Reprokit) -> None:
    (reprokit.directory / "env").mkdir()
    (reprokit.directory / "env" / names.ENVIRONMENT).touch()
    done = reprokit.run("record", "-o", "a", "--", *python(WRITES_ELSEWHERE))
    words = "6 files were written to a cache or a hidden place"
    assert words in done.stderr
    expected = [".cache/model/w.bin", ".cache/packed", ".git/w.bin", ".keras/w.bin", "__pycache__/w.bin", "env/w.bin"]
    assert listed(reprokit.directory / "a")["hidden"] == expected
    assert reprokit.run("replay", "a", "-o", "b").returncode == 0
    done = reprokit.run("verify", "a", "b")
    assert done.returncode == 0
    assert f"note: not compared: in both runs {words}" in done.stdout.replace("\n      ", " ")
    paths = [reprokit.directory / "a", reprokit.directory / "b"]
    assert any(words in note for note in statement(gather(paths), "bitwise-rerun")["predicate"]["notes"])


def test_what_tools_keep_for_themselves_is_no_hidden_output(tmp_path: Path) -> None:
    places = PlaceNames((tmp_path / "run",), tmp_path, None)
    kept = (
        *("__pycache__/a.cpython-311.pyc", "__pycache__/a.f-3.py311.nbi", ".git/objects/ab/c", ".git/index.lock"),
        *(".nv/ComputeCache/1/2", ".triton/cache/x/y", ".keras/keras.json", ".pytest_cache/v/x", "run/.cache/x"),
    )
    assert not any(places.is_hidden(str(tmp_path / name)) for name in kept)
    hidden = (".triton/model.bin", ".nv/model.bin", ".cache/huggingface/x", ".keras/model.h5", ".git/model/w.npy")
    assert all(places.is_hidden(str(tmp_path / name)) for name in hidden)
    assert not places.is_hidden(str(tmp_path / "model.bin"))
    assert not places.is_hidden("/proc/self/.cache/x")


def test_attributes_and_empty_directories_are_counted(reprokit: Reprokit) -> None:
    probe = reprokit.directory / "probe"
    probe.touch()
    try:
        os.setxattr(probe, "user.probe", b"1")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    code = "import os, time\nopen('o.bin', 'w').write('1')\nos.makedirs('same', exist_ok=True)"
    code += "\nos.makedirs(f'acc_{time.monotonic_ns()}')"
    code += "\nos.setxattr('o.bin', 'user.accuracy', str(time.monotonic_ns()).encode())"
    for run in ("a", "b"):
        done = reprokit.run("record", "-o", run, "--", *python(code))
        assert "1 file was found with extended attributes, which are not looked at, first o.bin" in done.stderr
        assert ("2 empty directories were made, first acc_" in done.stderr) is (run == "a")
    comparison = compare(reprokit.directory / "a", reprokit.directory / "b")
    notes = "\n".join(comparison.notes)
    assert "in both runs 1 file was found with extended attributes" in notes
    assert "only the left run made 2 empty directories, first acc_" in notes
    assert "only the right run made an empty directory, first acc_" in notes


def test_many_of_them_are_counted_and_the_first_are_named() -> None:
    outputs = OutputsFile(hidden=[".cache/a", ".cache/b"], hidden_more=1_000, empty=["a"], empty_more=41)
    assert "1002 files were written to a cache" in outputs.not_compared[0]
    assert outputs.empty_directories == "42 empty directories were made, first a"


KEEPS_STATE = """
import os, time
os.makedirs(os.path.dirname("{0}"), exist_ok=True)
if not os.path.exists("{0}"):
    open("{0}", "w").write(str(time.monotonic_ns()))
open("w.bin", "w").write(open("{0}").read())
"""


@pytest.mark.parametrize("name", rest_slow([".cache/s.db", ".keras/state", "__pycache__/state", ".git/state"]))
def test_state_in_a_hidden_place_makes_a_gate_red(reprokit: Reprokit, name: str) -> None:
    reprokit.script("train.py", KEEPS_STATE.format(name))
    for message in (f"replay-1 read {name}, which recording-1 wrote", f"recording-1 read {name}, which an earlier"):
        done = reprokit.run("gate", "--", sys.executable, "train.py")
        assert done.returncode == 1, done.stdout
        assert message in done.stdout


def test_what_a_library_keeps_to_find_it_again_is_a_note(reprokit: Reprokit) -> None:
    name = ".cache/huggingface/x"
    reprokit.script("train.py", KEEPS_STATE.format(name))
    done = reprokit.run("gate", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stdout
    assert f"a run read 1 file from caches of libraries that the other wrote there, first {name}" in done.stdout
