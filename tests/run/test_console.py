"""What a training prints is an outcome: kept, sealed and compared, however it is printed, and nothing else is."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from reprokit.core.errors import RunDamaged, RunTooNew
from reprokit.run_files import console
from reprokit.run_files.rundir import RunDirectory
from tests.support import COMMAND, PLAIN_IMPORTS, Reprokit, python, rest_slow, shipped_schema

SCRIPT = Path(__file__).parents[1] / "trainings" / "printed_results.py"


def pair(reprokit: Reprokit, case: str, *options: str) -> tuple[Path, Path]:
    """A recording and its replay."""
    runs = reprokit.directory / "1", reprokit.directory / "2"
    command = python(f"import runpy, sys; sys.argv[1:] = ['{case}']; runpy.run_path('{SCRIPT}', run_name='__main__')")
    reprokit.run("record", "-o", "1", *options, "--", *command)
    reprokit.run("replay", "-o", "2", "1")
    return runs


def verify(reprokit: Reprokit, *runs: Path) -> tuple[int, dict[str, Any]]:
    done = reprokit.run("verify", "--json", *map(str, runs))
    return done.returncode, json.loads(done.stdout) if done.stdout else {"notes": [done.stderr], "categories": []}


def leaves(document: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Verdict and value of what was printed, by its name."""
    found = [category for category in document["categories"] if category["name"] == "console"]
    return {leaf["name"]: (leaf["verdict"], leaf["left"]) for one in found for leaf in one["children"]}


def text(run: Path, stream: int = 0) -> dict[str, bytes]:
    directory = RunDirectory(run)
    heads = console.heads(directory)
    return {
        name: console.text([*(found := console.read(directory, head)).first, *found.last], stream)
        for name, head in heads.items()
    }


SAME = {
    "only_loss": {"stdout": "1 line"},
    "loss_and_times": {"stdout": "3 lines"},
    "bar": {"stderr": "1 line"},
    "processes": {"stdout": "1 line", "stdout of process 0/1": "1 line", "stdout of process 0/2": "1 line"},
    "threads": {"stdout": "8 lines"},
    "logged": {"stdout": "1 line", "stderr": "1 line"},
    "crash": {"stdout": "1 line"},
    "closed": {"stderr": "1 line"},
    "redirected": {"stdout": "1 line"},
}


@pytest.mark.parametrize("case", rest_slow(SAME))
def test_a_replay_prints_the_same(reprokit: Reprokit, case: str) -> None:
    runs = pair(reprokit, case)
    status, document = verify(reprokit, *runs)
    assert status == 0, document
    found = leaves(document)
    assert {verdict for verdict, _ in found.values()} <= {"identical", "bookkeeping"}
    assert {name: lines for name, (_, lines) in found.items()}.items() >= SAME[case].items()
    assert not any("unseen" in text for text in map(repr, text(runs[0]).values()))
    if case != "only_loss":
        return
    (file,) = (runs[0] / "console").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "the verdict rests on what was printed alone" in "\n".join(document["notes"])


def test_times_are_counted_and_no_difference(reprokit: Reprokit) -> None:
    runs = pair(reprokit, "loss_and_times", "--no-calendar")
    status, document = verify(reprokit, *runs)
    assert status == 0
    assert document["bookkeeping"].keys() == {"duration", "rate", "date", "process id"}
    done = reprokit.run("show", "--stdout", "1")
    assert done.stdout.startswith("loss: 0.")
    assert reprokit.run("check", "1").returncode == 0


def test_times_alone_leave_nothing_to_compare(reprokit: Reprokit) -> None:
    status, document = verify(reprokit, *pair(reprokit, "times"))
    assert status == 2
    (said,) = document["notes"]
    assert "nothing-comparable" in said
    assert "nothing but times and the like" in said


def test_another_loss_is_a_difference_with_both_lines(reprokit: Reprokit) -> None:
    for name in ("1", "2"):
        reprokit.run(
            "record",
            "-o",
            name,
            "--",
            *python("import os; print('first'); print('loss', int.from_bytes(os.urandom(4), 'big') / 2**32)"),
        )
    done = reprokit.run("verify", "1", "2")
    assert done.returncode == 1
    texts = [(reprokit.directory / name).resolve() for name in ("1", "2")]
    losses = [text(run)["0"].decode().splitlines()[1] for run in texts]
    first, *_ = done.stdout.splitlines()
    assert first == f"different: stdout: line 2 is '{losses[0]}' in the left run and '{losses[1]}' in the right one"
    assert reprokit.run("gate", "--", *python("print('same')")).returncode == 0
    assert reprokit.run("gate", "--", *python("import time; print(time.monotonic_ns())")).returncode == 1
    assert reprokit.run("gate", "--no-console", "--", *python("print('same')")).returncode == 2


def test_reproduce_works_for_a_script_that_only_prints(reprokit: Reprokit) -> None:
    done = reprokit.run("reproduce", "-o", "out", "--", *python("import random; print(random.random())"))
    assert done.returncode == 0, done.stderr


