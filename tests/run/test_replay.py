"""Replay: what it takes from the recording, what it says is different now, what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from reprokit.core.difference import Difference, Verdict, group
from reprokit.run_files import rundir
from reprokit.verify.verdict import still_that_training
from tests.support import COMMAND, Reprokit, python, rest_slow, rewrite_environment, training_text, wait_until


def edit(reprokit: Reprokit, run: str, **values: Any) -> None:
    """Change fields of run.json with a valid check, as a run directory from elsewhere may have them."""
    path = reprokit.directory / run / "run.json"
    content = json.loads(path.read_text())
    rundir.write_json(path, {**content, **values})


@pytest.fixture
def recorded(reprokit: Reprokit) -> Reprokit:
    assert reprokit.run("record", "-o", "run", "--", "sh", "-c", "pwd; exit 3").returncode == 0 + 3
    return reprokit


def test_the_recorded_command_runs_in_its_directory(recorded: Reprokit, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = recorded.run("replay", str(recorded.directory / "run"), directory=elsewhere)
    assert (done.returncode, done.stdout) == (3, f"{recorded.directory}\n")
    run = (elsewhere / ".reprokit" / "last").resolve()
    facts = json.loads((run / "run.json").read_text())
    assert facts["kind"] == "replay"
    assert facts["replay_of"]["path"] == str(recorded.directory / "run")
    assert facts["replay_of"]["run_id"] == recorded.facts("run")["run_id"]
    assert facts["key"] == recorded.facts("run")["key"]
    assert facts["environment_size"] == recorded.facts("run")["environment_size"]
    assert facts["fidelity"] is not None


def test_variables_are_as_in_the_recording(reprokit: Reprokit) -> None:
    show = 'echo "${OMP_NUM_THREADS-unset} ${MKL_NUM_THREADS-unset} ${OTHER-unset}"'
    reprokit.run("record", "-o", "run", "--", "sh", "-c", show, environment={"OMP_NUM_THREADS": "3", "OTHER": "a"})
    done = reprokit.run("replay", "run", environment={"MKL_NUM_THREADS": "2", "OTHER": "b"})
    assert done.stdout == "3 unset b\n"
    assert "changed: OMP_NUM_THREADS: not set in the shell, '3' as recorded is used" in done.stderr
    assert "changed: MKL_NUM_THREADS: '2' in the shell, not set as recorded is used" in done.stderr
    changed = reprokit.facts()["changed"]
    assert any(line.startswith("OMP_NUM_THREADS") for line in changed)


def test_a_recording_cannot_smuggle_in_other_variables(recorded: Reprokit) -> None:
    edit(
        recorded,
        "run",
        variables={"LD_AUDIT": "/evil.so", "PATH": "/evil", "OMP_A=B": "", "OMP_B": "\0", "OMP_NUM_THREADS": "1"},
    )
    done = recorded.run("replay", "run", "--", "sh", "-c", 'echo "${LD_AUDIT-none} $PATH $OMP_NUM_THREADS"')
    assert done.stdout.startswith("none ")
    assert "/evil" not in done.stdout
    assert done.stdout.endswith(" 1\n")


def test_an_environment_that_no_longer_fits_is_said(reprokit: Reprokit) -> None:
    reprokit.run("record", "-o", "run", "--", "true")
    done = reprokit.run("replay", "run", environment={"FILLER": "x" * 20_000})
    assert done.returncode == 0
    assert "addresses may differ" in done.stderr


def test_another_command_is_allowed_and_said(recorded: Reprokit) -> None:
    done = recorded.run("replay", "run", "--", "sh", "-c", "exit 8")
    assert done.returncode == 8
    assert "changed: the command: another one was given than was recorded" in done.stderr
    assert recorded.run("replay", "run", "--", "sh", "-c", "pwd; exit 3").returncode == 3
    assert not recorded.facts()["changed"]


def test_a_script_that_was_edited_is_said(reprokit: Reprokit) -> None:
    reprokit.script("train.sh", "exit 0")
    reprokit.run("record", "-o", "run", "--", "sh", "train.sh")
    reprokit.script("train.sh", "exit 1")
    done = reprokit.run("replay", "run")
    assert done.returncode == 1
    assert "changed: train.sh: its contents differ" in done.stderr
    (reprokit.directory / "train.sh").unlink()
    assert "changed: train.sh: it is not there any more" in reprokit.run("replay", "run").stderr


def test_another_machine_is_said(recorded: Reprokit) -> None:
    path = recorded.directory / "run" / "environment.json"
    facts = json.loads(path.read_text())
    facts["cpu"]["model"], facts["system"]["kernel"] = "Zilog Z80", "2.4.0"
    rewrite_environment(path.parent, facts)
    done = recorded.run("replay", "run")
    assert done.returncode == 3
    assert "changed: processor: Zilog Z80 recorded, " in done.stderr
    assert "changed: kernel: 2.4.0 recorded, " in done.stderr


@pytest.mark.parametrize(
    "facts", [{}, {"cpu": 3, "system": [], "files": "x", "program": []}, {"files": {"a\0b": "x", "c": {}}}]
)
def test_host_facts_of_any_shape_do_no_harm(recorded: Reprokit, facts: dict[str, Any]) -> None:
    rewrite_environment(recorded.directory / "run", facts)
    done = recorded.run("replay", "run")
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


def test_text_of_the_recording_cannot_steer_the_terminal(recorded: Reprokit) -> None:
    edit(recorded, "run", command=["sh", "-c", "exit 3", "\x1b]0;owned\x07"])
    done = recorded.run("replay", "run")
    assert done.returncode == 3
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("draw", ["mkdtemp(dir='.')", "mkstemp(dir='.')[1]"])
def test_a_temporary_name_that_the_recording_still_has_is_said(reprokit: Reprokit, draw: str) -> None:
    code = f"import os, tempfile; print(os.path.basename(tempfile.{draw}))"
    name = reprokit.run("record", "-o", "run", "--", *python(code)).stdout.strip()
    taken = reprokit.run("replay", "--here", "run")
    assert name != taken.stdout.strip()
    assert taken.stderr.count("was there already") == 1
    assert f"{name} was there already" in taken.stderr
    free = reprokit.run("replay", "run")  # what the recording left is set aside
    assert name == free.stdout.strip()
    assert "was there already" not in free.stderr


def test_a_taken_temporary_name_that_the_script_never_sees_is_no_warning(reprokit: Reprokit) -> None:
    code = "import os, tempfile; from multiprocessing import util; tempfile.tempdir = '.'; "
    code += "print(os.path.basename(util.get_temp_dir()), flush=True); os._exit(0)"
    left_behind = reprokit.run("record", "-o", "run", "--", *python(code)).stdout.strip()
    replay = reprokit.run("replay", "--here", "run")
    assert left_behind != replay.stdout.strip(), "its name was taken"
    assert "was there already" not in replay.stderr


def test_a_missing_working_directory_is_said(reprokit: Reprokit) -> None:
    place = reprokit.directory / "place"
    place.mkdir()
    reprokit.run("record", "-o", str(reprokit.directory / "run"), "--", "true", directory=place)
    place.rmdir()
    done = reprokit.run("replay", "run")
    assert done.returncode == 125
    assert done.stderr.startswith("reprokit: working-directory: ")


def test_a_replay_is_not_replayed(recorded: Reprokit) -> None:
    recorded.run("replay", "run", "-o", "again")
    done = recorded.run("replay", "again")
    assert done.returncode == 125
    expected = f"again is itself a replay; replay what it replayed: {recorded.directory / 'run'}"
    assert done.stderr == f"reprokit: not-replayable: {expected} (reprokit help not-replayable)\n"


def test_the_recording_is_never_overwritten_by_its_replay(recorded: Reprokit) -> None:
    done = recorded.run("replay", "run", "-o", "run", "--overwrite")
    assert done.returncode == 125
    assert recorded.facts("run")["kind"] == "record"


def test_a_command_that_never_started_is_not_replayed(reprokit: Reprokit) -> None:
    reprokit.script("loop", f"#!{reprokit.directory / 'loop'}\n")
    reprokit.run("record", "-o", "run", "--", "./loop")
    done = reprokit.run("replay", "run")
    assert done.returncode == 125
    assert done.stderr.startswith("reprokit: not-replayable: ")


@pytest.mark.parametrize(
    ("values", "slug"),
    [
        ({"key": "no hex"}, "run-damaged"),
        ({"key": "00"}, "run-damaged"),
        ({"format": 999}, "run-too-new"),
        ({"command": []}, "run-damaged"),
        ({"command": 7}, "run-damaged"),
        ({"command": ["a\0b"]}, "run-damaged"),
        ({"working_directory": "."}, "run-damaged"),
        ({"working_directory": "/a\0b"}, "working-directory"),
        ({"kind": "other"}, "run-damaged"),
    ],
)
def test_a_bad_run_is_one_clear_line(recorded: Reprokit, values: dict[str, Any], slug: str) -> None:
    edit(recorded, "run", **values)
    done = recorded.run("replay", "run")
    assert done.returncode == 125
    assert done.stderr.startswith(f"reprokit: {slug}: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("target", ["nowhere", "empty", "file"])
def test_what_is_no_run_is_one_clear_line(reprokit: Reprokit, target: str) -> None:
    (reprokit.directory / "empty").mkdir()
    (reprokit.directory / "file").write_text("")
    done = reprokit.run("replay", target)
    assert done.returncode == 125
    assert done.stderr.startswith("reprokit: run-not-found: ")


def test_forgotten_dashes_are_pointed_out(recorded: Reprokit) -> None:
    done = recorded.run("replay", "run", "python", "train.py")
    assert done.returncode == 125
    assert done.stderr.startswith("reprokit: dashes-missing: ")


def test_an_unknown_policy_is_refused(recorded: Reprokit) -> None:
    done = recorded.run("replay", "run", "--policy", "guess")
    assert done.returncode == 125
    assert done.stderr.startswith("reprokit: usage: ")


def test_a_crashed_recording_is_replayed(reprokit: Reprokit) -> None:
    code = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)"
    reprokit.run("record", "-o", "run", "--", *python(code))
    assert reprokit.facts("run")["status"] == "running"
    assert reprokit.run("replay", "run", "--", "sh", "-c", "exit 3").returncode == 3


def test_a_strict_replay_that_was_stopped_ends_its_command(recorded: Reprokit) -> None:
    # What the shim does when a request is not in the recording, in any process of the run.
    stop = 'cd "$REPROKIT_RUN"; echo "getrandom(16) by 0/m was not recorded" > new; mv new stopped; exec sleep 100'
    done = recorded.run("replay", "run", "--policy", "strict", "-o", "strict", "--", "sh", "-c", stop)
    assert done.returncode == 125
    page = "reprokit help replay-stopped"
    assert done.stderr.splitlines()[-1] == f"reprokit: replay-stopped: getrandom(16) by 0/m was not recorded ({page})"
    assert recorded.facts("strict")["signal"] == "SIGTERM"
    assert any("the strict replay was stopped: " in each["text"] for each in recorded.facts("strict")["warnings"])


def test_a_checkout_below_a_path_with_spaces_works(reprokit: Reprokit) -> None:
    """LD_PRELOAD cannot hold such a path, so the shim is linked from elsewhere."""
    import reprokit as package

    place = reprokit.directory / "a place: with spaces"
    shutil.copytree(Path(package.__path__[0]), place / "reprokit", ignore=shutil.ignore_patterns("__pycache__"))
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from reprokit.cli.main import main; main()"
    command = [
        *python(code),
        str(place),
        "record",
        "-o",
        "run",
        "--",
        "sh",
        "-c",
        'echo "$LD_PRELOAD"; cat /proc/$$/maps; "$0" -c pass',
        sys.executable,
    ]
    done = subprocess.run(command, cwd=reprokit.directory, capture_output=True, text=True)
    assert done.returncode == 0
    assert "cannot be preloaded" not in done.stderr
    assert f"{place}/reprokit/_shim/liburandom_hook.so" in done.stdout
    assert not Path(done.stdout.splitlines()[0]).exists(), "the link is gone with the run"
    assert reprokit.facts("run")["shim"]["state"] == reprokit.facts("run")["agent"]["state"] == "loaded"


def test_reprokit_is_found_as_a_module_too(reprokit: Reprokit) -> None:
    done = subprocess.run([Path(COMMAND).with_name("python"), "-m", "reprokit", "--version"], capture_output=True)
    assert done.returncode == 0
    assert done.stdout.startswith(b"reprokit ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_the_run_of_another_user_is_not_executed(recorded: Reprokit) -> None:
    os.chown(recorded.directory / "run", 65534, 65534)
    done = recorded.run("replay", "run")
    assert (done.returncode, done.stdout) == (125, "")
    assert "belongs to user 65534" in done.stderr
    shutil.copytree(recorded.directory / "run", recorded.directory / "copy")
    assert recorded.run("replay", "copy").returncode == 3


def test_a_training_that_outlives_its_launcher_is_being_written(reprokit: Reprokit) -> None:
    code = "import sys; open('began', 'w').write('yes'); sys.stdin.read()"
    launcher = reprokit.start("record", "-o", "run", "--", *python(code), stdin=subprocess.PIPE)
    began = reprokit.directory / "began"
    wait_until(began.exists, "the training's start")
    launcher.kill()
    launcher.wait()
    for done, code_expected in (
        (reprokit.run("verify", "run", "run"), 2),
        (reprokit.run("replay", "run"), 125),
    ):
        assert done.returncode == code_expected
        assert done.stderr.startswith("reprokit: run-in-progress: ")
    assert "in progress, though its launcher is gone" in reprokit.run("show", "run").stdout
    assert launcher.stdin is not None
    launcher.stdin.close()
    wait_until(lambda: "did not come to its end" in reprokit.run("show", "run").stdout, "the training's end")


@pytest.mark.parametrize("training", rest_slow(["ordered_by_address.py"], extended=["pytorch_by_address.py"]))
def test_addresses_do_not_depend_on_what_the_recording_left_beside_the_script(
    reprokit: Reprokit, training: str
) -> None:
    """Imports and importlib.metadata would list the script's directory, which has more files then.

    PyTorch's training may have other addresses in its recording (docs/limitations.md): it is replayed once without
    these files.
    """
    command = [sys.executable, str(reprokit.script("train.py", training_text(training)))]
    recorded = reprokit.run("record", "-o", "recorded", "--", *command)
    assert list(reprokit.directory.glob("checkpoint-1*"))
    if "pytorch" in training:
        for path in (*reprokit.directory.glob("checkpoint-*"), *reprokit.directory.glob("epoch-*")):
            path.unlink()
        recorded = reprokit.run("replay", "recorded", "-o", "first")
    for number in range(3):
        replayed = reprokit.run("replay", "recorded", "-o", f"replayed{number}")
        assert replayed.stdout == recorded.stdout != ""


SAME = "the same training: 5 of 5 steps of the trail"


def said_of(reprokit: Reprokit, *edits: tuple[str, str]) -> list[str]:
    """What the replay of each edit of the recorded loop says of its training."""
    script, text = reprokit.directory / "train.py", training_text("pytorch_short_loop.py")
    script.write_text(text)
    assert reprokit.run("record", "-o", "run", "--", sys.executable, "train.py").returncode == 0
    found = []
    for replaced, by in edits:
        script.write_text(text.replace(replaced, by))
        lines = reprokit.run("replay", "run").stderr.splitlines()
        found.append(next((line.removeprefix("reprokit: ") for line in lines if " training: " in line), ""))
    return found


@pytest.mark.slow
@pytest.mark.torch
def test_the_replay_of_an_edited_script_says_that_it_is_still_that_training(reprokit: Reprokit) -> None:
    more, unchanged = said_of(reprokit, ("print(", 'print("weight", weight.tolist())\nprint('), ("", ""))
    assert more == f"{SAME}; the script printed 1 line more"
    assert unchanged == ""


@pytest.mark.parametrize(
    ("every", "known", "words"),
    [
        (1, ["gradients", "parameters"], "the same training: 100 of 100 steps of the trail"),
        (16, ["parameters"], "the same training in the steps that its trail has, one in 16 of 100"),
        (1, ["loss"], "the same training: 100 of 100 steps of the trail, which lacks parameters"),
    ],
)
def test_no_more_is_said_of_a_changed_replay_than_its_trail_has(every: int, known: list[str], words: str) -> None:
    leaf = Difference("trail", Verdict.IDENTICAL, figures={"steps": [100, 100], "known": known, "every": every})
    assert still_that_training(group("trail", (leaf,)), group("console", ())) == words


@pytest.mark.slow
@pytest.mark.torch
def test_the_replay_of_an_edited_script_says_what_it_is_not(reprokit: Reprokit) -> None:
    otherwise, fewer, other = said_of(reprokit, ('"loss"', '"a loss"'), ("range(5)", "range(4)"), ("0.1)", "0.2)"))
    assert otherwise.startswith(f"{SAME}; it printed otherwise: stdout: line 1 is 'loss ")
    no_longer = "no longer the recorded training"
    assert fewer.startswith(f"{no_longer}: steps of optimizer#0 of process 0: identical for 4 steps, then the right ")
    assert other.startswith(f"{no_longer}: parameters of optimizer#0 of process 0: at step 0")


def environment_with(packages: Path | None, place: Path, version: str = numpy.__version__) -> dict[str, str]:
    """Make a virtual environment, which may have NumPy, of this version by its metadata; return its PATH."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    if packages is not None:
        (site,) = place.glob("lib/python3*/site-packages")
        for path in packages.glob("numpy*"):
            (site / path.name.replace(f"-{numpy.__version__}.", f"-{version}.")).symlink_to(path)
    return {"PATH": f"{place / 'bin'}:{os.environ['PATH']}"}


