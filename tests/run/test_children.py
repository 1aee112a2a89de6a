"""Children are known by what they were started with: a helper more or less renames none of the others."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.interpreters import interpreter
from tests.support import LIMIT, Reprokit, rest_slow

TRAININGS = Path(__file__).parent.parent / "trainings"
TRAINING, ALIKE = (str(TRAININGS / name) for name in ("started_helpers.py", "alike_helpers.py"))
WAYS = ["empty start", "filled start", "empty fork", "filled fork", "reordered start"]


def drawn(output: str) -> dict[str, str]:
    """What each child printed, by its name, of which process ids are no part."""
    return dict(re.sub(r"tmp\d+", "tmp", line).split() for line in output.splitlines())


def compare(reprokit: Reprokit, command: list[str], way: str) -> None:
    """Record with an empty cache, replay twice with a full one."""
    recorded = reprokit.run("record", "-o", "recorded", "--", *command, TRAINING, *way.split(), "cache")
    assert recorded.returncode == 0, recorded.stderr
    for number in range(2):
        replayed = reprokit.run("replay", "--here", "recorded", "-o", f"replayed{number}")
        assert drawn(replayed.stdout) == drawn(recorded.stdout), replayed.stderr
        fidelity = reprokit.facts(f"replayed{number}")["fidelity"]
        assert fidelity["moved"] == 0
        assert bool(fidelity["derived"]) == way.startswith("filled")  # the helper's own, which nobody recorded
        assert bool(fidelity["unused"]) == way.startswith("empty")
    again = reprokit.run("record", "-o", "again", "--", *command, TRAINING, *way.split(), "cache")
    assert not set(drawn(again.stdout).values()) & set(drawn(recorded.stdout).values())


@pytest.mark.parametrize("way", rest_slow(WAYS))
def test_helpers(reprokit: Reprokit, way: str) -> None:
    compare(reprokit, [sys.executable], way)


def compare_alike(reprokit: Reprokit, python: str, when: str, edited: bool) -> None:
    """Record with an empty cache, replay with a full one: helpers that lack on one side take nobody's entropy."""
    script = reprokit.directory / "train.py"
    script.write_text(Path(ALIKE).read_text())
    recorded = reprokit.run("record", "-o", "recorded", "--", python, "train.py", when, "cache")
    assert recorded.returncode == 0, recorded.stderr
    if edited:
        script.write_text("# a line more\n" + script.read_text())
    replayed = reprokit.run("replay", "--here", "recorded", "-o", "replayed")
    there, here = ({n: d for n, d in drawn(run.stdout).items() if "helper" not in n} for run in (recorded, replayed))
    assert len(there) == 21
    assert here == there, replayed.stderr
    fidelity = reprokit.facts("replayed")["fidelity"]
    assert [fidelity["moved"], bool(fidelity["derived"]), bool(fidelity["unused"])] == [
        0,
        when == "filled",
        when == "empty",
    ]


@pytest.mark.parametrize("when", rest_slow(["empty", "filled"]))
def test_helpers_with_the_command_line_of_others(reprokit: Reprokit, when: str) -> None:
    compare_alike(reprokit, sys.executable, when, edited=False)


AT_ONCE = """
import os, sys
PROGRAM = [sys.executable, "-S", "-c", "import os; print(os.environ['NUMBER'], os.urandom(8).hex(), flush=True)"]

def execute_once_told(number):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(reader, 1)
        os.execve(sys.executable, PROGRAM, {**os.environ, "NUMBER": str(number)})
    return pid, writer

def go_on(pid, writer):
    os.write(writer, b" ")
    os.waitpid(pid, 0)

if os.path.exists("filled"):
    go_on(*execute_once_told("helper"))
for child in reversed([execute_once_told(number) for number in range(3)]):
    go_on(*child)
"""


def test_a_helper_more_leaves_forks_their_numbers_that_execute_in_another_order(reprokit: Reprokit) -> None:
    reprokit.script("train.py", AT_ONCE)
    recorded = reprokit.record(sys.executable, "train.py")
    reprokit.script("filled", "")
    replayed = reprokit.run("replay", str(reprokit.last))
    assert list(drawn(recorded.stdout)) == ["2", "1", "0"], recorded.stderr
    assert {**drawn(replayed.stdout), "helper": ""} == {**drawn(recorded.stdout), "helper": ""}, replayed.stderr


IN_HANDLER = """
import os, signal, sys

def fork(name):
    pid = os.fork()
    if pid == 0:
        print(name + suffix, os.urandom(8).hex(), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)

def handle(number, frame):
    global suffix
    fork("in-handler")
    if os.fork() == 0:  # it returns from the handler, and forks as its parent does
        suffix = "-by-child"
    else:
        os.wait()

def interrupt(frame, event, argument):
    if event == "return" and frame.f_code.co_name == "_before_fork":  # the call site is known, the fork is not made
        sys.setprofile(None)
        signal.raise_signal(signal.SIGUSR1)

suffix = ""
signal.signal(signal.SIGUSR1, handle)
if os.path.exists("filled") == (sys.argv[1] == "filled"):
    sys.setprofile(interrupt)
fork("interrupted")
fork("last")
"""


@pytest.mark.parametrize("when", ["empty", "filled"])
def test_forks_by_a_signal_handler_leave_the_fork_that_it_interrupts_its_lines(reprokit: Reprokit, when: str) -> None:
    """Interrupt a fork in the recording only, or in the replay only."""
    reprokit.script("train.py", IN_HANDLER)
    recorded = reprokit.record(sys.executable, "train.py", when)
    reprokit.script("filled", "")
    replayed = reprokit.run("replay", str(reprokit.last))
    there, here = drawn(recorded.stdout), drawn(replayed.stdout)
    assert sorted([len(there), len(here)]) == [2, 5], replayed.stderr
    assert {name: there[name] for name in here if name in there} == {name: here[name] for name in there if name in here}
    assert {"interrupted", "last"} <= there.keys() & here.keys()


def test_a_script_from_a_fifo_may_fork(reprokit: Reprokit) -> None:
    os.mkfifo(reprokit.directory / "fifo")
    run = reprokit.start("record", "-o", "recorded", "--", sys.executable, "fifo")
    (reprokit.directory / "fifo").write_text("import os\nif os.fork():\n    os.wait()\n    print('waited')\n")
    assert run.communicate(timeout=LIMIT)[0] == "waited\n"


@pytest.mark.slow
def test_children_of_an_edited_script(reprokit: Reprokit) -> None:
    compare_alike(reprokit, sys.executable, "never", edited=True)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.10", "3.13"])
def test_alike_helpers_of_other_pythons(reprokit: Reprokit, version: str) -> None:
    path = interpreter(version)
    if path is None:
        pytest.skip(f"no CPython {version} here")
    compare_alike(reprokit, path, "filled", edited=False)


@pytest.mark.slow
@pytest.mark.parametrize("version", [pytest.param("3.10", marks=pytest.mark.extended), "3.13"])
@pytest.mark.parametrize("way", rest_slow(WAYS))
def test_helpers_of_other_pythons(reprokit: Reprokit, version: str, way: str) -> None:
    path = interpreter(version)
    if path is None:
        pytest.skip(f"no CPython {version} here")
    compare(reprokit, [path], way)