def test_what_stdio_of_c_prints_is_said_to_be_missing(reprokit: Reprokit) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash, which prints by stdio, is not installed")
    for name in ("1", "2"):
        assert reprokit.run("record", "-o", name, "--", "bash", "-c", "echo loss 0.5").stdout == "loss 0.5\n"
    status, document = verify(reprokit, reprokit.directory / "1", reprokit.directory / "2")
    assert status == 2
    assert "what C's stdio printed is not kept: stdout" in document["notes"][0]
    assert "what C's stdio printed is not kept: stdout" in reprokit.run("show", "1").stdout


def test_a_terminal_stays_one(reprokit: Reprokit) -> None:
    code = "import sys; print('terminal', sys.stdout.isatty(), sys.stdout.line_buffering)"
    leader, follower = pty.openpty()
    command = ["env", "-u", "PYTHONUNBUFFERED", COMMAND, "record", "-o", "1", "--", *python(code)]
    subprocess.run(command, cwd=reprokit.directory, stdout=follower, stderr=subprocess.DEVNULL, check=True)
    assert os.read(leader, 1000) == b"terminal True True\r\n"
    os.close(leader)
    os.close(follower)
    assert text(reprokit.directory / "1")["0"] == b"terminal True True\n"


def test_only_the_command_s_own_streams_are_kept(reprokit: Reprokit) -> None:
    code = """
import os, subprocess, sys
print("kept", flush=True)
subprocess.run(["sh", "-c", "echo hidden"], stdout=subprocess.DEVNULL)
subprocess.run(["sh", "-c", "echo hidden"], stdout=open("file", "w"))
subprocess.run(["sh", "-c", "echo shown >&2"], stdout=subprocess.DEVNULL)
"""
    command = [COMMAND, "record", "-o", "1", "--", *python(code)]
    subprocess.run(command, cwd=reprokit.directory, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)
    assert set(text(reprokit.directory / "1").values()) - {b""} == {b"kept\n"}
    assert b"shown\n" in text(reprokit.directory / "1", 1).values()


def test_nothing_is_kept_where_nobody_wants_it(reprokit: Reprokit) -> None:
    one, other = pair(reprokit, "only_loss", "--no-console")
    assert not (one / "console").exists()
    assert not (other / "console").exists()
    assert verify(reprokit, one, other)[0] == 2
    assert reprokit.run("show", "--stdout", "1").stderr.startswith("reprokit: nothing-kept: ")


@pytest.mark.extended
def test_of_much_text_the_first_and_the_last_part_are_kept(reprokit: Reprokit) -> None:
    one, other = pair(reprokit, "much")
    status, document = verify(reprokit, one, other)
    assert status == 0
    assert "only whole lines of the first and the last part are compared" in "\n".join(document["notes"])
    directory = RunDirectory(one)
    (head,) = console.heads(directory).values()
    found = console.read(directory, head)
    first, last = console.text(found.first, 0), console.text(found.last, 0)
    assert first.startswith(b"line 000000000 of")
    assert b"line 000399999 of" in last
    assert found.dropped > 0
    assert found.dropped_lines is not None
    ends = [text.count(b"\n") for text in (console.text(found.first, 0), console.text(found.last, 0))]
    assert found.dropped_lines[0] + sum(ends) == 400_000
    lines = found.dropped_lines[0] + first.endswith(b"\n") + 1
    note = f"stdout: not compared are {lines} lines: only whole lines"
    assert any(text.startswith(note) for text in document["notes"]), document["notes"]
    assert sum(file.stat().st_size for file in (one / "console").iterdir()) <= 16 << 20


def test_secrets_and_control_characters_are_not_shown(reprokit: Reprokit) -> None:
    token = "hf_" + "a1b2c3d4" * 5
    reprokit.run("record", "-o", "1", "--", *python(f"print('token {token}'); print('\\x1b[31mred\\x1b]0;title\\x07')"))
    shown = reprokit.run("show", "--stdout", "1").stdout
    assert token not in shown
    assert "\x1b" not in shown
    assert "\\x1b[31mred" in shown
    document = json.loads(reprokit.run("show", "--stdout", "--json", "1").stdout)
    jsonschema.validate(document, shipped_schema("show-console"))
    assert token not in repr(document)
    assert token in reprokit.run("show", "--stdout", "--reveal", "1").stdout
    reprokit.run("bundle", "1", "-o", "bundle")
    reprokit.run("unpack", "bundle", "-o", "2")
    assert token.encode() not in b"".join(file.read_bytes() for file in (reprokit.directory / "2/console").iterdir())
    assert reprokit.run("check", "2").returncode == 0


def damaged(file: Path, how: str) -> None:
    data = bytearray(file.read_bytes())
    if how == "cut":
        del data[4096:]
    elif how == "magic":
        data[0] = 0
    elif how == "head":
        data[:4096] = bytes(4096)
    elif how == "used":
        data[296:304] = b"\xff" * 8
    elif how == "newer":
        data[8] = 99
    file.write_bytes(data)