def test_another_virtual_environment_is_said_before_the_start(reprokit: Reprokit) -> None:
    directory, packages = reprokit.directory, Path(numpy.__file__).parents[1]
    reprokit.script("train.py", "import numpy\nprint(numpy.random.default_rng().random())\n")
    own = environment_with(packages, directory / "own")
    reprokit.run("record", "-o", "run", "--", "python", "train.py", environment=own)

    lines = reprokit.run("replay", "run", environment=environment_with(None, directory / "empty")).stderr.splitlines()
    start = lines.index("Traceback (most recent call last):")
    paths = [str(directory / name / "bin" / "python") for name in ("own", "empty")]
    assert any(f"Python's path: {paths[0]} recorded, {paths[1]} now" in line for line in lines[:start])
    missing = f"packages recorded: numpy {numpy.__version__} (missing now); install these, or replay with the recorded"
    assert any(missing in line for line in lines[:start])
    assert len(reprokit.facts()["changed"]) == len(set(reprokit.facts()["changed"]))

    older = reprokit.run("replay", "run", environment=environment_with(packages, directory / "older", "1.0"))
    assert (older.returncode, f"numpy {numpy.__version__} (1.0 now)" in older.stderr) == (0, True)
    same = reprokit.run("replay", "run", environment=environment_with(packages, directory / "same"))
    assert (same.returncode, "packages recorded" in same.stderr) == (0, False)


def test_packages_that_python_finds_by_links_are_not_missing(reprokit: Reprokit) -> None:
    packages = Path(numpy.__file__).parents[1]
    reprokit.script("train.py", "import numpy\n")
    own = environment_with(None, reprokit.directory / "own")
    (site,) = reprokit.directory.glob("own/lib/python3*/site-packages")
    (site / "more.pth").write_text(f"# where NumPy is\nimport sys\n\n{packages}\n")
    reprokit.run("record", "-o", "run", "--", "python", "train.py", environment=own)
    assert reprokit.run("replay", "run", environment=own).stderr.count("changed") == 0


def test_a_replay_that_fails_says_what_python_a_shell_found(reprokit: Reprokit) -> None:
    directory, packages = reprokit.directory, Path(numpy.__file__).parents[1]
    own, empty = environment_with(packages, directory / "own"), environment_with(None, directory / "empty")
    reprokit.run("record", "-o", "run", "--", "sh", "-c", "python -c 'import numpy'", environment=own)
    done = reprokit.run("replay", "run", environment=empty)
    assert done.returncode == 1
    assert f"changed: Python's path: {directory / 'own'}/bin/python recorded, {directory / 'empty'}/bin" in done.stderr