@pytest.mark.parametrize("how", rest_slow(["head", "cut", "magic", "used", "newer", "changed"]))
def test_a_damaged_file_is_refused(reprokit: Reprokit, how: str) -> None:
    runs = pair(reprokit, "only_loss")
    (file,) = (runs[0] / "console").iterdir()
    damaged(file, how)
    if how == "changed":
        data = file.read_bytes()
        file.write_bytes(data.replace(b"loss: 0.", b"loss: 1."))
    done = reprokit.run("verify", "1", "2")
    assert done.returncode == 2
    assert "console" in done.stderr
    assert reprokit.run("check", "1").returncode == (2 if how == "newer" else 1)
    if how != "changed":
        with pytest.raises((RunDamaged, RunTooNew)):
            text(runs[0])


def test_records_that_make_no_sense_end_a_file(tmp_path: Path) -> None:
    assert console._pieces(b"\x01\0\0\0\0\x01\0\0mA" + b"\xff" * 20) == ([console.PrintedPiece(0, "m", b"A")], 20)
    assert console._pieces(b"\x01\0\0\0\x07\x01\0\0mA") == ([], 10)
    assert console._pieces(b"\0" * 64) == ([], 64)


MEMORY_IS_FULL = """
import os
blocks = []
try:
    for _ in range(500):
        blocks.append(bytearray(1 << 20))
except MemoryError:
    pass
os.write(1, b"printed while memory is full\\n")
blocks.clear()
print("loss 0.5", "loss 0.25", sep="\\n", flush=True)
"""


@pytest.mark.slow
def test_what_is_printed_while_memory_is_full_is_missed_and_the_rest_is_kept(reprokit: Reprokit) -> None:
    command = [COMMAND, "record", "-o", "1", "--", *python(MEMORY_IS_FULL)]
    subprocess.run(["sh", "-c", 'ulimit -v 400000; exec "$@"', "sh", *command], cwd=reprokit.directory, check=True)
    assert text(reprokit.directory / "1") == {"0": b"loss 0.5\nloss 0.25\n"}
    (head,) = console.heads(RunDirectory(reprokit.directory / "1")).values()
    assert head.missed == len("printed while memory is full\n")
    reprokit.run("replay", "-o", "2", "1")  # with all the memory that there is
    for runs in (("1", "1"), ("1", "2")):
        status, document = verify(reprokit, *map(Path, runs))
        assert status == 0, document
        assert "the first text is not kept, as memory, disk or descriptors were short: process 0" in str(document)
    assert reprokit.run("check", "1").returncode == 0
    assert "[29 bytes that both streams were given here were not kept]" in reprokit.run("show", "--stdout", "1").stdout
    reprokit.run("bundle", "1", "-o", "bundle")
    reprokit.run("unpack", "bundle", "-o", "3")
    assert text(reprokit.directory / "3") == {"0": b"loss 0.5\nloss 0.25\n"}
    assert reprokit.run("verify", "1", "3").returncode == 0


SHORT = SCRIPT.with_name("short_of_everything.py")
CALLS = {"mmap": 0, "fallocate": 0, "pwrite64": 0, "openat": 2}  # and how verify ends, where nothing is kept by 2


def short_run(reprokit: Reprokit, case: str) -> str:
    """Record a training in which a system call fails; return all that is said of the run, which must be whole."""
    pytest.importorskip("torch")
    done = reprokit.run(
        "record", "-o", "1", "--", sys.executable, str(SHORT), case, environment={"PYTHONPATH": PLAIN_IMPORTS}
    )
    told = done.stderr + reprokit.run("show", "1").stdout
    checked = reprokit.run("check", "1")
    assert checked.returncode == 0, checked.stdout
    assert done.returncode == (-signal.SIGSYS if case.endswith("kill") else 0), done.stderr
    return told


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_a_run_without_room_for_its_files_can_be_used(reprokit: Reprokit, call: str) -> None:
    told = short_run(reprokit, call)
    done = reprokit.run("verify", "1", "1")
    assert done.returncode == CALLS[call], done.stdout + done.stderr
    assert "not kept" in told + done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_a_process_that_is_killed_while_it_makes_a_file_leaves_a_whole_run(reprokit: Reprokit, call: str) -> None:
    short_run(reprokit, f"{call}-kill")
    assert "nothing-comparable" in reprokit.run("verify", "1", "1").stderr


SHORT_IN_ONE = """
import os, sys
sys.path.insert(0, sys.argv[1])
import denied_calls
if not os.path.exists("result"):
    denied_calls.deny("pwrite64")
print("loss 0.5", flush=True)
open("result", "w").write("0.5")
"""


def test_text_that_only_one_run_could_keep_is_no_difference(reprokit: Reprokit) -> None:
    for name in ("1", "2"):
        reprokit.run("record", "-o", name, "--", *python(SHORT_IN_ONE), str(SHORT.parent))
    directory = RunDirectory(reprokit.directory / "1")
    assert (len(console.never_begun(directory)), console.heads(directory)) == (1, {})
    status, document = verify(reprokit, Path("1"), Path("2"))
    assert status == 0, document
    assert leaves(document) == {"stdout": ("not-recorded", "")}
    assert "of the left run, the text of 1 process is not kept" in str(document["notes"])
